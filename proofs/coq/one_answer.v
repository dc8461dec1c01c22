(* Secrets shared among holders, each of whom adds the shares of the clients on a   *)
(* certified list. The server has the answers and the corrupted holders' shares.    *)
(* Where these and the packed secrets are no more than the coefficients, over any   *)
(* field, it learns nothing about the honest clients' secrets but the sum over each *)
(* list.                                                                            *)
From mathcomp Require Import all_ssreflect all_algebra zify.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* --- Linear algebra: what no combination contradicts has a solution ------------- *)

Lemma sum_enum (F : fieldType) (I : finType) (g : 'I_#|I| -> F) :
  \sum_k g k = \sum_(i : I) g (enum_rank i).
Proof. by rewrite (reindex (@enum_rank I)) //; apply/onW_bij/enum_rank_bij. Qed.

Lemma solvable (F : fieldType) (I J : finType) (a : I -> J -> F) (b : J -> F) :
  (forall w, (forall i, \sum_j a i j * w j = 0) -> \sum_j b j * w j = 0) ->
  exists x, forall j, \sum_i x i * a i j = b j.
Proof.
move=> dual.
pose A := \matrix_(i < #|I|, j < #|J|) a (enum_val i) (enum_val j).
pose B := \row_(j < #|J|) b (enum_val j).
have: (B <= A)%MS.
  rewrite submxE; apply/eqP/matrixP => r k; rewrite mxE [RHS]mxE sum_enum.
  rewrite -[RHS](dual (fun j => cokermx A (enum_rank j) k)) => [|i].
    by apply: eq_bigr => j _; rewrite mxE enum_rankK.
  have := congr1 (fun M : 'M_(_, _) => M (enum_rank i) k) (mulmx_coker A).
  rewrite /= mxE [RHS]mxE sum_enum => zero; rewrite -[RHS]zero.
  by apply: eq_bigr => j _; rewrite [A _ _]mxE !enum_rankK.
case/submxP => X BE; exists (fun i => X 0 (enum_rank i)) => j.
have := congr1 (fun M : 'M_(_, _) => M 0 (enum_rank j)) BE; rewrite !mxE enum_rankK sum_enum => ->.
by apply: eq_bigr => i _; rewrite mxE !enum_rankK.
Qed.

(* --- Relations among the values of polynomials of fewer than T + 1 coefficients -- *)

Section Relations.
Variables (F : fieldType) (place : finType) (point : place -> F) (T : nat).
Hypothesis distinct : injective point.
Implicit Type weight : place -> F.

Definition relation weight := forall t, (t < T)%N -> \sum_z weight z * point z ^+ t = 0.

Lemma relation_poly weight (p : {poly F}) :
  relation weight -> (size p <= T)%N -> \sum_z weight z * p.[point z] = 0.
Proof.
move=> rel small; under eq_bigr do rewrite (horner_coef_wide _ small) mulr_sumr.
rewrite exchange_big big1 //= => t _.
by under eq_bigr do rewrite mulrCA; rewrite -mulr_sumr rel ?mulr0.
Qed.

Lemma relation_sub weight weight' : relation weight -> relation weight' ->
  relation (fun z => weight z - weight' z).
Proof.
by move=> rel rel' t t_lt; under eq_bigr do rewrite mulrBl; rewrite sumrB rel ?rel' ?subrr.
Qed.

Lemma relation_large weight z :
  relation weight -> weight z != 0 -> (T < #|[set y | weight y != 0%R]|)%N.
Proof.
move=> rel wz; rewrite ltnNge; apply/negP => few.
pose others := [set y | weight y != 0%R] :\ z.
pose p : {poly F} := \prod_(y in others) ('X - (point y)%:P).
have size_p : (size p <= T)%N.
  rewrite /p -big_enum size_prod_XsubC -cardE; apply: leq_trans few.
  by rewrite [X in (_ <= X)%N](cardsD1 z) inE wz.
have p_at y : p.[point y] = \prod_(y' in others) (point y - point y').
  by rewrite horner_prod; apply: eq_bigr => y' _; rewrite hornerXsubC.
have := relation_poly rel size_p; rewrite (bigD1 z) //= big1 ?addr0 => [/eqP|y yz].
  rewrite mulf_eq0 (negPf wz) p_at /= => /eqP; apply/eqP/prodf_neq0 => y.
  by rewrite !inE => /andP[yz _]; rewrite subr_eq0 (inj_eq distinct) eq_sym.
have [->|wy] := eqVneq (weight y) 0; first by rewrite mul0r.
by rewrite p_at (bigD1 y) ?inE ?yz //= subrr mul0r mulr0.
Qed.
End Relations.

(* --- One list a sum --------------------------------------------------------------- *)

(* The clients here are the honest ones: of the others the server knows everything,    *)
(* so lists stand for the honest clients on them. An upload names the sum that it is   *)
(* for; holder j is asked for several sums, and its list for the sum t is list_of j t.    *)
(* A holder that does not answer has an empty list.                                    *)
Section Holders.
Variables (F : fieldType) (T : nat) (client holder secret sum : finType).
Variables (corrupted : {set holder}) (point : secret + holder -> F).
Variables (names : client -> sum) (listed : holder -> {set client}).
Hypothesis distinct : injective point.

Definition list_of j t := [set i in listed j | names i == t].
(* A combination of what the server sees: one weight for each answer, one for each      *)
(* corrupted holder's share of each client, and, on the other side, each secret.         *)
Section Combination.
Variables (of_secret : client -> secret -> F) (of_answer : holder -> sum -> F).
Variable of_share : client -> holder -> F.

(* The weights of one client's polynomial at the points.                                 *)
Definition weight i (z : secret + holder) := match z with
  | inl l => of_secret i l
  | inr j => if j \in corrupted then of_share i j
             else if i \in listed j then of_answer j (names i) else 0 end.

Lemma support_split (w : secret + holder -> F) :
  (#|[set z | w z != 0%R]|
   <= #|secret| + (#|[set j | (j \notin corrupted) && (w (inr j) != 0%R)]| + #|corrupted|))%N.
Proof.
set honest := [set j : holder | _].
have inj_l : injective (@inl secret holder) by move=> ? ? [].
have inj_r : injective (@inr secret holder) by move=> ? ? [].
apply: leq_trans (_ : #|secret| + #|honest :|: corrupted| <= _)%N; last first.
  by rewrite leq_add2l leq_card_setU.
rewrite -[#|secret|]cardsT -(card_imset _ inj_l) -(card_imset _ inj_r).
apply: leq_trans (leq_card_setU _ _); apply: subset_leq_card; apply/subsetP => -[l|j].
  by move=> _; rewrite inE imset_f.
by rewrite !inE => wz; rewrite (mem_imset _ _ inj_r) !inE wz andbT orNb orbT.
Qed.

Lemma relation_honest w z : relation point T w -> w z != 0 ->
  (T < #|[set j | (j \notin corrupted) && (w (inr j) != 0%R)]| + #|corrupted| + #|secret|)%N.
Proof.
move=> rel wz; apply: leq_trans (relation_large distinct rel wz) _.
by apply: leq_trans (support_split w) _; rewrite addnC.
Qed.

End Combination.

(* What hides, as a statement about combinations.                                           *)
Definition moves_nothing (e : client -> secret -> F) := forall of_secret of_answer of_share,
  (forall i, relation point T (weight of_secret of_answer of_share i)) ->
  \sum_i \sum_l of_secret i l * e i l = 0.

Lemma weighed_alike of_secret (e : client -> secret -> F) :
  (forall t, (forall i l, names i = t -> of_secret i l = 0)
    \/ exists A : {set client}, exists2 common : secret -> F,
         (forall l, \sum_(i in A) e i l = 0) /\ {in A, forall i, names i = t}
       & forall i l, names i = t -> of_secret i l = if i \in A then common l else 0) ->
  \sum_i \sum_l of_secret i l * e i l = 0.
Proof.
move=> alike; rewrite (partition_big names predT) //= big1 // => t _.
case: (alike t) => [none|[A [common [same A_t] weights]]].
  by apply: big1 => i /eqP i_t; apply: big1 => l _; rewrite none ?mul0r.
rewrite exchange_big big1 // => l _.
transitivity (common l * \sum_(i in A) e i l); last by rewrite same mulr0.
rewrite mulr_sumr big_mkcond [RHS]big_mkcond; apply: eq_bigr => i _; have [i_A|i_A] := boolP (i \in A).
  by rewrite (A_t _ i_A) eqxx (weights _ _ (A_t _ i_A)) i_A.
by case: eqP => // i_t; rewrite (weights _ _ i_t) (negPf i_A) mul0r.
Qed.

(* Certified lists: the honest holders that answer for a sum do so for one list.           *)
Definition certified (A : sum -> {set client}) := (forall t, {in A t, forall i, names i = t})
  /\ forall j t, j \notin corrupted -> list_of j t = A t \/ list_of j t = set0.

Lemma certified_moves_nothing A e :
  (#|corrupted| + #|secret| <= T)%N -> certified A ->
  (forall t l, \sum_(i in A t) e i l = 0) -> moves_nothing e.
Proof.
move=> high [A_t one_list] same of_secret of_answer of_share coin_free; apply: weighed_alike => t.
have bare w z : relation point T w -> (forall j, j \notin corrupted -> w (inr j) = 0) -> w z = 0.
  move=> rel none; apply/eqP/negPn/negP => /(relation_honest rel).
  set honest := [set j : holder | _]; suff -> : honest = set0 by rewrite cards0; move: high; clear; lia.
  by apply/setP => j; rewrite !inE; apply/negP => /andP[/none ->]; rewrite eqxx.
have in_list j i : (i \in list_of j (names i)) = (i \in listed j) by rewrite inE eqxx andbT.
have [/existsP[i i_A]|none] := boolP [exists i, i \in A t]; last first.
  left=> i l i_t; apply: (bare _ (inl l) (coin_free i)) => j honest_j.
  rewrite /= (negPf honest_j) -in_list i_t; case: (one_list j t honest_j) => ->; last by rewrite inE.
  by case: ifP => // i_A; case/existsP: none; exists i.
right; exists (A t), (of_secret i) => [|i' l i'_t]; first by split=> // l; apply: same.
have i_t := A_t t i i_A; have [i'_A|i'_A] := boolP (i' \in A t).
  apply/eqP; rewrite -subr_eq0; apply/eqP.
  apply: (bare _ (inl l) (relation_sub (coin_free i') (coin_free i))) => j honest_j.
  rewrite /= (negPf honest_j) -!in_list i_t i'_t.
  by case: (one_list j t honest_j) => ->; rewrite ?inE ?i_A ?i'_A subrr.
apply: (bare _ (inl l) (coin_free i')) => j honest_j.
rewrite /= (negPf honest_j) -in_list i'_t.
by case: (one_list j t honest_j) => ->; rewrite ?inE ?(negPf i'_A).
Qed.

(* --- Other coins for other secrets, and the same view ---------------------------------- *)

Notation coins := {ffun client -> 'rV[F]_T}.
Definition share (f : coins) i z := (rVpoly (f i)).[point z].

Lemma shareE f i z : share f i z = \sum_(t < T) f i 0 t * point z ^+ t.
Proof.
rewrite /share (horner_coef_wide _ (size_poly _ _)); apply: eq_bigr => t _.
by rewrite coef_rVpoly_ord.
Qed.

Lemma shareB f f' i z : share (f - f') i z = share f i z - share f' i z.
Proof. by rewrite /share !ffunE linearB /= hornerD hornerN. Qed.

Lemma sum_pair_at (A B : finType) (a : A) (g : A * B -> F) :
  (forall p, p.1 != a -> g p = 0) -> \sum_p g p = \sum_b g (a, b).
Proof.
move=> only; transitivity (\sum_p (fun a b => g (a, b)) p.1 p.2); first by apply: eq_bigr => -[].
rewrite -(pair_bigA _ (fun a b => g (a, b))) /= (bigD1 a) //= [X in _ + X]big1 ?addr0 // => a' a'a.
by apply: big1 => b _; apply: only.
Qed.

Lemma other_coins e : moves_nothing e -> exists d : coins,
  [/\ forall i l, share d i (inl l) = e i l,
     forall j t, j \notin corrupted -> \sum_(i in list_of j t) share d i (inr j) = 0
   & forall i k, k \in corrupted -> share d i (inr k) = 0].
Proof.
move=> nothing.
pose view := ((client * secret) + ((holder * sum) + (client * holder)))%type.
pose a (it : client * 'I_T) (z : view) : F := match z with
  | inl il => if il.1 == it.1 then point (inl il.2) ^+ it.2 else 0
  | inr (inl js) => if (js.1 \notin corrupted) && (it.1 \in list_of js.1 js.2)
                    then point (inr js.1) ^+ it.2 else 0
  | inr (inr ik) => if (ik.2 \in corrupted) && (ik.1 == it.1) then point (inr ik.2) ^+ it.2 else 0
  end.
pose b (z : view) : F := if z is inl il then e il.1 il.2 else 0.
have [w zero|x solution] := @solvable _ _ _ a b.
  rewrite big_sumType /= [X in _ + X]big1 ?addr0 => [|z _]; last by rewrite mul0r.
  apply: etrans (nothing (fun i l => w (inl (i, l))) (fun j s => w (inr (inl (j, s))))
                         (fun i k => w (inr (inr (i, k)))) _) => [|i t t_lt].
    by rewrite pair_bigA /=; apply: eq_bigr => -[i l] _; rewrite mulrC.
  apply: etrans (zero (i, Ordinal t_lt)); rewrite !big_sumType /=; congr (_ + _).
    rewrite (sum_pair_at (a := i)) => [|p /negPf /= ->]; last by rewrite mul0r.
    by apply: eq_bigr => l _ /=; rewrite eqxx mulrC.
  rewrite (sum_pair_at (a := i)) => [|p /negPf /= ->]; last by rewrite andbF mul0r.
  transitivity (\sum_j \sum_s (fun j s => a (i, Ordinal t_lt) (inr (inl (j, s))) * w (inr (inl (j, s)))) j s
                + \sum_k a (i, Ordinal t_lt) (inr (inr (i, k))) * w (inr (inr (i, k)))); last first.
    by rewrite pair_bigA /=; congr (_ + _); apply: eq_bigr => -[].
  rewrite -big_split /=; apply: eq_bigr => j _; rewrite eqxx andbT; case: ifP => [j_bad|j_good] /=.
    by rewrite big1 ?add0r 1?mulrC // => s _; rewrite mul0r.
  rewrite mul0r addr0 (bigD1 (names i)) //= big1 ?addr0 => [|s s_i].
    by rewrite inE eqxx andbT; case: ifP; rewrite ?mul0r // mulrC.
  by rewrite inE [names i == s]eq_sym (negPf s_i) andbF mul0r.
pose d : coins := [ffun i => \row_t x (i, t)].
have dE i z : share d i z = \sum_t x (i, t) * point z ^+ t.
  by rewrite shareE; apply: eq_bigr => t _; rewrite ffunE mxE.
exists d; split=> [i l|j s honest_j|i k bad_k].
- have := solution (inl (i, l)); rewrite /= => <-; rewrite dE.
  rewrite [RHS](sum_pair_at (a := i)) => [|p /= p_i]; last by rewrite eq_sym (negPf p_i) mulr0.
  by apply: eq_bigr => t _ /=; rewrite eqxx.
- apply: etrans (solution (inr (inl (j, s)))); rewrite /= honest_j /=.
  transitivity (\sum_i \sum_t (fun i t => x (i, t)
      * (if i \in list_of j s then point (inr j) ^+ nat_of_ord t else 0)) i t).
    rewrite big_mkcond; apply: eq_bigr => i _ /=; rewrite dE; case: ifP => // _.
    by rewrite big1 // => t _; rewrite mulr0.
  by rewrite pair_bigA /=; apply: eq_bigr => -[].
apply: etrans (solution (inr (inr (i, k)))); rewrite /= dE bad_k /=.
rewrite [RHS](sum_pair_at (a := i)) => [|p /= p_i]; last by rewrite eq_sym (negPf p_i) mulr0.
by apply: eq_bigr => t _ /=; rewrite eqxx.
Qed.

(* The coins with which these secrets give this view: the honest holders' answers and the   *)
(* corrupted holders' shares.                                                                *)
Definition explains (s : client -> secret -> F) (answers : holder -> sum -> F)
    (shares : client -> holder -> F) (f : coins) :=
  [&& [forall i, forall l, share f i (inl l) == s i l],
      [forall j, forall t, (j \notin corrupted) ==>
         (\sum_(i in list_of j t) share f i (inr j) == answers j t)]
    & [forall i, forall k, (k \in corrupted) ==> (share f i (inr k) == shares i k)]].

Lemma explains_moved s s' answers shares d f :
  (forall i l, share d i (inl l) = s i l - s' i l) ->
  (forall j t, j \notin corrupted -> \sum_(i in list_of j t) share d i (inr j) = 0) ->
  (forall i k, k \in corrupted -> share d i (inr k) = 0) ->
  explains s answers shares f = explains s' answers shares (f - d).
Proof.
move=> d_secret d_answer d_share; congr [&& _, _ & _]; apply: eq_forallb => i; apply: eq_forallb => z.
- by rewrite shareB d_secret opprB addrA subr_eq [s' i z + _]addrC (inj_eq (addIr _)).
- have [//|honest_i] := boolP (i \in corrupted); congr (_ == _) => /=.
  by under [RHS]eq_bigr do rewrite shareB; rewrite sumrB d_answer // subr0.
by have [bad_z|//] := boolP (z \in corrupted); rewrite shareB d_share // subr0.
Qed.

End Holders.

(* --- The theorems ------------------------------------------------------------------------- *)

(* Counted over the coins: both families of secrets explain each view equally often. The      *)
(* statements are about each view by itself, so the lists may be chosen as the view unfolds:   *)
(* take for the lists those that this view makes the server show.                               *)
Section Counting.
Variables (F : finFieldType) (T : nat) (client holder secret sum : finType).
Variables (corrupted : {set holder}) (point : secret + holder -> F).
Variables (names : client -> sum) (listed : holder -> {set client}).
Hypothesis distinct : injective point.
Notation explains := (explains (T := T) corrupted point names listed).

Lemma equally_explained s s' answers shares :
  moves_nothing T corrupted point names listed (fun i l => s i l - s' i l) ->
  #|[set f | explains s answers shares f]| = #|[set f | explains s' answers shares f]|.
Proof.
case/other_coins => d [d_secret d_answer d_share].
rewrite -(card_imset _ (addIr (- d))); apply: eq_card => f.
rewrite inE; apply/imsetP/idP => [[f']|explained].
  by rewrite inE (explains_moved _ _ _ d_secret d_answer d_share) => explained ->.
exists (f + d); rewrite ?addrK // inE.
by rewrite (explains_moved _ _ _ d_secret d_answer d_share) addrK.
Qed.

(* Certified lists: those honest holders that answer for a sum do so for the list A of it.       *)
Theorem certified_hides (A : sum -> {set client}) s s' :
  (#|corrupted| + #|secret| <= T)%N ->
  certified corrupted names listed A ->
  (forall t l, \sum_(i in A t) s i l = \sum_(i in A t) s' i l) ->
  forall answers shares,
  #|[set f | explains s answers shares f]| = #|[set f | explains s' answers shares f]|.
Proof.
move=> high one_list same answers shares; apply: equally_explained.
by apply: (certified_moves_nothing _ high one_list) => // t l; rewrite sumrB same subrr.
Qed.
End Counting.
