(* The two-server point function as it ships: a node is two words, each of a seed  *)
(* and a control bit; the whole node is hashed, control bits included, and each      *)
(* word is corrected by its own control bit; a leaf has many lanes. What two servers *)
(* evaluate adds up to beta at alpha and to zero elsewhere, for EVERY hash of a       *)
(* child and EVERY conversion of a leaf. Correctness only: that one key hides alpha   *)
(* rests on the hash and is not proved.                                               *)
From mathcomp Require Import all_ssreflect all_algebra zify.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* The path to a leaf: its bits from the highest down.                                *)
Fixpoint path (depth leaf : nat) : seq bool :=
  if depth is depth'.+1 then odd (leaf %/ 2 ^ depth') :: path depth' leaf else [::].

Lemma size_path depth leaf : size (path depth leaf) = depth.
Proof. by elim: depth => //= depth ->. Qed.

Lemma path_split depth leaf :
  (leaf %% 2 ^ depth.+1 = odd (leaf %/ 2 ^ depth) * 2 ^ depth + leaf %% 2 ^ depth)%N.
Proof.
have small : (leaf %% 2 ^ depth < 2 ^ depth)%N by rewrite ltn_mod expn_gt0.
rewrite {1}(divn_eq leaf (2 ^ depth)) -{1}(odd_double_half (leaf %/ 2 ^ depth)) mulnDl.
rewrite -muln2 -mulnA -expnS addnAC addnC modnMDl modn_small // expnS mul2n -addnn.
by case: (odd _); rewrite ?mul1n ?mul0n ?add0n ?ltn_add2l // (leq_trans small) // leq_addl.
Qed.

Lemma path_inj depth a b : path depth a = path depth b -> (a %% 2 ^ depth = b %% 2 ^ depth)%N.
Proof.
elim: depth => [|depth IH]; first by rewrite !modn1.
by case=> same /IH rest; rewrite !path_split same rest.
Qed.

Section PointFunction.
Variables (seed_type G : zmodType).
Hypothesis seeds_xor : forall s : seed_type, s + s = 0.

Definition word := (seed_type * bool)%type.                 (* 63 bits of a seed, a control bit *)
Definition node := (word * word)%type.
Variable hash : bool -> node -> node.                       (* of the left child, of the right one *)
Variable convert : node -> nat -> G.                        (* what a leaf hashes to, lane by lane *)
Variable is_second : nat -> bool.                           (* in which word of its leaf a lane is *)

(* The left child's correction, and what the right child's control bit differs in.    *)
Definition correction := (word * bool)%type.
Definition xor (a b : word) : word := (a.1 + b.1, a.2 (+) b.2).
Definition times (bit : bool) (w : word) : word := if bit then w else (0, false).

Definition correction_of (right : bool) (left_0 right_0 left_1 right_1 : word) : correction :=
  let on_left := xor left_0 left_1 in let on_right := xor right_0 right_1 in
  let lost := if right then on_left else on_right in
  let left_control := on_left.2 (+) right (+) true in
  ((lost.1, left_control), left_control (+) (on_right.2 (+) right)).

Definition grow (right : bool) (parent hashed : word) (c : correction) : word :=
  xor hashed (times parent.2 (xor c.1 (0, right && c.2))).

Definition corrections (right : bool) (n0 n1 : node) : correction * correction :=
  (correction_of right (hash false n0).1 (hash true n0).1 (hash false n1).1 (hash true n1).1,
   correction_of right (hash false n0).2 (hash true n0).2 (hash false n1).2 (hash true n1).2).

Definition child (right : bool) (c : correction * correction) (n : node) : node :=
  (grow right n.1 (hash right n).1 c.1, grow right n.2 (hash right n).2 c.2).

Definition control (n : node) (lane : nat) : bool := (if is_second lane then n.2 else n.1).2.

Definition leaf_correction (alpha : nat) (beta : G) (n0 n1 : node) (lane : nat) : G :=
  let missing := (if lane == alpha then beta else 0) - convert n0 lane + convert n1 lane in
  if control n1 lane then - missing else missing.

(* The corrections of all levels on the path to alpha's leaf, and of the lanes there.  *)
Fixpoint generate (bits : seq bool) (alpha : nat) (beta : G) (n0 n1 : node) :
    seq (correction * correction) * (nat -> G) :=
  if bits is bit :: rest then
    let c := corrections bit n0 n1 in
    let key := generate rest alpha beta (child bit c n0) (child bit c n1) in (c :: key.1, key.2)
  else ([::], leaf_correction alpha beta n0 n1).

Fixpoint evaluate (n : node) (words : seq (correction * correction)) (last : nat -> G)
    (bits : seq bool) (lane : nat) : G :=
  match bits, words with
  | bit :: rest, c :: words' => evaluate (child bit c n) words' last rest lane
  | _, _ => convert n lane + (if control n lane then last lane else 0)
  end.

Definition root (server : bool) (seeds : seed_type * seed_type) : node :=
  ((seeds.1, server), (seeds.2, server)).

(* Codeword alpha stands in lane alpha mod k of leaf alpha / k, if a leaf has k lanes.   *)
Definition generate_key (depth lanes alpha : nat) (beta : G) (seeds_0 seeds_1 : seed_type * seed_type) :=
  generate (path depth (alpha %/ lanes)%N) (alpha %% lanes)%N beta (root false seeds_0) (root true seeds_1).

Definition share (depth lanes : nat) (server : bool) (seeds : seed_type * seed_type)
    (key : seq (correction * correction) * (nat -> G)) (codeword : nat) : G :=
  let value := evaluate (root server seeds) key.1 key.2 (path depth (codeword %/ lanes)%N) (codeword %% lanes)%N in
  if server then - value else value.

Definition apart (n0 n1 : node) := (n0.1.2 (+) n1.1.2) && (n0.2.2 (+) n1.2.2).

Lemma grown_apart bit (p0 p1 l0 r0 l1 r1 : word) : p0.2 (+) p1.2 ->
  let c := correction_of bit l0 r0 l1 r1 in
  (grow bit p0 (if bit then r0 else l0) c).2 (+) (grow bit p1 (if bit then r1 else l1) c).2.
Proof.
case: p0 p1 l0 r0 l1 r1 => [? t0] [? t1] [? a] [? b] [? c] [? d].
by case: bit; case: t0; case: t1 => //= _; case: a; case: b; case: c; case: d.
Qed.

Lemma lost_equal bit (p0 p1 l0 r0 l1 r1 : word) : p0.2 (+) p1.2 ->
  let c := correction_of bit l0 r0 l1 r1 in
  grow (~~ bit) p0 (if bit then l0 else r0) c = grow (~~ bit) p1 (if bit then l1 else r1) c.
Proof.
have twice (a b : seed_type) : a + (a + b) = b by rewrite addrA seeds_xor add0r.
case: p0 p1 l0 r0 l1 r1 => [? t0] [? t1] [l0 a] [r0 b] [l1 c] [r1 d].
case: bit; case: t0; case: t1 => //= _; rewrite /grow /xor /times /= ?addr0 ?twice; congr (_, _);
  rewrite 1?[X in _ = _ + X]addrC ?twice //; by case: a; case: b; case: c; case: d.
Qed.

Lemma evaluations_differ bits' bits alpha beta n0 n1 lane :
  size bits' = size bits -> apart n0 n1 ->
  let key := generate bits alpha beta n0 n1 in
  evaluate n0 key.1 key.2 bits' lane - evaluate n1 key.1 key.2 bits' lane
  = if (bits' == bits) && (lane == alpha) then beta else 0.
Proof.
elim: bits bits' n0 n1 => [|bit bits IH] [|turn bits'] //= n0 n1.
  move=> _; rewrite /apart /leaf_correction /control => /andP[first second].
  have: (if is_second lane then n0.2 else n0.1).2 (+) (if is_second lane then n1.2 else n1.1).2.
    by case: (is_second lane).
  case: (_.2); case: (_.2) => //= _; rewrite ?addr0; set target := if _ then _ else _.
    by rewrite addrA addrK addrC subrK.
  by rewrite opprD opprK [- convert n1 _ + _]addrC addrK addrC subrK.
case=> same_size /andP[first second]; rewrite eqseq_cons; set c := corrections bit n0 n1.
case: (eqVneq turn bit) => [->|leaves] /=.
  apply: IH => //; apply/andP; split.
    by have := @grown_apart bit _ _ (hash false n0).1 (hash true n0).1 (hash false n1).1 (hash true n1).1 first;
    rewrite /c; case: (bit).
  by have := @grown_apart bit _ _ (hash false n0).2 (hash true n0).2 (hash false n1).2 (hash true n1).2 second;
  rewrite /c; case: (bit).
suff -> : child turn c n0 = child turn c n1 by rewrite subrr.
have -> : turn = ~~ bit by move: leaves; case: (turn); case: (bit).
congr (_, _).
  by have := @lost_equal bit _ _ (hash false n0).1 (hash true n0).1 (hash false n1).1 (hash true n1).1 first;
  rewrite /c; case: (bit).
by have := @lost_equal bit _ _ (hash false n0).2 (hash true n0).2 (hash false n1).2 (hash true n1).2 second;
rewrite /c; case: (bit).
Qed.

Lemma same_place depth lanes a b :
  (a < 2 ^ depth * lanes)%N -> (b < 2 ^ depth * lanes)%N ->
  (path depth (a %/ lanes)%N == path depth (b %/ lanes)%N) && (a %% lanes == b %% lanes)%N = (a == b).
Proof.
move=> a_lt b_lt; apply/andP/eqP => [[/eqP /path_inj leaves /eqP rest]|-> //].
rewrite (divn_eq a lanes) (divn_eq b lanes) rest; congr (_ * _ + _)%N.
by move: leaves; rewrite !modn_small // ltn_divLR; lia.
Qed.

(* From any seeds, at every depth, with any number of lanes a leaf.                     *)
Theorem point_function_correct depth lanes alpha beta seeds_0 seeds_1 x :
  (alpha < 2 ^ depth * lanes)%N -> (x < 2 ^ depth * lanes)%N ->
  let key := generate_key depth lanes alpha beta seeds_0 seeds_1 in
  share depth lanes false seeds_0 key x + share depth lanes true seeds_1 key x
  = if x == alpha then beta else 0.
Proof.
move=> alpha_lt x_lt; rewrite /= evaluations_differ ?size_path //.
by rewrite same_place.
Qed.

(* Secure indexing by two servers: their sums add up to the histogram of the clients'    *)
(* assignments, each as often as its weight says.                                        *)
Theorem point_functions_sum_to_histogram (client : finType) (contributors : {set client}) depth lanes
    (assignment : client -> nat) (beta : client -> G) (weight : client -> nat)
    (seeds_0 seeds_1 : client -> seed_type * seed_type) x :
  (x < 2 ^ depth * lanes)%N -> (forall i, assignment i < 2 ^ depth * lanes)%N ->
  let key i := generate_key depth lanes (assignment i) (beta i) (seeds_0 i) (seeds_1 i) in
  \sum_(i in contributors) share depth lanes false (seeds_0 i) (key i) x *+ weight i
  + \sum_(i in contributors) share depth lanes true (seeds_1 i) (key i) x *+ weight i
  = \sum_(i in contributors | x == assignment i) beta i *+ weight i.
Proof.
move=> x_lt places key; rewrite -big_split big_mkcondr /=; apply: eq_bigr => i _.
by rewrite -mulrnDl point_function_correct //; case: ifP => // _; rewrite mul0rn.
Qed.
End PointFunction.

(* Without a tree (depth 0): server 0 expands a seed, server 1 is sent the rest, and the  *)
(* last lane may be derived from the others where the lanes add up to a known value.       *)
Section Explicit.
Variables (G : zmodType) (sent : nat).

Definition explicit_share (server : bool) (total : G) (lanes : nat -> G) (x : nat) : G :=
  if (x < sent)%N then lanes x else (if server then 0 else total) - \sum_(j < sent) lanes j.

Theorem explicit_shares_correct (stream : nat -> G) alpha beta x :
  (alpha <= sent)%N -> (x <= sent)%N ->
  explicit_share false beta stream x
  + explicit_share true beta (fun j => (if j == alpha then beta else 0) - stream j) x
  = if x == alpha then beta else 0.
Proof.
move=> alpha_le x_le; rewrite /explicit_share; case: ltnP => [_|sent_le]; first by rewrite addrC subrK.
have -> : x = sent by apply/eqP; rewrite eqn_leq x_le.
rewrite sub0r sumrB opprB addrA subrK.
have [sent_alpha|below] := eqVneq sent alpha.
  by rewrite big1 ?subr0 // => j _; case: eqP => // j_alpha; have := ltn_ord j; rewrite j_alpha sent_alpha ltnn.
have alpha_lt : (alpha < sent)%N by rewrite ltn_neqAle eq_sym below.
rewrite (bigD1 (Ordinal alpha_lt)) //= eqxx big1 ?addr0 ?subrr // => j other.
by case: eqP => // same; case/eqP: other; apply: val_inj.
Qed.
End Explicit.
