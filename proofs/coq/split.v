(* The ring lattice: with t >= k/2 + h + 1, no choice of survivors splits the    *)
(* honest contributors, if of any two disjoint half-windows one has at most h     *)
(* corrupted clients. A statement about positions alone; quorum.v says what it    *)
(* has to do with masks.                                                          *)
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

(* The half-windows of a client: the k/2 clients after it and the k/2 before it. *)
Definition ahead u := [set v | 0 < after u v <= degree./2].
Definition behind u := [set v | 0 < after v u <= degree./2].

Lemma few_behind u : #|behind u| <= degree./2.
Proof. exact: few_before. Qed.

Lemma few_ahead u : #|ahead u| <= degree./2.
Proof.
pose distance v : 'I_population := (place v - place u)%R.
have distance_inj : injective distance by move=> v w /addIr/place_inj.
rewrite -(card_imset _ distance_inj) -[X in _ <= X]card_ord.
apply: leq_trans (leq_imset_card (fun e : 'I_degree./2 => inord e.+1 : 'I_population) predT).
apply: subset_leq_card; apply/subsetP => e /imsetP[v]; rewrite inE => /andP[pos near] ->.
have near' : (after u v).-1 < degree./2 by move: pos near; rewrite /after; lia.
apply/imsetP; exists (Ordinal near') => //=; apply: val_inj.
by rewrite /= inordK ?prednK // /after ltn_ord.
Qed.

(* Any set of neighbours is no larger than its two halves. *)
Lemma halves (X : {set client}) u :
  #|[set v in X | neighbours u v]| <= #|X :&: ahead u| + #|X :&: behind u|.
Proof.
apply: leq_trans (leq_card_setU _ _); apply: subset_leq_card.
by apply/subsetP => v; rewrite !inE /neighbours => /andP[->].
Qed.

Lemma distinct u v : u != v -> 0 < after u v.
Proof.
rewrite lt0n; apply: contraNneq => zero; apply/eqP; apply: place_inj; apply/eqP.
by rewrite eq_sym -subr_eq0; apply/eqP/val_inj.
Qed.

Lemma within (X : {set client}) u v w :
  #|X :&: ahead u| <= w -> degree./2 + w + 1 <= v -> #|[set x in X | neighbours u x]| < v.
Proof.
move=> few; apply: leq_trans; rewrite addn1 ltnS addnC; apply: leq_trans (halves X u) _.
by apply: leq_add few (leq_trans (subset_leq_card (subsetIr _ _)) (few_behind u)).
Qed.

Lemma within' (X : {set client}) u v w :
  #|X :&: behind u| <= w -> degree./2 + w + 1 <= v -> #|[set x in X | neighbours u x]| < v.
Proof.
move=> few; apply: leq_trans; rewrite addn1 ltnS; apply: leq_trans (halves X u) _.
by apply: leq_add few; apply: leq_trans (subset_leq_card (subsetIr _ _)) (few_ahead u).
Qed.

(* Places between two others, and ways round the ring. *)
Lemma shorter a b : 0 < b < a -> (a <= a - b) = false.
Proof. by lia. Qed.

Lemma after_to u v w : after w v < after u v -> after u w = after u v - after w v.
Proof.
rewrite /after; have -> : (place w - place u = (place v - place u) - (place v - place w))%R.
  by rewrite opprB [RHS]addrC addrA subrK.
move: (place v - place w)%R (place v - place u)%R => a b /= ab.
have [a_lt b_lt] := (ltn_ord a, ltn_ord b).
rewrite modnDmr addnBA ?(ltnW a_lt) // -addnBAC ?(ltnW ab) //.
by rewrite modnDr modn_small //; lia.
Qed.

Lemma after_through u v w : after u w + after w v < population -> after u v = after u w + after w v.
Proof.
rewrite /after; have -> : (place v - place u = (place w - place u) + (place v - place w))%R.
  by rewrite [RHS]addrC addrA subrK.
by move=> small; rewrite /= modn_small.
Qed.

Lemma after_lt u v : after u v < population.
Proof. exact: ltn_ord. Qed.

(* Every client is labelled: an honest contributor, corrupted, or (in neither set)   *)
(* dropped. S is a set of honest contributors that contains each honest contributor  *)
(* who neighbours a member, and each of whose members has at least t neighbours that  *)
(* contribute or are corrupted. Of a half-window after a member and a disjoint one     *)
(* before a member, one has at most h corrupted clients. Then S is all of the honest   *)
(* contributors, or nobody.                                                            *)
Theorem split_proof (contributing corrupted S : {set client}) (threshold h : nat) :
  degree./2 + h + 1 <= threshold ->
  S \subset contributing ->
  (forall u u', u \in S -> u' \in S -> [disjoint ahead u & behind u'] ->
     #|corrupted :&: ahead u| <= h \/ #|corrupted :&: behind u'| <= h) ->
  (forall u v, u \in S -> v \in contributing -> neighbours u v -> v \in S) ->
  (forall u, u \in S -> threshold <= #|[set v in contributing :|: corrupted | neighbours u v]|) ->
  S = contributing \/ S = set0.
Proof.
move=> large sub windows closed supported.
have [->|[u0 u0S]] := set_0Vmem S; [by right | left].
apply/eqP; rewrite eqEsubset sub /=; apply/subsetP => v0 v0A; apply: contraT => v0S.
(* Two gaps: from a member u on to an outsider v, and from an outsider v' on to a member u'. *)
pose leaves p := [&& p.1 \in S, p.2 \in contributing & p.2 \notin S].
have [[u v] /and3P[/= uS vA vS] least] := @arg_minnP _ (u0, v0) leaves (fun p => after p.1 p.2)
  (introT and3P (And3 u0S v0A v0S)).
have [[v' u'] /and3P[/= u'S v'A v'S] least'] := @arg_minnP _ (v0, u0)
  (fun p => leaves (p.2, p.1)) (fun p => after p.1 p.2) (introT and3P (And3 u0S v0A v0S)).
have between w : 0 < after u w < after u v -> w \notin contributing.
  case/andP=> pos closer; apply/negP => wA.
  have [wS|wS] := boolP (w \in S); last first.
    by have := least (u, w) (introT and3P (And3 uS wA wS)); rewrite /= leqNgt closer.
  by have := least (w, v) (introT and3P (And3 wS vA vS)); rewrite /= (after_from closer) shorter ?pos.
have apart : degree./2 < after u v.
  rewrite ltnNge; apply: contra (vS) => near; apply: (closed u v uS vA).
  by rewrite /neighbours near distinct //; apply: contraNneq (vS) => <-.
have between' w : 0 < after w u' < after v' u' -> w \notin contributing.
  move=> /andP[pos closer]; apply/negP => wA.
  have [wS|wS] := boolP (w \in S); last first.
    by have := least' (w, u') (introT and3P (And3 u'S wA wS)); rewrite /= leqNgt closer.
  have := least' (v', w) (introT and3P (And3 wS v'A v'S)).
  by rewrite /= (after_to closer) shorter ?pos.
have apart' : degree./2 < after v' u'.
  rewrite ltnNge; apply: contra (v'S) => near; apply: (closed u' v' u'S v'A).
  have pos : 0 < after v' u' by apply: distinct; apply: contraNneq (v'S) => ->.
  by rewrite /neighbours near pos orbT.
have bare : (contributing :|: corrupted) :&: ahead u \subset corrupted :&: ahead u.
  apply/subsetP => w; rewrite !inE => /andP[wA /andP[pos near]]; rewrite pos near !andbT.
  case/orP: wA => // wA; move: (between w); rewrite pos (leq_ltn_trans near apart) wA.
  by move/(_ isT).
have bare' : (contributing :|: corrupted) :&: behind u' \subset corrupted :&: behind u'.
  apply/subsetP => w; rewrite !inE => /andP[wA /andP[pos near]]; rewrite pos near !andbT.
  case/orP: wA => // wA; move: (between' w); rewrite pos (leq_ltn_trans near apart') wA.
  by move/(_ isT).
have disjoint : [disjoint ahead u & behind u'].
  rewrite disjoints_subset; apply/subsetP => w; rewrite !inE => /andP[pos near].
  apply/negP => /andP[pos' near'].
  have w_v : after w v = after u v - after u w by apply: after_from; apply: leq_ltn_trans near apart.
  case: (ltngtP (after w u') (after w v)) => [closer|closer|same].
  - (* u' lies between w and v *)
    have through : after u w + after w u' < after u v by rewrite -ltn_subRL -w_v.
    have u_u' := after_through (ltn_trans through (after_lt u v)).
    suff : u' \notin contributing by rewrite (subsetP sub).
    by apply: between; rewrite u_u' through addn_gt0 pos.
  - (* v lies between w and u', and so between v' and u' *)
    have := least' (v, u') (introT and3P (And3 u'S vA vS)); rewrite /= (after_from closer) => far.
    have := leq_trans apart' far; rewrite ltnNge (leq_trans (leq_subr _ _) near') //.
  - suff e : u' = v by move: vS; rewrite -e u'S.
    by apply: place_inj; apply: (addIr (- place w)%R); apply: val_inj.
case: (windows u u' uS u'S disjoint) => few.
  have few' : #|(contributing :|: corrupted) :&: ahead u| <= h.
    exact: leq_trans (subset_leq_card bare) few.
  by have := supported u uS; rewrite leqNgt (within few' large).
have few' : #|(contributing :|: corrupted) :&: behind u'| <= h.
  exact: leq_trans (subset_leq_card bare') few.
by have := supported u' u'S; rewrite leqNgt (within' few' large).
Qed.

(* The premise bounds all corrupted neighbours of a client as well: by k/2 + h, so by less than t. *)
Lemma total_two_windows (corrupted : {set client}) h v : degree./2.*2 <= last ->
  ([disjoint ahead v & behind v] -> #|corrupted :&: ahead v| <= h \/ #|corrupted :&: behind v| <= h) ->
  #|[set w in corrupted | neighbours v w]| <= degree./2 + h.
Proof.
move=> room windows.
have disjoint : [disjoint ahead v & behind v].
  rewrite disjoints_subset; apply/subsetP => w; rewrite !inE => /andP[pos near].
  apply/negP => /andP[_]; move: pos near; rewrite /after -(opprB (place w)).
  move: (place w - place v)%R => a /=; have a_lt := ltn_ord a => pos near.
  by rewrite modn_small; lia.
by case: (windows disjoint) => few; rewrite -ltnS; [apply: (within few) | apply: (within' few)]; rewrite addn1.
Qed.

(* Above half of the neighbours and of the corrupted ones, any t holders of v and any   *)
(* other t of them have an honest one in common, whatever is certified.                *)
Theorem two_answers_share_an_honest_holder (corrupted A B : {set client}) (threshold c : nat) v :
  degree + c < 2 * threshold ->
  #|[set w in corrupted | neighbours v w]| <= c ->
  (forall w, w \in A :|: B -> neighbours v w) -> threshold <= #|A| -> threshold <= #|B| ->
  exists2 w, w \in A :&: B & w \notin corrupted.
Proof.
move=> large few holders A_large B_large.
have [sub|] := boolP (A :&: B \subset corrupted); last by case/subsetPn => w; exists w.
have := halves setT v; rewrite !setTI; have := few_ahead v; have := few_behind v.
have: #|A :|: B| <= #|[set w in setT | neighbours v w]|.
  by apply: subset_leq_card; apply/subsetP => w /holders; rewrite !inE.
have: #|A :&: B| <= #|[set w in corrupted | neighbours v w]|.
  apply: subset_leq_card; apply/subsetP => w w_in; rewrite inE (subsetP sub) //=.
  by apply: holders; move: w_in; rewrite !inE => /andP[->].
have := cardsUI A B; have := odd_double_half degree.
by move: large few A_large B_large; clear; lia.
Qed.
End Lattice.

(* Where every place has its client, each has all k neighbours. *)
Section Full.
Variables (last degree : nat).
Notation place := (@id 'I_last.+1).
Notation half := degree./2.
Hypothesis room : half.*2 <= last.

Lemma steps (e : 'I_half) : (inord e.+1 : 'I_last.+1) = e.+1 :> nat.
Proof. by rewrite inordK //; have := ltn_ord e; move: room; lia. Qed.

Lemma steps_inj : injective (fun e : 'I_half => inord e.+1 : 'I_last.+1).
Proof. by move=> e e' /(congr1 val) /=; rewrite !steps => -[] /val_inj. Qed.

Lemma many_ahead u : half <= #|ahead degree place u|.
Proof.
have inj : injective (fun e : 'I_half => u + (inord e.+1 : 'I_last.+1))%R.
  by move=> e e' /addrI/steps_inj.
rewrite -[X in X <= _]card_ord -(card_imset _ inj); apply: subset_leq_card.
apply/subsetP => v /imsetP[e _ ->].
by rewrite inE /after addrC addKr steps /=.
Qed.

Lemma many_behind u : half <= #|behind degree place u|.
Proof.
have inj : injective (fun e : 'I_half => u - (inord e.+1 : 'I_last.+1))%R.
  by move=> e e' /addrI/oppr_inj/steps_inj.
rewrite -[X in X <= _]card_ord -(card_imset _ inj); apply: subset_leq_card.
apply/subsetP => v /imsetP[e _ ->].
by rewrite inE /after opprB addrC subrK steps /=.
Qed.

Lemma apart u : [disjoint ahead degree place u & behind degree place u].
Proof.
rewrite -setI_eq0; apply/eqP/setP => v; rewrite !inE /after -[(u - v)%R]opprB.
move: (v - u)%R => d; have d_lt := ltn_ord d; apply/negbTE/negP => /andP[/andP[pos near]].
have -> : (- d)%R = last.+1 - d :> nat by rewrite /= modn_small //; move: pos; lia.
by move: room; lia.
Qed.

Lemma many_neighbours u : half.*2 <= #|[set v | neighbours degree place u v]|.
Proof.
have -> : [set v | neighbours degree place u v] = ahead degree place u :|: behind degree place u.
  by apply/setP => v; rewrite !inE.
by rewrite cardsU disjoint_setI0 ?apart // cards0 subn0 -addnn leq_add ?many_ahead ?many_behind.
Qed.
End Full.
