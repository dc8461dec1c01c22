(* The two-server point function as a tree with one correction word per level:  *)
(* what the two servers evaluate differs by beta at alpha and not at all        *)
(* elsewhere, for EVERY expansion function and EVERY conversion. Correctness     *)
(* only: that one key hides alpha rests on the expansion and is not proved.      *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section PointFunction.
Variables (seed_type G : zmodType).
Hypothesis seeds_xor : forall s : seed_type, s + s = 0.
Variable expand : seed_type -> (seed_type * bool) * (seed_type * bool).
Variable convert : seed_type -> G.

Definition node := (seed_type * bool)%type.                (* seed, control bit *)
Definition correction_word := (seed_type * (bool * bool))%type.
Definition side {T : Type} (right : bool) (x : T * T) : T := if right then x.2 else x.1.

Definition child (right : bool) (word : correction_word) (n : node) : node :=
  let c := side right (expand n.1) in
  if n.2 then (c.1 + word.1, c.2 (+) side right word.2) else c.

Definition word_for (bit : bool) (n0 n1 : node) : correction_word :=
  let g0 := expand n0.1 in let g1 := expand n1.1 in
  ((side (~~ bit) g0).1 + (side (~~ bit) g1).1,
   (g0.1.2 (+) g1.1.2 (+) bit (+) true, g0.2.2 (+) g1.2.2 (+) bit)).

(* The correction words for alpha, and the correction of the leaf.               *)
Fixpoint generate (alpha : seq bool) (beta : G) (n0 n1 : node) : seq correction_word * G :=
  if alpha is bit :: rest then
    let word := word_for bit n0 n1 in
    let k := generate rest beta (child bit word n0) (child bit word n1) in (word :: k.1, k.2)
  else ([::], let d := beta - convert n0.1 + convert n1.1 in if n1.2 then - d else d).

Fixpoint evaluate (n : node) (words : seq correction_word) (last : G) (x : seq bool) : G :=
  match x, words with
  | bit :: rest, word :: words' => evaluate (child bit word n) words' last rest
  | _, _ => convert n.1 + (if n.2 then last else 0)
  end.

Lemma evaluations_differ alpha beta n0 n1 x : size x = size alpha -> n0.2 (+) n1.2 ->
  let k := generate alpha beta n0 n1 in
  evaluate n0 k.1 k.2 x - evaluate n1 k.1 k.2 x = if x == alpha then beta else 0.
Proof.
elim: alpha x n0 n1 => [|a alpha IH] [|d x] //= [s0 t0] [s1 t1] /=.
  move=> _; case: t0; case: t1 => //= _; rewrite ?addr0.
    by rewrite addrA addrK addrC subrK.
  by rewrite opprD opprK [- convert s1 + _]addrC addrK addrC subrK.
case=> same_size apart; rewrite eqseq_cons; set w := word_for a _ _.
case: (eqVneq d a) => [->|leaves] /=.
  apply: IH => //; rewrite /child /=; move: apart; rewrite /w /word_for /= /side.
  case: (expand s0) => [[? []] [? []]]; case: (expand s1) => [[? []] [? []]];
  by case: a w; case: t0; case: t1.
suff -> : child d w (s0, t0) = child d w (s1, t1) by rewrite subrr.
rewrite /child /=; move: apart {IH}; rewrite /w /word_for /= /side.
have -> : d = ~~ a by move: leaves; case: (a); case: (d).
case: (expand s0) => [[l0 b0] [r0 c0]]; case: (expand s1) => [[l1 b1] [r1 c1]] /=.
case: a {w leaves}; case: t0; case: t1 => //= _.
- by rewrite addrA seeds_xor add0r; case: b0; case: b1.
- by rewrite addrCA seeds_xor addr0; case: b0; case: b1.
- by rewrite addrA seeds_xor add0r; case: c0; case: c1.
- by rewrite addrCA seeds_xor addr0; case: c0; case: c1.
Qed.

(* From any two root seeds.                                                       *)
Theorem point_function_correct alpha beta seed_0 seed_1 x : size x = size alpha ->
  let key := generate alpha beta (seed_0, false) (seed_1, true) in
  evaluate (seed_0, false) key.1 key.2 x - evaluate (seed_1, true) key.1 key.2 x
  = if x == alpha then beta else 0.
Proof. by move=> same_size; apply: evaluations_differ. Qed.

(* Secure indexing by two servers: the difference of their sums is the histogram   *)
(* of the clients' assignments, each as often as its weight (beta) says.            *)
Theorem point_functions_sum_to_histogram (client : finType) (contributors : {set client}) depth
    (assignment : client -> seq bool) (beta : client -> G) (seed_0 seed_1 : client -> seed_type) x :
  size x = depth -> (forall i, size (assignment i) = depth) ->
  let key i := generate (assignment i) (beta i) (seed_0 i, false) (seed_1 i, true) in
  \sum_(i in contributors) evaluate (seed_0 i, false) (key i).1 (key i).2 x
  - \sum_(i in contributors) evaluate (seed_1 i, true) (key i).1 (key i).2 x
  = \sum_(i in contributors | x == assignment i) beta i.
Proof.
move=> depth_x depth_i key; rewrite -sumrB big_mkcondr /=; apply: eq_bigr => i _.
by rewrite point_function_correct // depth_x depth_i.
Qed.
End PointFunction.
