(* The ring lattice: with t >= k/2 + c + 1, no choice of survivors splits the    *)
(* honest contributors. A statement about positions alone; agreement.v says what  *)
(* it has to do with masks.                                                       *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import zify.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope nat_scope.

Section Lattice.
Variables (client : finType) (last : nat) (degree : nat).
Notation population := last.+1.
(* The shuffle of Graph: each client's place on the ring.                          *)
Variable place : client -> 'I_population.
Hypothesis place_inj : injective place.

(* How many places v stands after u.                                               *)
Definition after (u v : client) : nat := (place v - place u)%R.
(* The degree / 2 clients before and after a client are its neighbours.            *)
Definition neighbours (u v : client) : bool :=
  (0 < after u v <= degree./2) || (0 < after v u <= degree./2).

Lemma neighbours_sym : symmetric neighbours.
Proof. by move=> u v; rewrite /neighbours orbC. Qed.

Lemma neighbours_irr : irreflexive neighbours.
Proof. by move=> u; rewrite /neighbours /after subrr. Qed.

Lemma after_from u v w : after u w < after u v -> after w v = after u v - after u w.
Proof.
rewrite /after; have -> : (place v - place w = (place v - place u) - (place w - place u))%R.
  by rewrite opprB addrA subrK.
move: (place v - place u)%R (place w - place u)%R => a b /= ba.
have [a_lt b_lt] := (ltn_ord a, ltn_ord b).
rewrite modnDmr addnBA ?(ltnW b_lt) // -addnBAC ?(ltnW ba) //.
by rewrite modnDr modn_small //; lia.
Qed.

Lemma few_before u : #|[set v | 0 < after v u <= degree./2]| <= degree./2.
Proof.
pose distance v : 'I_population := (place u - place v)%R.
have distance_inj : injective distance.
  by move=> v w /addrI/oppr_inj/place_inj.
rewrite -(card_imset _ distance_inj) -[X in _ <= X]card_ord.
apply: leq_trans (leq_imset_card (fun e : 'I_degree./2 => inord e.+1 : 'I_population) predT).
apply: subset_leq_card; apply/subsetP => e /imsetP[v]; rewrite inE => /andP[pos near] ->.
have near' : (after v u).-1 < degree./2 by move: pos near; rewrite /after; lia.
apply/imsetP; exists (Ordinal near') => //=; apply: val_inj.
by rewrite /= inordK ?prednK // /after ltn_ord.
Qed.

(* Every client is labelled: an honest contributor, corrupted, or (in neither set)   *)
(* dropped. S is a set of honest contributors that contains each honest contributor  *)
(* who neighbours a member, and each of whose members has at least t neighbours that  *)
(* contribute or are corrupted. Then S is all of the honest contributors, or nobody.  *)
Theorem split_proof (contributing corrupted S : {set client}) (threshold c : nat) :
  degree./2 + c + 1 <= threshold ->
  S \subset contributing ->
  (forall u, u \in S -> #|[set v in corrupted | neighbours u v]| <= c) ->
  (forall u v, u \in S -> v \in contributing -> neighbours u v -> v \in S) ->
  (forall u, u \in S -> threshold <= #|[set v in contributing :|: corrupted | neighbours u v]|) ->
  S = contributing \/ S = set0.
Proof.
move=> large_threshold sub few_corrupted closed supported.
have [->|[u0 u0S]] := set_0Vmem S; [by right | left].
apply/eqP; rewrite eqEsubset sub /=; apply/subsetP => v0 v0A; apply: contraT => v0S.
(* A member u and an honest contributor v outside, v as few places after u as may be. *)
pose split p := [&& p.1 \in S, p.2 \in contributing & p.2 \notin S].
have [[u v] /and3P[/= uS vA vS] least] := @arg_minnP _ (u0, v0) split (fun p => after p.1 p.2)
  (introT and3P (And3 u0S v0A v0S)).
have between w : 0 < after u w < after u v -> w \notin contributing.
  case/andP=> pos closer; apply/negP => wA.
  have [wS|wS] := boolP (w \in S); last first.
    by have := least (u, w) (introT and3P (And3 uS wA wS)); rewrite /= leqNgt closer.
  have := least (w, v) (introT and3P (And3 wS vA vS)); rewrite /= (after_from closer); lia.
have distinct : 0 < after u v.
  rewrite lt0n; apply: contraNneq vS => zero.
  suff -> : v = u by [].
  by apply: place_inj; apply/eqP; rewrite -subr_eq0; apply/eqP/val_inj.
have far : degree./2 < after u v.
  rewrite ltnNge; apply: contra vS => near.
  by apply: closed uS vA _; rewrite /neighbours distinct near.
suff few : #|[set w in contributing :|: corrupted | neighbours u w]| < threshold.
  by move: (supported u uS); rewrite leqNgt few.
apply: (@leq_ltn_trans (degree./2 + c)); last by rewrite -addn1.
apply: leq_trans (leq_add (few_before u) (few_corrupted u uS)).
apply: leq_trans (leq_card_setU _ _); apply: subset_leq_card.
apply/subsetP => w; rewrite !inE => /andP[].
case: (boolP (w \in corrupted)) => [_ _ ->|_]; first by rewrite orbT.
rewrite orbF => wA; rewrite /neighbours => /orP[/andP[pos near]|->] //.
by move: (between w); rewrite pos (leq_ltn_trans near far) wA => /(_ isT).
Qed.
End Lattice.
