(* Pairwise masks over any abelian group: the server recovers exactly the     *)
(* contributors' sum, and uniform masks hide everything else.                 *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* --- 1. Recovery after dropouts ------------------------------------------- *)
(* "Exchange i and j, so the sum T is -T, so T = 0" is no proof in Z_{2^p},    *)
(* where 2T = 0 has a second solution. The proof pairs the two orders of each  *)
(* edge; a client that masked with itself would not be covered.                *)
Section Recovery.
Variables (client : finType) (G : zmodType).
Variables (neighbour : rel client) (pairwise_mask : client -> client -> G).
Hypotheses (neighbour_sym : symmetric neighbour) (neighbour_irr : irreflexive neighbour).
Hypothesis pairwise_mask_anti : forall i j, pairwise_mask j i = - pairwise_mask i j.

Lemma pairs_cancel (P : pred client) :
  \sum_(i | P i) \sum_(j | P j && neighbour i j) pairwise_mask i j = 0.
Proof.
rewrite pair_big_dep /= (bigID (fun p => enum_rank p.1 < enum_rank p.2)%N) /=.
rewrite [X in _ + X](reindex_inj (h := fun p : client * client => (p.2, p.1))) /=; last first.
  by move=> [a b] [c d] [-> ->].
set up := \sum_(_ | _) _; set down := \sum_(_ | _) _.
suff -> : down = - up by rewrite subrr.
rewrite /up /down -sumrN; apply: eq_big => [[i j]|[i j] _] /=; last exact: pairwise_mask_anti.
rewrite -leqNgt leq_eqVlt neighbour_sym.
case: (eqVneq (i : client) j) => [<-|differ]; first by rewrite neighbour_irr !andbF.
have -> : (nat_of_ord (enum_rank i) == nat_of_ord (enum_rank j)) = false.
  by apply/negbTE; apply: contra differ => /eqP /val_inj /enum_rank_inj ->.
by rewrite /= andbCA.
Qed.

Variables (input self_mask : client -> G) (sharers contributors : {set client}).
Hypothesis contributors_shared : contributors \subset sharers.

(* What client i uploads, once key sharing has fixed the sharers.              *)
Definition masked_input i :=
  input i + self_mask i + \sum_(j in sharers | neighbour i j) pairwise_mask i j.

(* What the server computes: the sum of the uploads, less the contributors'    *)
(* self masks, plus the masks between dropped clients and contributors, which  *)
(* it derives from the dropped clients' keys, so with the dropped one's sign.  *)
Definition unmasked_sum :=
  \sum_(i in contributors) masked_input i - \sum_(i in contributors) self_mask i
  + \sum_(j in sharers :\: contributors) \sum_(i in contributors | neighbour j i) pairwise_mask j i.

Theorem dropout_recovery : unmasked_sum = \sum_(i in contributors) input i.
Proof.
rewrite /unmasked_sum /masked_input 2!big_split /=.
set inputs := \sum_(i in contributors) input i; set selfs := \sum_(i in contributors) self_mask i.
rewrite -!addrA -[RHS]addr0; congr (_ + _).
rewrite [selfs + _]addrC -!addrA [- selfs + _]addrC addrK.
rewrite (eq_bigr (fun i => \sum_(j in contributors | neighbour i j) pairwise_mask i j
    + \sum_(j in sharers :\: contributors | neighbour i j) pairwise_mask i j)) => [|i _]; last first.
  rewrite (bigID (mem contributors)) /=; congr (_ + _); apply: eq_bigl => j.
    by case: (boolP (j \in contributors)) => [/(subsetP contributors_shared) ->|_]; rewrite ?andbF ?andbT.
  by rewrite inE; case: (j \in sharers); case: (j \in contributors); case: (neighbour i j).
rewrite big_split /= pairs_cancel add0r.
rewrite (exchange_big_dep (mem (sharers :\: contributors))) /=; last by move=> i j _ /andP[].
rewrite -big_split big1 //= => j dropped.
rewrite (eq_bigr (fun i => - pairwise_mask j i)) => [|i _]; last exact: pairwise_mask_anti.
rewrite sumrN (eq_bigl (fun i => (i \in contributors) && neighbour j i)) ?addNr // => i.
by rewrite dropped neighbour_sym.
Qed.
End Recovery.

(* --- 2. What uploads reveal ------------------------------------------------ *)
(* The clients here are those honest ones whose upload the observer has, and    *)
(* everything that it can compute is subtracted already.                        *)
(*   joined i j : an unknown mask stands in both uploads, with opposite signs.   *)
(*   covered    : clients in whose upload alone an unknown mask stands: the      *)
(*                self mask, or a mask that the other end did not add.           *)
(* Masks are uniform and independent. That expanded seeds may take their place   *)
(* is an assumption on the key agreement, the key derivation and the cipher.     *)
Section Privacy.
Variables (client : finType) (G : finZmodType) (joined : rel client) (covered : {set client}).
Variable id : client -> nat.
Hypotheses (joined_sym : symmetric joined) (joined_irr : irreflexive joined) (id_inj : injective id).

(* The client with the larger identifier adds the mask, the other subtracts it.  *)
Definition adds i j := (id j < id i)%N.
(* coins (i, j), for i that adds: their mask; coins (i, i): the mask of i alone.  *)
Definition coins := {ffun client * client -> G}.
Definition signed_mask (s : coins) i j : G :=
  if adds i j then s (i, j) else if adds j i then - s (j, i) else 0.
Definition noise (s : coins) i : G :=
  (if i \in covered then s (i, i) else 0) + \sum_(j | joined i j) signed_mask s i j.
Definition uploads (input : client -> G) (s : coins) : {ffun client -> G} :=
  [ffun i => input i + noise s i].

Lemma signed_mask_anti s i j : signed_mask s j i = - signed_mask s i j.
Proof. by rewrite /signed_mask /adds; case: ltngtP => //= _; rewrite ?opprK ?oppr0. Qed.

Lemma signed_maskD s s' i j : signed_mask (s + s') i j = signed_mask s i j + signed_mask s' i j.
Proof. by rewrite /signed_mask; case: ifP; [|case: ifP]; rewrite ?ffunE ?opprD ?addr0. Qed.

Lemma noiseD s s' i : noise (s + s') i = noise s i + noise s' i.
Proof.
rewrite /noise addrACA -big_split /=; congr (_ + _).
  by case: ifP; rewrite ?ffunE ?addr0.
by apply: eq_bigr => j _; rewrite signed_maskD.
Qed.

Lemma noise0 i : noise 0 i = 0.
Proof. by apply: (addrI (noise 0 i)); rewrite -noiseD !addr0. Qed.

(* Some coins give exactly this noise.                                            *)
Definition reachable (z : client -> G) := exists s, forall i, noise s i = z i.

Lemma reachableD z z' : reachable z -> reachable z' -> reachable (fun i => z i + z' i).
Proof. by move=> [s Hs] [s' Hs']; exists (s + s') => i; rewrite noiseD Hs Hs'. Qed.

Lemma reachable_ext z z' : z =1 z' -> reachable z -> reachable z'.
Proof. by move=> same [s Hs]; exists s => i; rewrite Hs. Qed.

Lemma reachable_sum (F : client -> client -> G) :
  (forall k, reachable (F k)) -> reachable (fun i => \sum_k F k i).
Proof.
move=> each; elim: (index_enum client) => [|k r IH].
  by exists 0 => i; rewrite noise0 big_nil.
by apply: reachable_ext (reachableD (each k) IH) => i; rewrite big_cons.
Qed.

Definition only_at (k : client) (g : G) (i : client) : G := if i == k then g else 0.

Lemma reachable_covered k g : k \in covered -> reachable (only_at k g).
Proof.
move=> k_covered; pose s : coins := [ffun p => if p == (k, k) then g else 0].
have s_off a b : a != b -> s (a, b) = 0.
  rewrite ffunE xpair_eqE; case: (a =P k) => // -> differ.
  by rewrite eq_sym (negbTE differ).
exists s => i; rewrite /noise /only_at big1 ?addr0 => [|j Jij]; last first.
  have differ : i != j by apply: contraTneq Jij => ->; rewrite joined_irr.
  by rewrite /signed_mask !s_off ?oppr0 ?if_same // eq_sym.
rewrite ffunE xpair_eqE andbb; case: (eqVneq i k) => [->|_]; rewrite ?k_covered //.
by rewrite if_same.
Qed.

(* One unknown mask moves any amount from one of its ends to the other.            *)
Lemma reachable_edge u v g : joined u v -> reachable (fun i => only_at u g i - only_at v g i).
Proof.
move=> Juv.
pose s : coins := [ffun p => (if p == (u, v) then g else 0) - (if p == (v, u) then g else 0)].
have s_anti i j : - s (j, i) = s (i, j).
  by rewrite !ffunE !xpair_eqE opprB ![(j == _) && _]andbC.
have s_diagonal i : s (i, i) = 0.
  by rewrite ffunE !xpair_eqE [(i == v) && _]andbC subrr.
have maskE i j : signed_mask s i j = s (i, j).
  rewrite /signed_mask /adds; case: ltngtP => // /id_inj ->.
  by rewrite s_diagonal.
exists s => i; rewrite /noise s_diagonal if_same add0r.
rewrite (eq_bigr (fun j => s (i, j))) => [|j _]; last exact: maskE.
rewrite (eq_bigr (fun j => (if (i, j) == (u, v) then g else 0)
                         - (if (i, j) == (v, u) then g else 0))) => [|j _]; last first.
  by rewrite ffunE.
have one a b : joined a b ->
    \sum_(j | joined i j) (if (i, j) == (a, b) then g else 0) = only_at a g i.
  move=> Jab; rewrite -big_mkcondr /= /only_at; case: (eqVneq i a) => [->|ia]; last first.
    by rewrite big_pred0 // => j; rewrite xpair_eqE (negbTE ia) andbF.
  rewrite (big_pred1 b) // => j /=; rewrite xpair_eqE eqxx /=.
  by case: (eqVneq j b) => [->|_]; rewrite ?Jab ?andbF.
by rewrite sumrB !one // joined_sym.
Qed.

Lemma reachable_path u v g :
  connect joined u v -> reachable (fun i => only_at u g i - only_at v g i).
Proof.
case/connectP => p; elim: p u => [|w p IH] u /= => [_ ->|/andP[Juw path_p] last_v].
  by exists 0 => i; rewrite noise0 subrr.
apply: reachable_ext (reachableD (reachable_edge g Juw) (IH w path_p last_v)) => i.
by rewrite addrA subrK.
Qed.

Lemma connected_sym : connect_sym joined.
Proof. exact: sym_connect_sym. Qed.

(* One client stands for each component: a covered one if there is any.             *)
Definition delegate (i : client) : client :=
  if [pick d in covered | connect joined (fingraph.root joined i) d] is Some d then d
  else fingraph.root joined i.

Lemma delegate_connect i : connect joined i (delegate i).
Proof.
rewrite /delegate; case: pickP => [d /andP[_ root_d]|_]; last exact: connect_root.
exact: connect_trans (connect_root joined i) root_d.
Qed.

Lemma delegate_eq i j : connect joined i j -> delegate i = delegate j.
Proof. by move=> ij; rewrite /delegate (fingraph.rootP connected_sym ij). Qed.

(* A component is open if none of its clients is covered.                            *)
Definition is_open i := [forall d in covered, ~~ connect joined i d].
Definition component_sum (x : client -> G) i := \sum_(j | connect joined i j) x j.

Lemma reachable_if_open_sums_vanish z :
  (forall i, is_open i -> component_sum z i = 0) -> reachable z.
Proof.
move=> vanish.
have moved k : reachable (fun i => only_at k (z k) i - only_at (delegate k) (z k) i).
  exact: reachable_path (delegate_connect k).
have kept k : reachable (only_at k (\sum_(j | delegate j == k) z j)).
  case: (boolP (k \in covered)) => [|k_bare]; first exact: reachable_covered.
  suff -> : \sum_(j | delegate j == k) z j = 0.
    by exists 0 => i; rewrite noise0 /only_at if_same.
  case: (boolP (is_open k)) => [open_k|].
    case: (boolP [exists j, delegate j == k]) => [/existsP[j0 /eqP j0k]|no]; last first.
      rewrite big_pred0 // => j; apply/negbTE.
      by apply: contra no => found; apply/existsP; exists j.
    have reaches : connect joined j0 k by rewrite -j0k delegate_connect.
    transitivity (component_sum z k); last exact: vanish.
    apply: eq_bigl => j; apply/eqP/idP => [<-|kj].
      by rewrite connected_sym delegate_connect.
    by rewrite -(delegate_eq kj) -(delegate_eq reaches).
  rewrite negb_forall => /existsP[d]; rewrite negb_imply negbK => /andP[d_covered kd].
  rewrite big_pred0 // => j; apply/negbTE; apply: contraNneq k_bare => jk.
  have: connect joined (fingraph.root joined j) d.
    apply: connect_trans kd; rewrite -jk; apply: connect_trans (delegate_connect j).
    by rewrite connected_sym connect_root.
  rewrite -jk /delegate; case: pickP => [e /andP[]//|/(_ d)].
  by rewrite d_covered /= => ->.
apply: reachable_ext (reachableD (reachable_sum moved) (reachable_sum kept)) => i.
rewrite -big_split /= (eq_bigr (fun k => only_at k (z k) i - only_at (delegate k) (z k) i
          + only_at k (\sum_(j | delegate j == k) z j) i)) // big_split sumrB /=.
have -> : \sum_k only_at k (z k) i = z i.
  by rewrite /only_at -big_mkcond /= (big_pred1 i) // => k; rewrite eq_sym.
have -> : \sum_k only_at (delegate k) (z k) i = \sum_(j | delegate j == i) z j.
  by rewrite /only_at -big_mkcond /=; apply: eq_bigl => k; rewrite eq_sym.
rewrite [X in _ + X](_ : _ = \sum_(j | delegate j == i) z j) ?subrK //.
by rewrite /only_at -big_mkcond /= (big_pred1 i) // => k; rewrite eq_sym.
Qed.

(* Two vectors of inputs with equal sums over every open component are seen as the    *)
(* same uploads equally often: whatever is seen, as many coins explain either.        *)
Theorem uploads_hide (x x' : client -> G) :
  (forall i, is_open i -> component_sum x i = component_sum x' i) ->
  forall seen, #|[set s | uploads x s == seen]| = #|[set s | uploads x' s == seen]|.
Proof.
move=> same_sums seen.
have [s0 Hs0] : reachable (fun i => x i - x' i).
  apply: reachable_if_open_sums_vanish => i /same_sums same.
  by rewrite /component_sum sumrB -/(component_sum x i) same subrr.
rewrite -(card_imset _ (addIr s0)); apply: eq_card => s.
rewrite inE; apply/imsetP/eqP => [[s' ] | Hs].
  rewrite inE => /eqP <- ->; apply/ffunP => i.
  by rewrite !ffunE noiseD Hs0 [noise s' i + _]addrC addrA [x' i + _]addrC subrK.
exists (s - s0); last by rewrite subrK.
rewrite inE -Hs; apply/eqP/ffunP => i; rewrite !ffunE.
have -> : noise s i = noise (s - s0) i + (x i - x' i).
  by rewrite -Hs0 -noiseD subrK.
by rewrite [noise _ i + _]addrC addrA [x' i + _]addrC subrK.
Qed.

(* And that much is always revealed: the sum over an open component can be read off.   *)
Theorem uploads_reveal (x : client -> G) (s : coins) i :
  is_open i -> component_sum (uploads x s) i = component_sum x i.
Proof.
move=> open_i; rewrite /component_sum (eq_bigr (fun j => x j + noise s j)) => [|j _]; last first.
  by rewrite ffunE.
rewrite big_split /= -[RHS]addr0; congr (_ + _).
rewrite (eq_bigr (fun j => \sum_(k | connect joined i k && joined j k) signed_mask s j k)) => [|j ij].
  by apply: pairs_cancel => // j k; rewrite signed_mask_anti.
rewrite /noise; have -> : (j \in covered) = false.
  by apply/negbTE/negP => j_covered; move/forallP/(_ j): open_i; rewrite j_covered ij.
rewrite add0r; apply: eq_bigl => k; case: (boolP (joined j k)) => [Jjk|]; rewrite ?andbF //.
by rewrite (connect_trans ij (connect1 Jjk)).
Qed.
End Privacy.

(* The case that is asked for first: a full graph, nobody dropped, every self mask      *)
(* removed. Then the sum of all inputs is all there is to see.                          *)
Theorem full_graph_hides (client : finType) (G : finZmodType) (id : client -> nat)
    (x x' : client -> G) : injective id -> \sum_i x i = \sum_i x' i ->
  forall seen, #|[set s | uploads (fun i j => i != j) set0 id x s == seen]|
             = #|[set s | uploads (fun i j => i != j) set0 id x' s == seen]|.
Proof.
move=> id_inj same seen; apply: uploads_hide => // [i j|i|i _]; first by rewrite eq_sym.
  by rewrite eqxx.
suff whole (z : client -> G) : component_sum (fun i j => i != j) z i = \sum_j z j.
  by rewrite !whole.
apply: eq_bigl => j; apply/idP; case: (eqVneq i j) => [->|differ]; first exact: connect0.
exact: connect1.
Qed.
