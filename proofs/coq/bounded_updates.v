(* Why one codeword a block bounds an update. A client's update decodes, up to a rotation   *)
(* and scales that are everybody's, to one codeword of each block; lanes that are unit      *)
(* vectors choose it, which the one-hot check of two servers enforces and indices have by   *)
(* themselves. Whatever a client chooses, its squared length is at most the sum of the      *)
(* blocks' largest; with codewords of norm 1 it is the number of blocks, always. Together   *)
(* a clients move the sum by at most a times the longest update.                            *)
From mathcomp Require Import all_ssreflect all_algebra.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import Order.POrderTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Bounded.
Variables (R : realDomainType) (blocks codewords width : nat).
Variable codeword : 'I_blocks -> 'I_codewords -> 'I_width -> R.

(* The value of one place of a block, from a client's lanes.                                *)
Definition decoded (lanes : 'I_blocks -> 'I_codewords -> R) b w := \sum_k lanes b k * codeword b k w.
Definition squared_length (update : 'I_blocks -> 'I_width -> R) := \sum_b \sum_w update b w ^+ 2.

Lemma chosen lanes b : (exists a, forall k, lanes b k = (k == a)%:R) ->
  exists a, forall w, decoded lanes b w = codeword b a w.
Proof.
move=> [a is_a]; exists a => w; rewrite /decoded (bigD1 a) //= is_a eqxx mul1r big1 ?addr0 //.
by move=> k /negPf other; rewrite is_a other mul0r.
Qed.

Theorem one_codeword_bounds_an_update (greatest : 'I_blocks -> R) lanes :
  (forall b k, \sum_w codeword b k w ^+ 2 <= greatest b) ->
  (forall b, exists a, forall k, lanes b k = (k == a)%:R) ->
  squared_length (decoded lanes) <= \sum_b greatest b.
Proof.
move=> bound units; apply: ler_sum => b _; have [a is_a] := chosen (units b).
by under eq_bigr do rewrite is_a.
Qed.

Theorem unit_codewords_fix_the_length lanes :
  (forall b k, \sum_w codeword b k w ^+ 2 = 1) ->
  (forall b, exists a, forall k, lanes b k = (k == a)%:R) ->
  squared_length (decoded lanes) = blocks%:R.
Proof.
move=> norm units; rewrite /squared_length -[in RHS](card_ord blocks) -sumr_const.
by apply: eq_bigr => b _; have [a is_a] := chosen (units b); under eq_bigr do rewrite is_a.
Qed.

Lemma square_of_a_sum (client : finType) (some : {set client}) (x : client -> R) :
  (\sum_(i in some) x i) ^+ 2 <= #|some|%:R * \sum_(i in some) x i ^+ 2.
Proof.
pose total := \sum_(i in some) x i; pose squares := \sum_(i in some) x i ^+ 2.
have inner i : \sum_(j in some) (x i - x j) ^+ 2 = x i ^+ 2 *+ #|some| - x i * total *+ 2 + squares.
  under eq_bigr do rewrite sqrrB.
  by rewrite big_split sumrB /= sumr_const sumrMnl -mulr_sumr.
have: 0 <= \sum_(i in some) \sum_(j in some) (x i - x j) ^+ 2.
  by apply: sumr_ge0 => i _; apply: sumr_ge0 => j _; apply: sqr_ge0.
under eq_bigr do rewrite inner.
rewrite big_split sumrB /= sumr_const !sumrMnl -mulr_suml -expr2 -/total -/squares.
rewrite addrAC -mulr2n -mulrnBl pmulrn_lge0 //. by rewrite subr_ge0 mulr_natl.
Qed.

Theorem attackers_move_a_sum_little (client : finType) (attackers : {set client})
    (lanes : client -> 'I_blocks -> 'I_codewords -> R) (greatest : R) :
  (forall b k, \sum_w codeword b k w ^+ 2 <= greatest) ->
  (forall i b, i \in attackers -> exists a, forall k, lanes i b k = (k == a)%:R) ->
  squared_length (fun b w => \sum_(i in attackers) decoded (lanes i) b w)
    <= #|attackers|%:R ^+ 2 * (blocks%:R * greatest).
Proof.
move=> bound units; rewrite /squared_length.
have step : \sum_b \sum_w (\sum_(i in attackers) decoded (lanes i) b w) ^+ 2
    <= #|attackers|%:R * \sum_(i in attackers) squared_length (decoded (lanes i)).
  have -> : \sum_(i in attackers) squared_length (decoded (lanes i))
      = \sum_b \sum_w \sum_(i in attackers) decoded (lanes i) b w ^+ 2.
    by rewrite /squared_length exchange_big; apply: eq_bigr => b _; rewrite exchange_big.
  rewrite mulr_sumr; apply: ler_sum => b _; rewrite mulr_sumr; apply: ler_sum => w _.
  exact: square_of_a_sum.
apply: (le_trans step); rewrite expr2 -mulrA; apply: ler_wpmul2l; first exact: ler0n.
rewrite mulr_natl -sumr_const; apply: ler_sum => i attacks.
apply: le_trans (one_codeword_bounds_an_update bound (fun b => units i b attacks)) _.
by rewrite sumr_const card_ord mulr_natl.
Qed.
End Bounded.
