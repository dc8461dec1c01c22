(* Secret sharing over any field: enough shares give the secret, too few say   *)
(* nothing, and surplus shares are checked by the sums that the code computes.  *)
From mathcomp Require Import all_ssreflect all_algebra zify.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

Section Interpolation.
Variable F : fieldType.
Implicit Types (points : seq F) (p : {poly F}) (share : F -> F).

Definition basis points a : {poly F} :=
  (\prod_(c <- rem a points) (a - c))^-1 *: \prod_(c <- rem a points) ('X - c%:P).
Definition interpolate points share : {poly F} := \sum_(a <- points) share a *: basis points a.

Lemma basis_self points a : uniq points -> (basis points a).[a] = 1.
Proof.
move=> distinct; rewrite /basis hornerZ horner_prod.
under [X in _ * X]eq_bigr do rewrite hornerXsubC.
rewrite mulVf // prodf_seq_neq0; apply/allP => c; rewrite mem_rem_uniq //.
by rewrite !inE subr_eq0 eq_sym => /andP[-> _].
Qed.

Lemma basis_other points a b : uniq points -> b \in points -> b != a -> (basis points a).[b] = 0.
Proof.
move=> distinct b_in ba; rewrite /basis hornerZ horner_prod [X in _ * X](big_rem b) /=; last first.
  by rewrite mem_rem_uniq // !inE ba.
by rewrite hornerXsubC subrr mul0r mulr0.
Qed.

Lemma size_interpolate points share :
  uniq points -> (size (interpolate points share) <= size points)%N.
Proof.
move=> distinct; rewrite /interpolate big_seq; elim/big_ind: _ => [|p q Hp Hq|a a_in].
- by rewrite size_poly0.
- by apply: leq_trans (size_add _ _) _; rewrite geq_max Hp.
apply: leq_trans (size_scale_leq _ _) _; apply: leq_trans (size_scale_leq _ _) _.
by rewrite size_prod_XsubC size_rem // prednK //; case: points a_in {distinct}.
Qed.

Lemma interpolate_at points share b :
  uniq points -> b \in points -> (interpolate points share).[b] = share b.
Proof.
move=> distinct b_in; rewrite /interpolate horner_sum (bigD1_seq b) //= hornerZ basis_self //.
rewrite mulr1 big_seq_cond big1 ?addr0 // => a /andP[a_in ab].
by rewrite hornerZ basis_other ?mulr0 // eq_sym.
Qed.

Lemma interpolate_unique points p : uniq points -> (size p <= size points)%N ->
  p = interpolate points (fun a => p.[a]).
Proof.
move=> distinct small; apply/eqP; rewrite -subr_eq0; apply/eqP.
apply: (@roots_geq_poly_eq0 _ _ points) => //.
  by apply/allP => a a_in; rewrite rootE hornerD hornerN interpolate_at // subrr.
apply: leq_trans (size_add _ _) _.
by rewrite geq_max size_opp small size_interpolate.
Qed.

(* LagrangeWeights.factors and LagrangeWeights.scale.                            *)
Definition factor points a : F := (a * \prod_(c <- rem a points) (a - c))^-1.
Definition scale points : F := - \prod_(c <- points) (- c).

Lemma basis_at_zero points a : a \in points -> a != 0 ->
  (basis points a).[0] = scale points * factor points a.
Proof.
move=> a_in a0; have -> : scale points = a * \prod_(c <- rem a points) (- c).
  by rewrite /scale (big_rem a) //= mulNr opprK.
rewrite /basis /factor hornerZ horner_prod invfM mulrACA mulfV // mul1r mulrC; congr (_ * _).
by apply: eq_bigr => c _; rewrite hornerXsubC sub0r.
Qed.

(* Reconstruction: t or more shares at distinct points, none of them zero, and    *)
(* the weights that the code computes, give the value at zero.                    *)
Theorem shares_reconstruct points p : uniq (0 :: points) -> (size p <= size points)%N ->
  scale points * (\sum_(a <- points) factor points a * p.[a]) = p.[0].
Proof.
case/andP=> no_zero distinct small; rewrite {2}(interpolate_unique distinct small) horner_sum.
rewrite mulr_sumr; apply: eq_big_seq => a a_in.
have a0 : a != 0 by apply: contraNneq no_zero => <-.
by rewrite hornerZ basis_at_zero // [RHS]mulrC mulrA.
Qed.

Lemma top_coefficient points share : uniq points -> 0 \notin points ->
  (interpolate points share)`_(size points).-1
  = \sum_(a <- points) factor points a * share a * a.
Proof.
move=> distinct no_zero; rewrite /interpolate coef_sum; apply: eq_big_seq => a a_in; rewrite /basis !coefZ /factor.
have a0 : a != 0 by apply: contraNneq no_zero => <-.
have -> : (\prod_(c <- rem a points) ('X - c%:P))`_(size points).-1 = 1.
  rewrite -(size_rem a_in); have /monicP := monic_prod_XsubC (rem a points) xpredT id.
  by rewrite lead_coefE size_prod_XsubC.
by rewrite mulr1 invfM mulrAC [_ * a]mulrAC mulVf // mul1r mulrC.
Qed.

Lemma size_shifted p k : p != 0 -> size (p * 'X^k)%R = (k + size p)%N.
Proof.
move=> p0; have X0 : 'X^k != 0 :> {poly F} by rewrite monic_neq0 ?monicXn.
by rewrite size_mul // size_polyXn addnS addnC.
Qed.

(* Surplus shares: they lie on one polynomial of fewer than t + 1 coefficients    *)
(* exactly if the sums that the code calls syndromes are all zero.                *)
Theorem syndromes_decide points share t : uniq (0 :: points) -> (t <= size points)%N ->
  (exists2 p : {poly F}, (size p <= t)%N & forall a, a \in points -> p.[a] = share a)
  <-> forall k, (0 < k <= size points - t)%N ->
      \sum_(a <- points) factor points a * share a * a ^+ k = 0.
Proof.
case/andP=> no_zero distinct enough.
have power (q : {poly F}) k : (forall a, a \in points -> q.[a] = share a) ->
    (size (q * 'X^k)%R <= size points)%N ->
    (q * 'X^k)`_(size points).-1 = \sum_(a <- points) factor points a * share a * a ^+ k.+1.
  move=> fits small; rewrite (interpolate_unique distinct small) top_coefficient //.
  apply: eq_big_seq => a a_in.
  by rewrite hornerM hornerXn fits // exprSr !mulrA.
split=> [[p small fits] [//|k] /andP[_ k_le]|vanish].
  have size_le : (size (p * 'X^k)%R <= (size points).-1)%N.
    have [->|p0] := eqVneq p 0; first by rewrite mul0r size_poly0.
    rewrite size_shifted //; apply: leq_trans (_ : k + t <= _)%N; first by rewrite leq_add2l.
    by have := enough; have := k_le; case: (size points) => [|m] /=; lia.
  by rewrite -(power p k fits (leq_trans size_le (leq_pred _))) nth_default.
exists (interpolate points share) => [|a a_in]; last exact: interpolate_at.
set p := interpolate _ _; rewrite leqNgt; apply/negP => large.
have p0 : p != 0 by apply: contraTneq large => ->; rewrite size_poly0.
have size_p : (size p <= size points)%N := size_interpolate share distinct.
pose k := (size points - size p)%N.
have size_q : size (p * 'X^k)%R = size points by rewrite size_shifted // subnK.
have := power p k (fun a a_in => interpolate_at share distinct a_in).
rewrite size_q leqnn => /(_ isT); rewrite vanish; last first.
  by move: large size_p; rewrite /k; lia.
move=> top; have: lead_coef (p * 'X^k)%R != 0 by rewrite lead_coefM lead_coefXn mulr1 lead_coef_eq0.
by rewrite lead_coefE size_q top eqxx.
Qed.
End Interpolation.

Section Privacy.
Variables (F : finFieldType) (t : nat).
Implicit Types (coefficients : 'rV[F]_t) (holders : seq F).

Definition explains holders (share : F -> F) (secret : F) coefficients :=
  ((rVpoly coefficients).[0] == secret)
  && all (fun a => (rVpoly coefficients).[a] == share a) holders.

(* Whatever fewer than t holders see, every secret is explained by equally many     *)
(* polynomials of t coefficients.                                                    *)
Theorem too_few_shares_hide holders share secret secret' :
  uniq (0 :: holders) -> (size holders < t)%N ->
  #|[set c | explains holders share secret c]| = #|[set c | explains holders share secret' c]|.
Proof.
move=> distinct few.
pose d := interpolate (0 :: holders) (fun a => if a == 0 then secret - secret' else 0).
have dK : rVpoly (poly_rV d : 'rV_t) = d.
  by apply: poly_rV_K; apply: leq_trans (size_interpolate _ distinct) _.
have d_zero : d.[0] = secret - secret' by rewrite interpolate_at ?mem_head // eqxx.
have d_holder a : a \in holders -> d.[a] = 0.
  move=> a_in; rewrite interpolate_at ?inE ?a_in ?orbT //; case: eqP => // a0.
  by move: distinct => /=; rewrite -a0 a_in.
have shift c : explains holders share secret c = explains holders share secret' (c - poly_rV d).
  rewrite /explains linearB /= dK hornerD hornerN d_zero opprB addrA.
  rewrite subr_eq [secret' + secret]addrC (inj_eq (addIr secret')); congr (_ && _).
  by apply: eq_in_all => a a_in; rewrite hornerD hornerN d_holder // subr0.
rewrite -(card_imset _ (addIr (- poly_rV d))); apply: eq_card => c.
rewrite inE; apply/imsetP/idP => [[c'] | Hc].
  by rewrite inE shift => Hc' ->.
by exists (c + poly_rV d); rewrite ?addrK // inE shift addrK.
Qed.
End Privacy.
