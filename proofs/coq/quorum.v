(* Active mode, for every number of clients: certificates are unique, nobody's    *)
(* two secrets are both recovered, and whatever is revealed is one sum over all    *)
(* honest contributors. The server schedules everything and shows each client what *)
(* it likes; signatures are ideal (an honest client's exists only if it signed).   *)
(* What the code must do for this stands below as CODE OBLIGATION 1 to 5.          *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import zify.
Require Import masks split.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Local Open Scope nat_scope.

Section Session.
Variables (client : finType) (corrupted committee : {set client}) (neighbours : rel client).
Variables (threshold quorum minimum_cohort c : nat).

(* A pair of sets as the server shows it: who shared keys, and who contributed.     *)
Notation survivors := ({set client} * {set client})%type.
Notation sharers_of p := (fst p).
Notation contributors_of p := (snd p).

Variable signs : client -> survivors -> bool.
(* shows_self h v: the honest client h sent its share of v's self-mask seed to the   *)
(* server; shows_root: its share of v's mask root; shows_edge: the seed that v sent  *)
(* to it for the mask of the two (hybrid suite).                                     *)
Variables shows_self shows_root shows_edge : client -> client -> bool.
(* masks_with v w: v's one upload has the mask of v and w in it.                     *)
Variable masks_with : client -> client -> bool.

Definition endorsers p := [set m in committee | (m \in corrupted) || signs m p].
Definition certified p := quorum <= #|endorsers p|.

(* What an honest client checks before it answers for these sets.                    *)
Definition answers_for h p :=
  [/\ certified p, h \in contributors_of p, contributors_of p \subset sharers_of p
    & minimum_cohort <= #|contributors_of p|].

Record obligations : Prop := Obligations {
  (* CODE OBLIGATION 1. An honest member of the committee signs one pair of sets.     *)
  (* rounds3_4_unmasking.confirm_survivors, once by client.py.                        *)
  signs_once : forall m p p', m \notin corrupted -> signs m p -> signs m p' -> p = p';
  (* CODE OBLIGATION 2. A share of v's self-mask seed is shown only for certified      *)
  (* sets of which the holder and v are contributors, and only if v signed that it     *)
  (* masked under these sharers; an honest v signs that only if it masked with all its *)
  (* neighbours among them. rounds3_4_unmasking: check_survivors, _verify_certificate, *)
  (* _verify_views, revealed_secret; round2_masked_input signs the view.               *)
  self_only_if : forall h v, h \notin corrupted -> shows_self h v ->
    exists p, [/\ answers_for h p, v \in contributors_of p
      & v \notin corrupted ->
        forall w, neighbours v w -> w \in sharers_of p -> masks_with v w];
  (* CODE OBLIGATION 3. A share of v's mask root is shown only for certified sets of   *)
  (* which the holder is a contributor and v is not. rounds3_4_unmasking.revealed_secret. *)
  root_only_if : forall h v, h \notin corrupted -> shows_root h v ->
    exists2 p, answers_for h p & v \notin contributors_of p;
  (* CODE OBLIGATION 4. The same for the seed of an edge. rounds3_4_unmasking.AnsweredFor. *)
  edge_only_if : forall h v, h \notin corrupted -> shows_edge h v ->
    exists2 p, answers_for h p & v \notin contributors_of p;
  (* CODE OBLIGATION 5. The committee's quorum. graph.py, checked by each client        *)
  (* against its own bound on corrupted clients (for a drawn committee: but for the     *)
  (* probability that graph.py computes).                                               *)
  quorum_large : #|committee| + #|committee :&: corrupted| < 2 * quorum
}.

Hypothesis duties : obligations.

Theorem certificate_unique p p' : certified p -> certified p' -> p = p'.
Proof.
move=> Hp Hp'; have [in_corrupted|] := boolP (endorsers p :&: endorsers p' \subset corrupted).
  have: #|endorsers p :&: endorsers p'| <= #|committee :&: corrupted|.
    apply: subset_leq_card; apply/subsetP => m m_in; rewrite inE (subsetP in_corrupted) // andbT.
    by move: m_in; rewrite !inE => /andP[/andP[]].
  have: #|endorsers p :|: endorsers p'| <= #|committee|.
    by apply: subset_leq_card; apply/subsetP => m; rewrite !inE => /orP[] /andP[].
  have := cardsUI (endorsers p) (endorsers p'); have := quorum_large duties.
  by move: Hp Hp'; rewrite /certified; lia.
case/subsetPn => m; rewrite !inE => /andP[/andP[_ s] /andP[_ s']] honest_m.
move: s s'; rewrite (negbTE honest_m) /= => s s'.
exact: (signs_once duties honest_m s s').
Qed.

(* A secret is known once t of its shares are: the corrupted holders' and those shown. *)
Definition known (shows : client -> client -> bool) v :=
  threshold <= #|[set h | neighbours v h && ((h \in corrupted) || shows h v)]|.

(* c bounds the corrupted neighbours of every honest client (graph.py: but for         *)
(* the probability computed there).                                                    *)
Hypothesis few_corrupted : forall v, v \notin corrupted ->
  #|[set h in corrupted | neighbours v h]| <= c.
Hypothesis beyond_corrupted : c < threshold.

Lemma some_honest shows v : v \notin corrupted -> known shows v ->
  exists2 h, h \notin corrupted & shows h v.
Proof.
move=> honest_v; rewrite /known; set holders := [set h | _] => many.
have [sub|] := boolP (holders \subset corrupted); last first.
  case/subsetPn => h; rewrite inE => /andP[_] /orP[->//|shown] honest_h.
  by exists h.
have: #|holders| <= #|[set h in corrupted | neighbours v h]|.
  apply: subset_leq_card; apply/subsetP => h h_in; rewrite inE (subsetP sub) //=.
  by move: h_in; rewrite inE => /andP[].
by have := few_corrupted honest_v; lia.
Qed.

Theorem never_both v : v \notin corrupted -> ~~ (known shows_self v && known shows_root v).
Proof.
move=> honest_v; apply/andP => -[/(some_honest honest_v)[h honest_h /(self_only_if duties honest_h)]].
case=> p [[cert_p _ _ _] v_in _] /(some_honest honest_v)[h' honest_h' /(root_only_if duties honest_h')].
by case=> p' [cert_p' _ _ _]; rewrite -(certificate_unique cert_p cert_p') v_in.
Qed.

(* What masks.v needs to know: between which uploads an unknown mask cancels, and in    *)
(* which upload an unknown mask stands alone. Every honest client is counted as one who *)
(* uploaded, so late uploads that were not used give the server nothing more.           *)
Definition honest := {v : client | v \notin corrupted}.
Definition unknown_mask (i j : honest) :=
  [&& neighbours (val i) (val j), ~~ known shows_root (val i), ~~ known shows_root (val j),
      ~~ shows_edge (val i) (val j) & ~~ shows_edge (val j) (val i)].
Definition joined (i j : honest) :=
  [&& unknown_mask i j, masks_with (val i) (val j) & masks_with (val j) (val i)].
Definition covered : {set honest} :=
  [set i | ~~ known shows_self (val i)
    || [exists j, [&& unknown_mask i j, masks_with (val i) (val j) & ~~ masks_with (val j) (val i)]]].

Lemma open_component i : is_open joined covered i ->
  exists p, [/\ certified p, minimum_cohort <= #|contributors_of p|,
    forall j, connect joined i j -> val j \in contributors_of p,
    forall j k, connect joined i j -> val k \in contributors_of p ->
      neighbours (val j) (val k) -> connect joined i k
    & forall j, connect joined i j ->
      threshold <= #|[set h in contributors_of p :|: corrupted | neighbours (val j) h]|].
Proof.
move=> open_i.
have bare j : connect joined i j -> j \notin covered.
  by move=> ij; apply/negP => j_cov; move/forallP/(_ j): open_i; rewrite j_cov ij.
have seed_known j : connect joined i j -> known shows_self (val j).
  by move/bare; rewrite inE negb_or negbK => /andP[].
have [h honest_h] := some_honest (valP i) (seed_known i (connect0 _ i)).
case/(self_only_if duties honest_h) => p [[cert_p _ sub_p cohort_p] _ _].
have same h' p' : answers_for h' p' -> p' = p by case=> cert' _ _ _; apply: certificate_unique.
have shown h' v : h' \notin corrupted -> shows_self h' v ->
    [/\ h' \in contributors_of p, v \in contributors_of p
      & v \notin corrupted -> forall w, neighbours v w -> w \in sharers_of p -> masks_with v w].
  by move=> nc /(self_only_if duties nc)[p' [ans v_in view]]; move: (ans) v_in view;
    rewrite (same _ _ ans) => -[].
have rooted v : v \notin corrupted -> v \in contributors_of p -> ~~ known shows_root v.
  move=> honest_v v_in; apply/negP => /(some_honest honest_v)[h' nc /(root_only_if duties nc)[p' ans]].
  by rewrite (same _ _ ans) v_in.
have edged h' v : h' \notin corrupted -> v \in contributors_of p -> ~~ shows_edge h' v.
  move=> nc v_in; apply/negP => /(edge_only_if duties nc)[p' ans].
  by rewrite (same _ _ ans) v_in.
have inside j : connect joined i j -> val j \in contributors_of p.
  by case/seed_known/(some_honest (valP j)) => h' nc /(shown _ _ nc)[].
suff closed j k : connect joined i j -> val k \in contributors_of p ->
    neighbours (val j) (val k) -> connect joined i k.
  exists p; split=> // j ij.
  apply: leq_trans (seed_known j ij) _; apply: subset_leq_card; apply/subsetP => h'.
  rewrite !inE => /andP[-> /orP[->|]]; rewrite ?orbT // andbT.
  by have [//|nc /(shown _ _ nc)[->]] := boolP (h' \in corrupted); rewrite ?orbT.
move=> ij k_in jk; have j_in := inside j ij; have [h' nc] := some_honest (valP j) (seed_known j ij).
case/(shown _ _ nc) => _ _ /(_ (valP j) _ jk (subsetP sub_p _ k_in)) j_masks.
have unknown : unknown_mask j k.
  by rewrite /unknown_mask jk !rooted ?edged // ?(valP j) ?(valP k).
apply: (connect_trans ij (connect1 _)); rewrite /joined unknown j_masks /=.
have := bare j ij; rewrite inE negb_or => /andP[_]; rewrite negb_exists => /forallP/(_ k).
by rewrite unknown j_masks /= negbK.
Qed.
End Session.

Section OneSum.
Variables (client : finType) (corrupted committee : {set client}).
Variables (threshold quorum minimum_cohort window : nat).
Variables (signs : client -> {set client} * {set client} -> bool).
Variables shows_self shows_root shows_edge masks_with : client -> client -> bool.

(* What is revealed is one sum over all honest contributors of a certified pair.        *)
Notation one_sum joins i := (exists p, [/\ certified corrupted committee quorum signs p,
    minimum_cohort <= #|p.2| & forall j : honest corrupted, connect joins i j = (val j \in p.2)]).

(* Full graph: a threshold above the number of corrupted clients is enough here.        *)
Theorem full_graph_reveals_one_sum (neighbours := fun u v : client => u != v) :
  obligations corrupted committee neighbours quorum minimum_cohort
    signs shows_self shows_root shows_edge masks_with ->
  #|corrupted| < threshold ->
  forall i : honest corrupted,
  is_open (joined neighbours threshold shows_root shows_edge masks_with)
          (covered corrupted neighbours threshold shows_self shows_root shows_edge masks_with) i ->
  one_sum (joined neighbours threshold shows_root shows_edge masks_with) i.
Proof.
move=> duties beyond i open_i.
have few v : v \notin corrupted -> #|[set h in corrupted | neighbours v h]| <= #|corrupted|.
  by move=> _; apply: subset_leq_card; apply/subsetP => h; rewrite inE => /andP[].
have [p [cert cohort inside closed _]] := open_component duties few beyond open_i.
exists p; split=> // j; apply/idP/idP => [|j_in]; first exact: inside.
have [<-|differ] := eqVneq i j; first exact: connect0.
by apply: closed (connect0 _ i) j_in _; rewrite /neighbours (inj_eq val_inj).
Qed.

(* Sparse graph: t >= k/2 + window + 1, where of a half-window after an honest client and a    *)
(* disjoint one before an honest client, one has at most window corrupted clients. Honest      *)
(* includes those who dropped out. That a drawn graph has the property, but for a small   *)
(* probability, is for graph.py.                                                          *)
Theorem sparse_graph_reveals_one_sum (last degree : nat) (place : client -> 'I_last.+1)
    (neighbours := split.neighbours degree place) :
  injective place -> degree./2.*2 <= last ->
  obligations corrupted committee neighbours quorum minimum_cohort
    signs shows_self shows_root shows_edge masks_with ->
  (forall u v, u \notin corrupted -> v \notin corrupted ->
     [disjoint split.ahead degree place u & split.behind degree place v] ->
     #|corrupted :&: split.ahead degree place u| <= window
     \/ #|corrupted :&: split.behind degree place v| <= window) ->
  degree./2 + window + 1 <= threshold ->
  forall i : honest corrupted,
  is_open (joined neighbours threshold shows_root shows_edge masks_with)
          (covered corrupted neighbours threshold shows_self shows_root shows_edge masks_with) i ->
  one_sum (joined neighbours threshold shows_root shows_edge masks_with) i.
Proof.
move=> place_inj room duties windows large i open_i.
have few v : v \notin corrupted -> #|[set w in corrupted | neighbours v w]| <= degree./2 + window.
  by move=> nc; apply: (split.total_two_windows place_inj room) => disjoint; apply: windows.
have beyond : degree./2 + window < threshold by rewrite -addn1.
have [p [cert cohort inside closed supported]] := open_component duties few beyond open_i.
exists p; split=> // j; set joins := joined _ _ _ _ _.
pose part := [set val k | k in connect joins i].
have partP (k : honest corrupted) : (val k \in part) = connect joins i k.
  by rewrite (mem_imset _ _ val_inj).
have inside_part : part \subset p.2 :\: corrupted.
  by apply/subsetP => u /imsetP[k ik ->]; rewrite inE (valP k) inside.
have honest_part u : u \in part -> u \notin corrupted by case/imsetP => k _ ->; apply: (valP k).
have closed_part u v : u \in part -> v \in p.2 :\: corrupted -> neighbours u v -> v \in part.
  case/imsetP => k ik ->; rewrite inE => /andP[nc v_in] near.
  by have := closed k (Sub v nc) ik; rewrite SubK -partP SubK; apply.
have supported_part u : u \in part ->
    threshold <= #|[set w in (p.2 :\: corrupted) :|: corrupted | neighbours u w]|.
  case/imsetP => k ik ->; apply: leq_trans (supported k ik) _; apply: subset_leq_card.
  by apply/subsetP => w; rewrite !inE; case: (w \in corrupted); rewrite ?orbT ?orbF.
rewrite -partP; case: (split_proof place_inj large inside_part _ closed_part supported_part) => [u u'||].
- by move=> /honest_part nc /honest_part nc'; apply: windows.
- by move=> ->; rewrite inE (valP j).
by move=> nobody; have := connect0 joins i; rewrite -partP nobody inE.
Qed.

(* Of at least minimum_cohort contributors, at most the corrupted ones are not honest.    *)
Theorem one_sum_is_large (linked : rel (honest corrupted)) (i : honest corrupted)
    (contributors : {set client}) :
  minimum_cohort <= #|contributors| ->
  (forall j, connect linked i j = (val j \in contributors)) ->
  minimum_cohort - #|corrupted| <= #|[set j | connect linked i j]|.
Proof.
move=> cohort same; rewrite -(card_imset _ val_inj).
apply: leq_trans (_ : #|contributors :\: corrupted| <= _).
  by have := cardsID corrupted contributors; have := subset_leq_card (subsetIr contributors corrupted); lia.
apply: subset_leq_card; apply/subsetP => v; rewrite inE => /andP[nc v_in].
by apply/imsetP; exists (Sub v nc); rewrite ?inE ?same ?SubK.
Qed.
End OneSum.

(* The premises do not contradict each other, and the conclusions are not about nothing:  *)
(* on any graph, in runs with dropouts and corrupted clients, all obligations hold and    *)
(* every contributor's sum is open. A contributed; the corrupted sign and show all they can.  *)
Section Witness.
Variables (client : finType) (corrupted A : {set client}) (neighbours : rel client).
Variables (threshold quorum minimum_cohort : nat).
Hypotheses (sym : symmetric neighbours).
Hypothesis quorum_high : #|client| + #|corrupted| < 2 * quorum.
Hypothesis quorum_met : quorum <= #|A :|: corrupted|.
Hypothesis cohort : minimum_cohort <= #|A|.
Hypothesis holders : forall v, v \notin corrupted ->
  threshold <= #|[set h in A :|: corrupted | neighbours v h]|.

Definition signs (m : client) (p : {set client} * {set client}) := (m \in A) && (p == (setT, A)).
Definition shows_self h v := [&& neighbours v h, h \in A & v \in A].
Definition shows_root h v := [&& neighbours v h, h \in A & v \notin A].
Definition no_edge (_ _ : client) := false.

Lemma certified_run : certified corrupted setT quorum signs (setT, A).
Proof.
apply: leq_trans quorum_met _; apply: subset_leq_card; apply/subsetP => h.
by rewrite !inE /signs eqxx andbT orbC.
Qed.

Theorem runs_meet_the_obligations :
  obligations corrupted setT neighbours quorum minimum_cohort signs shows_self shows_root no_edge neighbours
  /\ forall i : honest corrupted, val i \in A ->
     is_open (joined neighbours threshold shows_root no_edge neighbours)
       (covered corrupted neighbours threshold shows_self shows_root no_edge neighbours) i.
Proof.
split.
  split=> //.
  - by move=> m p p' _ /andP[_ /eqP ->] /andP[_ /eqP ->].
  - move=> h v _ /and3P[_ hA vA]; exists (setT, A); split=> //; split=> //; [exact: certified_run|exact: subsetT].
  - move=> h v _ /and3P[_ hA vA]; exists (setT, A) => //; split=> //; [exact: certified_run|exact: subsetT].
  - by rewrite cardsT setTI.
have self v : v \notin corrupted -> v \in A -> known corrupted neighbours threshold shows_self v.
  move=> nc vA; apply: leq_trans (holders nc) _; apply: subset_leq_card; apply/subsetP => h.
  by rewrite !inE /shows_self vA andbT => /andP[hh ->]; rewrite /= orbC.
have root v : v \notin corrupted -> v \notin A -> known corrupted neighbours threshold shows_root v.
  move=> nc vA; apply: leq_trans (holders nc) _; apply: subset_leq_card; apply/subsetP => h.
  by rewrite !inE /shows_root vA andbT => /andP[hh ->]; rewrite /= orbC.
move=> i iA.
have inA (j : honest corrupted) : connect (joined neighbours threshold shows_root no_edge neighbours) i j -> val j \in A.
  case/connectP => p path_p ->; elim: p i iA path_p {j} => [|k p IH] i iA //= /andP[].
  case/andP => /and5P[_ _ nk _ _] _ path_p; apply: (IH k) path_p => //.
  by apply: contraR nk => kA; apply: root; rewrite ?(valP k).
apply/forallP => d; apply/implyP; rewrite inE => /orP[unknown|/existsP[k /and3P[_ dk]]]; last first.
  by rewrite sym dk.
by apply: contra unknown => /inA dA; apply: self; rewrite ?(valP d).
Qed.
End Witness.

(* All premises of the sparse graph hold in one run, with numbers: twelve clients of eight *)
(* neighbours, of whom one is corrupted and another drops out.                             *)
Theorem premises_hold_together (place := @id 'I_12) (neighbours := split.neighbours 8 place)
    (corrupted := [set ord0] : {set 'I_12}) (A := ~: [set ord0; ord_max] : {set 'I_12}) :
  let shows_self h v := [&& neighbours v h, h \in A & v \in A] in
  let shows_root h v := [&& neighbours v h, h \in A & v \notin A] in
  let no_edge (_ _ : 'I_12) := false in
  [/\ injective place, (8./2.*2 <= 11) && (8./2 + 1 + 1 <= 6),
      obligations corrupted setT neighbours 7 10 (fun m p => (m \in A) && (p == (setT, A)))
        shows_self shows_root no_edge neighbours,
      forall u v, u \notin corrupted -> v \notin corrupted ->
        [disjoint split.ahead 8 place u & split.behind 8 place v] ->
        #|corrupted :&: split.ahead 8 place u| <= 1 \/ #|corrupted :&: split.behind 8 place v| <= 1
    & exists i : honest corrupted,
        is_open (joined neighbours 6 shows_root no_edge neighbours)
          (covered corrupted neighbours 6 shows_self shows_root no_edge neighbours) i].
Proof.
move=> shows_self shows_root no_edge.
have sizeA : #|A| = 10 by have := cardsC A; rewrite [~: A]setCK cards2 card_ord /=; lia.
have there : A :|: corrupted = ~: [set ord_max].
  by apply/setP => v; rewrite !inE; case: (v =P ord0) => [->|]; rewrite ?orbT ?orbF.
have size_there : #|A :|: corrupted| = 11.
  by have := cardsC (A :|: corrupted); rewrite there setCK cards1 card_ord; lia.
have holders v : v \notin corrupted -> 6 <= #|[set h in A :|: corrupted | neighbours v h]|.
  move=> _.
  have -> : [set h in A :|: corrupted | neighbours v h] = [set h | neighbours v h] :\ ord_max.
    by apply/setP => h; rewrite there !inE.
  have many : 8 <= #|[set h | neighbours v h]| by apply: (@split.many_neighbours 11 8 isT v).
  move: many; rewrite (cardsD1 ord_max).
  by case: (_ \in _); rewrite ?add0n ?add1n => many; [rewrite -ltnS ltnW|apply: leq_trans many].
have [duties opens] := @runs_meet_the_obligations _ corrupted A neighbours 6 7 10
  (split.neighbours_sym 8 place) ltac:(by rewrite cards1 card_ord)
  ltac:(by rewrite size_there) ltac:(by rewrite sizeA) holders.
split=> //.
  by move=> u v _ _ _; left; apply: leq_trans (subset_leq_card (subsetIl _ _)) _; rewrite cards1.
have one_in : Ordinal (isT : 1 < 12) \in A by rewrite !inE.
have is_honest : Ordinal (isT : 1 < 12) \notin corrupted by rewrite inE.
by exists (exist (fun v => v \notin corrupted) _ is_honest); apply: opens.
Qed.
