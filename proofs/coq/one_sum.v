(* Active mode with ideal masks, on either graph: there is one open component, and      *)
(* whatever the server asks for after it has seen the uploads, every transcript is      *)
(* explained equally often by any two inputs with equal sums over the honest            *)
(* contributors of the certified set.                                                   *)
From mathcomp Require Import all_ssreflect all_algebra.
Require Import masks split quorum transcripts.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.

Section OneSum.
Variables (client : finType) (G : finZmodType) (corrupted committee : {set client}).
Variables (neighbours : rel client) (threshold quorum minimum_cohort : nat).
Variables (signs : client -> {set client} * {set client} -> bool).
Variables shows_self shows_root shows_edge masks_with : client -> client -> bool.
Hypotheses (sym : symmetric neighbours) (irr : irreflexive neighbours).
Hypothesis duties : obligations corrupted committee neighbours quorum minimum_cohort
    signs shows_self shows_root shows_edge masks_with.
Let H := honest corrupted.
(* The masks that two honest clients both added, and those of them that are still unknown. *)
Let added (i j : H) :=
  [&& neighbours (val i) (val j), masks_with (val i) (val j) & masks_with (val j) (val i)].
Let unknown := @joined client corrupted neighbours threshold shows_root shows_edge masks_with.
Let alone := covered corrupted neighbours threshold shows_self shows_root shows_edge masks_with.
Notation opened i := (is_open unknown alone i).

(* As sparse_graph_reveals_one_sum and full_graph_reveals_one_sum conclude.                 *)
Hypothesis revealed_sums : forall i, opened i ->
  exists p, [/\ certified corrupted committee quorum signs p, (minimum_cohort <= #|p.2|)%N
    & forall j, connect unknown i j = (val j \in p.2)].

Theorem one_open_component (i i' : H) : opened i -> opened i' -> connect unknown i i'.
Proof.
move=> /revealed_sums[p [cert _ same]] /revealed_sums[p' [cert' _ same']].
by rewrite same (certificate_unique duties cert cert') -same' connect0.
Qed.

Variable id : H -> nat.
Hypothesis id_inj : injective id.

Theorem sum_only (x x' : H -> G) (y : {ffun H -> G}) (r : masks.coins _ G) :
  (forall p, certified corrupted committee quorum signs p -> (minimum_cohort <= #|p.2|)%N ->
     \sum_(j : H | val j \in p.2) x j = \sum_(j : H | val j \in p.2) x' j)%R ->
  #|[set s | transcript id added unknown [set: H] alone x y r s]|
  = #|[set s | transcript id added unknown [set: H] alone x' y r s]|.
Proof.
move=> same; apply: transcripts_hide => //.
- by move=> i; rewrite /added irr.
- move=> i j; rewrite /unknown /joined /unknown_mask (sym (val i)).
  by do !case: (known _ _ _ _ _) => //=; case: (neighbours _ _); case: (shows_edge (val i) (val j));
     case: (shows_edge (val j) (val i)); case: (masks_with (val i) (val j)); case: (masks_with (val j) (val i)).
- by move=> i j /and3P[/and5P[n _ _ _ _] a b]; rewrite /added n a b.
- exact: subsetT.
move=> i /revealed_sums[p [cert cohort comp]].
by rewrite /masks.component_sum (eq_bigl _ _ comp) [RHS](eq_bigl _ _ comp); apply: same.
Qed.

(* Noise is an input like any other: transcripts follow from the noised sum alone.          *)
Theorem noised_sum_only (x x' n n' : H -> G) (y : {ffun H -> G}) (r : masks.coins _ G) :
  (forall p, certified corrupted committee quorum signs p -> (minimum_cohort <= #|p.2|)%N ->
     \sum_(j : H | val j \in p.2) x j + \sum_(j : H | val j \in p.2) n j
     = \sum_(j : H | val j \in p.2) x' j + \sum_(j : H | val j \in p.2) n' j)%R ->
  #|[set s | transcript id added unknown [set: H] alone (fun j => x j + n j)%R y r s]|
  = #|[set s | transcript id added unknown [set: H] alone (fun j => x' j + n' j)%R y r s]|.
Proof. by move=> same; apply: sum_only => p cert cohort; rewrite !big_split; apply: same. Qed.
End OneSum.

(* Composed, on either graph, with no premise left but what is said of graph, committee and *)
(* corrupted clients: one component is open at most, and a transcript tells one sum.        *)
Section Composed.
Variables (client : finType) (G : finZmodType) (corrupted committee : {set client}).
Variables (threshold quorum minimum_cohort window : nat).
Variables (signs : client -> {set client} * {set client} -> bool).
Variables shows_self shows_root shows_edge masks_with : client -> client -> bool.
Let H := honest corrupted.
Notation obliged neighbours := (obligations corrupted committee neighbours quorum minimum_cohort
    signs shows_self shows_root shows_edge masks_with).
Notation added neighbours := (fun i j : H =>
  [&& neighbours (val i) (val j), masks_with (val i) (val j) & masks_with (val j) (val i)]).
Notation unknown neighbours := (@joined client corrupted neighbours threshold shows_root shows_edge masks_with).
Notation alone neighbours :=
  (covered corrupted neighbours threshold shows_self shows_root shows_edge masks_with).
Notation opened neighbours i := (is_open (unknown neighbours) (alone neighbours) i).

Definition tells_one_sum (neighbours : rel client) :=
  (forall i i' : H, opened neighbours i -> opened neighbours i' -> connect (unknown neighbours) i i')
  /\ forall (id : H -> nat) (x x' : H -> G) (y : {ffun H -> G}) (r : masks.coins _ G), injective id ->
     (forall p, certified corrupted committee quorum signs p -> (minimum_cohort <= #|p.2|)%N ->
        \sum_(j : H | val j \in p.2) x j = \sum_(j : H | val j \in p.2) x' j)%R ->
     #|[set s | transcript id (added neighbours) (unknown neighbours) [set: H] (alone neighbours) x y r s]|
     = #|[set s | transcript id (added neighbours) (unknown neighbours) [set: H] (alone neighbours) x' y r s]|.

Lemma composed (neighbours : rel client) :
  symmetric neighbours -> irreflexive neighbours -> obliged neighbours ->
  (forall i, opened neighbours i -> exists p, [/\ certified corrupted committee quorum signs p,
     (minimum_cohort <= #|p.2|)%N & forall j, connect (unknown neighbours) i j = (val j \in p.2)]) ->
  tells_one_sum neighbours.
Proof.
move=> sym irr duties sums; split=> [i i'|id x x' y r id_inj same]; first exact: one_open_component duties sums i i'.
exact: (sum_only sym irr sums id_inj).
Qed.

Theorem full_graph_tells_one_sum : obliged (fun u v => u != v) -> (#|corrupted| < threshold)%N ->
  tells_one_sum (fun u v => u != v).
Proof.
move=> duties beyond; apply: composed => // [u v|u|i open_i]; first by rewrite eq_sym.
  by rewrite eqxx.
exact: (full_graph_reveals_one_sum duties beyond open_i).
Qed.

Theorem sparse_graph_tells_one_sum (last degree : nat) (place : client -> 'I_last.+1)
    (neighbours := split.neighbours degree place) :
  injective place -> (degree./2.*2 <= last)%N -> obliged neighbours ->
  (forall u v, u \notin corrupted -> v \notin corrupted ->
     [disjoint split.ahead degree place u & split.behind degree place v] ->
     (#|corrupted :&: split.ahead degree place u| <= window)%N
     \/ (#|corrupted :&: split.behind degree place v| <= window)%N) ->
  (degree./2 + window + 1 <= threshold)%N -> tells_one_sum neighbours.
Proof.
move=> inj room duties windows large; apply: composed => // [u v|u|i open_i].
- exact: split.neighbours_sym.
- exact: split.neighbours_irr.
exact: (sparse_graph_reveals_one_sum inj room duties windows large open_i).
Qed.
End Composed.
