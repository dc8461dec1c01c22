(* A server that first sees the uploads and then chooses which masks it learns: every  *)
(* transcript, of uploads and of learned masks, is explained equally often by any two   *)
(* inputs with equal sums over the components that are open at the end.                *)
From mathcomp Require Import all_ssreflect all_algebra.
Require Import masks.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section Adaptive.
Variables (client : finType) (G : finZmodType) (id : client -> nat).
(* All masks that honest clients added, and those that are still unknown at the end. *)
Variables (joined0 joined : rel client) (covered0 covered : {set client}).
Hypotheses (sym0 : symmetric joined0) (irr0 : irreflexive joined0).
Hypotheses (sym : symmetric joined) (sub : subrel joined joined0) (csub : covered \subset covered0).
Hypothesis id_inj : injective id.
Notation coins := (masks.coins client G).

Definition revealed (p : client * client) :=
  ((p.1 == p.2) && (p.1 \in covered0) && (p.1 \notin covered)) || (joined0 p.1 p.2 && ~~ joined p.1 p.2).
Definition transcript (x : client -> G) (y : {ffun client -> G}) (r : coins) (s : coins) :=
  (masks.uploads joined0 covered0 id x s == y) && [forall p, revealed p ==> (s p == r p)].

Lemma irr : irreflexive joined.
Proof. by move=> i; apply/negbTE/negP => /sub; rewrite irr0. Qed.

Theorem transcripts_hide (x x' : client -> G) y r :
  (forall i, masks.is_open joined covered i ->
     masks.component_sum joined x i = masks.component_sum joined x' i) ->
  #|[set s | transcript x y r s]| = #|[set s | transcript x' y r s]|.
Proof.
move=> same.
have [s1 Hs1] : masks.reachable joined covered id (fun i => x i - x' i).
  apply: (masks.reachable_if_open_sums_vanish sym irr id_inj) => i /same e.
  by rewrite /masks.component_sum sumrB -/(masks.component_sum joined x i) e subrr.
pose unknown (p : client * client) := ((p.1 == p.2) && (p.1 \in covered)) || joined p.1 p.2.
pose s0 : coins := [ffun p => if unknown p then s1 p else 0].
have pair i j : joined i j -> masks.signed_mask id s0 i j = masks.signed_mask id s1 i j.
  move=> ij; have ji : joined j i by rewrite sym.
  by rewrite /masks.signed_mask !ffunE /unknown /= ij ji !orbT.
have none i j : joined0 i j -> ~~ joined i j -> masks.signed_mask id s0 i j = 0.
  move=> ij0 ij; have ji : ~~ joined j i by rewrite sym.
  have ne : (i == j) = false by apply: contraTF ij0 => /eqP ->; rewrite irr0.
  have ne' : (j == i) = false by rewrite eq_sym.
  by rewrite /masks.signed_mask !ffunE /unknown /= (negbTE ij) (negbTE ji) ne ne' /= oppr0 !if_same.
have Hs0 i : masks.noise joined0 covered0 id s0 i = x i - x' i.
  rewrite -Hs1 /masks.noise; congr (_ + _).
    rewrite ffunE /unknown /= eqxx irr orbF /=.
    by case: (boolP (i \in covered)) => [/(subsetP csub) ->|_] //; rewrite if_same.
  rewrite (bigID (joined i)) /= [X in _ + X]big1 ?addr0 => [|j /andP[ij0 ij]]; last exact: none.
  rewrite (eq_bigl (joined i)) => [|j]; last first.
    by case: (boolP (joined i j)) => [/sub ->|]; rewrite ?andbT ?andbF.
  by apply: eq_bigr => j ij; apply: pair.
have fixed p : revealed p -> s0 p = 0.
  rewrite /revealed ffunE /unknown; case: p => i j /= /orP[/andP[/andP[/eqP <- _] nc]|/andP[ij0 ij]].
    by rewrite eqxx (negbTE nc) irr.
  have -> : (i == j) = false by apply: contraTF ij0 => /eqP ->; rewrite irr0.
  by rewrite (negbTE ij).
rewrite -(card_imset _ (addIr s0)); apply: eq_card => s.
have shift s' : transcript x y r s' = transcript x' y r (s' + s0).
  rewrite /transcript; congr (_ && _).
    congr (_ == y); apply/ffunP => i; rewrite !ffunE masks.noiseD Hs0.
    by rewrite [masks.noise _ _ _ s' i + _]addrC addrA [x' i + _]addrC subrK.
  apply: eq_forallb => p; case: (boolP (revealed p)) => //= known.
  by rewrite ffunE fixed // addr0.
rewrite inE; apply/imsetP/idP => [[s' ]|H].
  by rewrite inE shift => H ->.
by exists (s - s0); rewrite ?subrK // inE shift subrK.
Qed.
End Adaptive.
