(* The integers modulo 2^p: when the centred lift of a sum is the sum over the  *)
(* integers, and what decoders may therefore do with it.                        *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import zify.
Require Import masks.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Ring.
Variable below : nat.
Let p := below.+1.                         (* modulus_bits, at least one *)
Notation modulus := (2 ^ p)%N.
Notation half := (2 ^ below)%N.

(* Ring.from_integers, and the centred lift to [-2^(p-1), 2^(p-1)).              *)
Definition element (q : int) : 'Z_modulus := q%:~R.
Definition lift (v : 'Z_modulus) : int :=
  if (v < half)%N then (v : nat)%:Z else (v : nat)%:Z - modulus%:Z.

Lemma modulus_gt1 : (1 < modulus)%N. Proof. by rewrite -{1}(expn0 2) ltn_exp2l. Qed.
Lemma modulusE : modulus = (half + half)%N. Proof. by rewrite expnS mul2n addnn. Qed.

Lemma element_nat n : (element n%:Z : nat) = (n %% modulus)%N.
Proof. by rewrite /element -pmulrn Zp_nat /= Zp_cast // modulus_gt1. Qed.

Theorem lift_inverts q : - half%:Z <= q < half%:Z -> lift (element q) = q.
Proof.
have twice := modulusE; case: q => n /= in_range.
  have small : (n < half)%N by lia.
  by rewrite /lift element_nat modn_small ?small //; lia.
have -> : element (Negz n) = element (modulus - n.+1)%:Z.
  rewrite /element NegzE mulrNz -subzn; last by lia.
  rewrite intrD mulrNz -[modulus%:Z%:~R]pmulrn.
  by rewrite char_Zp ?modulus_gt1 // add0r.
rewrite /lift element_nat modn_small; last by lia.
case: ifP => small; lia.
Qed.

Lemma lift_range v : - half%:Z <= lift v < half%:Z.
Proof.
have twice := modulusE; have : (v < modulus)%N by rewrite -{2}(Zp_cast modulus_gt1) ltn_ord.
by rewrite /lift; case: ifP; lia.
Qed.

Section Capacity.
Variables (client : finType) (contributors : {set client}).
Variables (weight : client -> nat) (code : client -> int).
Let total_weight := (\sum_(i in contributors) weight i)%N.

Lemma weighted_bounds (least greatest : int) :
  (forall i, i \in contributors -> least <= code i <= greatest) ->
  total_weight%:Z * least <= \sum_(i in contributors) (weight i)%:Z * code i
    <= total_weight%:Z * greatest.
Proof.
move=> in_range; rewrite /total_weight (big_morph Posz PoszD (erefl _)) !mulr_suml.
by apply/andP; split; apply: ler_sum => i /in_range /andP[low high]; apply: ler_wpmul2l.
Qed.

(* capacity_between: codes in [least, greatest], and a total weight W with          *)
(* -2^(p-1) <= W least and W greatest <= 2^(p-1) - 1.                                *)
Theorem sums_within_capacity_are_exact (least greatest : int) :
  (forall i, i \in contributors -> least <= code i <= greatest) ->
  - half%:Z <= total_weight%:Z * least -> total_weight%:Z * greatest < half%:Z ->
  lift (\sum_(i in contributors) element ((weight i)%:Z * code i))
  = \sum_(i in contributors) (weight i)%:Z * code i.
Proof.
move=> /weighted_bounds /andP[low high] fits_low fits_high.
rewrite /element -rmorph_sum; apply: lift_inverts.
by rewrite (le_trans fits_low low) (le_lt_trans high fits_high).
Qed.

(* capacity: codes of b bits, and a total weight of at most 2^(p-b).                 *)
Theorem capacity_suffices b :
  (forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z) ->
  (b <= below)%N -> (total_weight <= 2 ^ (p - b.+1))%N ->
  lift (\sum_(i in contributors) element ((weight i)%:Z * code i))
  = \sum_(i in contributors) (weight i)%:Z * code i.
Proof.
move=> in_range narrow fits.
have halfE : half = (2 ^ (p - b.+1) * 2 ^ b)%N by rewrite -expnD subSS subnK.
have scaled : (total_weight * 2 ^ b <= half)%N by rewrite halfE leq_mul2r fits orbT.
have pos : (0 < 2 ^ b)%N by rewrite expn_gt0.
have half_pos : (0 < half)%N by rewrite expn_gt0.
apply: (@sums_within_capacity_are_exact (- (2 ^ b)%N%:Z) ((2 ^ b)%N%:Z - 1)) => [i /in_range||].
- by lia.
- by lia.
by case: (posnP total_weight) => [-> | some]; lia.
Qed.
End Capacity.

(* modulus_bits_for: bits + ceil(log2 of the total weight) is within capacity ...     *)
Theorem modulus_bits_suffice (client : finType) (contributors : {set client})
    (weight : client -> nat) (code : client -> int) b :
  (forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z) ->
  (b.+1 + up_log 2 (\sum_(i in contributors) weight i) <= p)%N ->
  lift (\sum_(i in contributors) element ((weight i)%:Z * code i))
  = \sum_(i in contributors) (weight i)%:Z * code i.
Proof.
move=> in_range wide; apply: (capacity_suffices in_range); first by move: wide; rewrite /p; lia.
by apply: leq_trans (up_logP _ (ltnSn 1)) _; rewrite leq_exp2l //; lia.
Qed.

(* ... and one unit of weight more than the capacity can go wrong.                    *)
Theorem capacity_is_tight (client : finType) (contributors : {set client})
    (weight : client -> nat) b : (b <= below)%N ->
  (2 ^ (p - b.+1) < \sum_(i in contributors) weight i)%N ->
  exists2 code : client -> int,
    (forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z)
    & lift (\sum_(i in contributors) element ((weight i)%:Z * code i))
      != \sum_(i in contributors) (weight i)%:Z * code i.
Proof.
move=> narrow over; exists (fun=> - (2 ^ b)%N%:Z) => [i _|].
  by have : (0 < 2 ^ b)%N; rewrite ?expn_gt0 //; lia.
have /andP[low _] := lift_range (\sum_(i in contributors) element ((weight i)%:Z * - (2 ^ b)%N%:Z)).
move: low; set lifted := lift _ => low; apply/eqP => same; move: low; rewrite {}same.
rewrite -mulr_suml -(big_morph Posz PoszD (erefl _)).
have -> : half = (2 ^ (p - b.+1) * 2 ^ b)%N by rewrite -expnD subSS subnK.
have : (0 < 2 ^ b)%N by rewrite expn_gt0.
by move: (\sum_(i in _) _)%N (2 ^ _)%N (2 ^ b)%N over => W k B; nia.
Qed.
End Ring.

(* --- What decoders do with an exact sum -------------------------------------- *)

(* The contract: a decoder is additive in the summed codes; what it adds for a      *)
(* zero point, it adds once for each unit of weight.                                 *)
Section Decoders.
Variables (client : finType) (contributors : {set client}) (weight : client -> nat).
Let total_weight := (\sum_(i in contributors) weight i)%N.

Section Affine.
Variables (V W : zmodType) (linear : {additive V -> W}) (offset : W) (payload : client -> V).
Definition decode_affine (total : nat) v := linear v + offset *+ total.
Theorem affine_decoders_commute_with_sums :
  decode_affine total_weight (\sum_(i in contributors) payload i *+ weight i)
  = \sum_(i in contributors) decode_affine 1 (payload i) *+ weight i.
Proof.
rewrite /decode_affine raddf_sum -sumrMnr -big_split; apply: eq_bigr => i _ /=.
by rewrite mulr1n raddfMn mulrnDl.
Qed.
End Affine.

(* ScalarQuantization: the code q stands for s (q - z); a sum S of total weight W is *)
(* decoded as s (S - z W). In every commutative ring: for the reals that are meant,   *)
(* and in floats as far as they are exact (compression/scalar_quantization.py, whose  *)
(* capacity keeps S - z W exact and leaves one rounded multiplication).                *)
Section Scalar.
Variables (R : comRingType) (step : R) (zero_point : int).
Definition dequantize (code : int) : R := step * (code - zero_point)%:~R.
Definition decode_sum (sum : int) (total : nat) : R := step * (sum - zero_point * total%:Z)%:~R.
Theorem scalar_sums_decode (code : client -> int) :
  decode_sum (\sum_(i in contributors) (weight i)%:Z * code i) total_weight
  = \sum_(i in contributors) dequantize (code i) *+ weight i.
Proof.
rewrite /decode_sum /dequantize /total_weight (big_morph Posz PoszD (erefl _)).
rewrite mulr_sumr -sumrB rmorph_sum /= mulr_sumr; apply: eq_bigr => i _.
rewrite -mulrnAr; congr (_ * _).
by rewrite [zero_point * _]mulrC -mulrBr rmorphM /= -pmulrn mulr_natl.
Qed.
End Scalar.

(* ProductQuantization: sums of looked-up codewords are a function of the histogram.   *)
Section Histogram.
Variables (index : finType) (W : zmodType) (codeword : index -> W) (assignment : client -> index).
Definition histogram r := (\sum_(i in contributors | assignment i == r) weight i)%N.
Theorem histograms_decode :
  \sum_(i in contributors) codeword (assignment i) *+ weight i = \sum_r codeword r *+ histogram r.
Proof.
rewrite (partition_big assignment xpredT) //=; apply: eq_bigr => r _.
by rewrite /histogram -sumrMnr; apply: eq_bigr => i /andP[_ /eqP ->].
Qed.
End Histogram.
End Decoders.

(* --- End to end ---------------------------------------------------------------- *)
(* Quantized, weighted, masked, some dropped, unmasked, lifted, decoded: the sum of   *)
(* the contributors' dequantized updates, each as often as its weight says.            *)
Section EndToEnd.
Variables (below b : nat) (client : finType) (neighbour : rel client).
Notation G := 'Z_(2 ^ below.+1).
Variables (pairwise_mask : client -> client -> G) (self_mask : client -> G).
Variables (sharers contributors : {set client}) (weight : client -> nat) (code : client -> int).
Hypotheses (neighbour_sym : symmetric neighbour) (neighbour_irr : irreflexive neighbour).
Hypothesis pairwise_mask_anti : forall i j, pairwise_mask j i = - pairwise_mask i j.
Hypothesis contributors_shared : contributors \subset sharers.
Hypothesis in_range :
  forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z.
Hypothesis narrow : (b <= below)%N.
Hypothesis fits : (\sum_(i in contributors) weight i <= 2 ^ (below.+1 - b.+1))%N.
Variables (R : comRingType) (step : R) (zero_point : int).

Theorem masked_sums_decode :
  decode_sum step zero_point
    (lift (unmasked_sum neighbour pairwise_mask
             (fun i => element below ((weight i)%:Z * code i)) self_mask sharers contributors))
    (\sum_(i in contributors) weight i)
  = \sum_(i in contributors) dequantize step zero_point (code i) *+ weight i.
Proof. by rewrite dropout_recovery // (capacity_suffices in_range) // scalar_sums_decode. Qed.
End EndToEnd.
