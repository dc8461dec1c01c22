(* A reference for arithmetic modulo a prime: dealing, interpolating and decoding by  *)
(* the plainest means, over any operations, and proved to be what polynomials over the *)
(* field are. Extracted for the integers modulo p and compared with the library's own   *)
(* (proofs/reference).                                                                  *)
From Coq Require Import ZArith.
From mathcomp Require Import all_ssreflect all_algebra zify ssrZ.
Require Import shamir.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* All ways to keep so many of a sequence, in order.                                    *)
Fixpoint choose (T : Type) (kept : nat) (s : seq T) : seq (seq T) :=
  match kept, s with
  | 0, _ => [:: [::]]
  | _.+1, [::] => [::]
  | kept'.+1, x :: s' => [seq x :: rest | rest <- choose kept' s'] ++ choose kept s'
  end.

Lemma choose_map (T U : Type) (f : T -> U) kept s : choose kept (map f s) = map (map f) (choose kept s).
Proof.
elim: s kept => [|x s IH] [|kept] //=.
by rewrite !IH map_cat -!map_comp; congr (_ ++ _); apply: eq_map.
Qed.

Lemma choose_sub (T : eqType) kept (s rest : seq T) :
  rest \in choose kept s -> subseq rest s /\ size rest = kept.
Proof.
elim: s kept rest => [|x s IH] [|kept] rest //=; try by rewrite inE => /eqP ->.
rewrite mem_cat => /orP[/mapP[rest' /IH[sub <-] ->] | /IH[sub <-]]; first by rewrite eqxx.
by split=> //; exact: (subseq_trans sub (subseq_cons s x)).
Qed.

Lemma sub_choose (T : eqType) (s rest : seq T) : subseq rest s -> rest \in choose (size rest) s.
Proof.
elim: s rest => [|x s IH] [|y rest] //=; rewrite mem_cat; case: eqP => [-> /IH sub|_ /IH ->].
  by rewrite map_f.
by rewrite orbT.
Qed.

Section Reference.
Variables (T : Type) (zero one : T) (add sub mul : T -> T -> T) (inverse : T -> T) (same : T -> T -> bool).

Definition combine (weights values : seq T) : T :=
  foldr (fun pair total => add (mul pair.1 pair.2) total) zero (zip weights values).
Definition product (factors : seq T) : T := foldr mul one factors.

(* By which a polynomial's values at the points give its value at x.                      *)
Definition weight (points : seq T) (x a : T) : T :=
  let others := [seq c <- points | ~~ same c a] in
  mul (product [seq sub x c | c <- others]) (inverse (product [seq sub a c | c <- others])).
Definition weights (points : seq T) (x : T) : seq T := [seq weight points x a | a <- points].

(* The values at 1, 2, ... of the sum of c_k binomial(x, k), by Pascal's rule.             *)
Definition next_row (row : seq T) : seq T := [seq add pair.1 pair.2 | pair <- zip row (zero :: row)].
Fixpoint dealt (coefficients row : seq T) (holders : nat) : seq T :=
  if holders is holders'.+1 then
    let next := next_row row in combine next coefficients :: dealt coefficients next holders'
  else [::].
Definition deal (coefficients : seq T) (holders : nat) : seq T :=
  dealt coefficients [seq (if k == 0%N then one else zero) | k <- iota 0 (size coefficients)] holders.

(* The weights of every so many points, at all points and at the targets.                   *)
Definition plan (threshold : nat) (points targets : seq T) : seq (seq (seq T) * seq (seq T)) :=
  [seq ([seq weights chosen x | x <- points], [seq weights chosen x | x <- targets])
  | chosen <- choose threshold points].

(* Of every so many values: which values lie off the polynomial through these, and its values *)
(* at the targets. The first polynomial with at most so many values off it is the result.    *)
Definition off (expected values : seq T) : seq bool :=
  [seq ~~ same pair.1 pair.2 | pair <- zip expected values].
Fixpoint first_within (radius : nat) (values : seq T)
    (tried : seq ((seq (seq T) * seq (seq T)) * seq T)) : option (seq bool * seq T) :=
  if tried is (tables, chosen) :: rest then
    let wrong := off [seq combine w chosen | w <- tables.1] values in
    if (count id wrong <= radius)%N then Some (wrong, [seq combine w chosen | w <- tables.2])
    else first_within radius values rest
  else None.
Definition decode (threshold radius : nat) (planned : seq (seq (seq T) * seq (seq T))) (values : seq T) :=
  first_within radius values (zip planned (choose threshold values)).
End Reference.

Section Correctness.
Variables (T : eqType) (zero one : T) (add sub mul : T -> T -> T) (inverse : T -> T) (same : T -> T -> bool).
Variables (F : fieldType) (value : T -> F).
Hypothesis value_zero : value zero = 0.
Hypothesis value_one : value one = 1.
Hypothesis value_add : forall a b, value (add a b) = value a + value b.
Hypothesis value_sub : forall a b, value (sub a b) = value a - value b.
Hypothesis value_mul : forall a b, value (mul a b) = value a * value b.
Hypothesis value_inverse : forall a, value (inverse a) = (value a)^-1.
Hypothesis value_same : forall a b, same a b = (value a == value b).
Local Notation combine := (combine zero add mul).
Local Notation weights := (weights one sub mul inverse same).
Local Notation decode := (decode zero add mul same).
Local Notation plan := (plan one sub mul inverse same).
Implicit Types (p q : {poly F}) (points values : seq T).

Lemma combine_map (A : Type) (f : A -> T) (g : A -> F) (s : seq A) values :
  map value values = [seq g a | a <- s] ->
  value (combine [seq f a | a <- s] values) = \sum_(a <- s) value (f a) * g a.
Proof.
rewrite /reference.combine; elim: s values => [|a s IH] [|v values] //=; first by rewrite big_nil.
by case=> first /IH rest; rewrite value_add value_mul rest first big_cons.
Qed.

Lemma weight_basis points x a : uniq (map value points) ->
  value (weight one sub mul inverse same points x a) = (basis (map value points) (value a)).[value x].
Proof.
move=> distinct; rewrite /weight /basis value_mul value_inverse hornerZ mulrC rem_filter //.
have others y : value (product one mul [seq sub y c | c <- [seq c <- points | ~~ same c a]])
    = \prod_(c <- [seq c <- map value points | c != value a]) (value y - c).
  rewrite big_filter big_map /product; elim: points {distinct} => [|c points IH] /=; first by rewrite big_nil.
  by rewrite big_cons -IH value_same; case: ifP => //= _; rewrite value_mul value_sub.
by rewrite !others horner_prod; congr (_ * _); apply: eq_bigr => c _; rewrite hornerXsubC.
Qed.

(* A polynomial's values at enough points give its value anywhere.                         *)
Theorem reference_interpolates points values x p :
  uniq (map value points) -> (size p <= size points)%N ->
  map value values = [seq p.[value a] | a <- points] ->
  value (combine (weights points x) values) = p.[value x].
Proof.
move=> distinct small same_values; rewrite /reference.weights (combine_map _ same_values).
have -> : p.[value x] = (interpolate (map value points) (fun a => p.[a])).[value x].
  by rewrite -interpolate_unique ?size_map.
rewrite /interpolate horner_sum big_map.
by apply: eq_bigr => a _; rewrite weight_basis // hornerZ mulrC.
Qed.

Lemma interpolating points values : uniq (map value points) -> size values = size points ->
  exists2 p : {poly F}, (size p <= size points)%N & map value values = [seq p.[value a] | a <- points].
Proof.
move=> distinct sizes; pose share b := nth 0 (map value values) (index b (map value points)).
exists (interpolate (map value points) share).
  by apply: leq_trans (size_interpolate _ distinct) _; rewrite size_map.
apply: (@eq_from_nth _ 0) => [|i]; rewrite !size_map // => i_lt.
have i_lt' : (i < size points)%N by rewrite -sizes.
have b : T by move: {+}values i_lt => [|b].
rewrite (nth_map b) // (nth_map b) // interpolate_at ?map_f ?mem_nth // /share.
have -> : value (nth b points i) = nth 0 (map value points) i by rewrite (nth_map b).
by rewrite index_uniq ?size_map // (nth_map b).
Qed.

Definition errors p (pairs : seq (T * T)) : seq bool := [seq p.[value pair.1] != value pair.2 | pair <- pairs].

Lemma agreeing p pairs : 
  size [seq pair <- pairs | p.[value pair.1] == value pair.2] = (size pairs - count id (errors p pairs))%N.
Proof.
rewrite size_filter /errors count_map -(count_predC (fun pair => p.[value pair.1] == value pair.2) pairs).
by rewrite addnK.
Qed.

Lemma through_errors p pairs :
  map value (unzip2 pairs) = [seq p.[value a] | a <- unzip1 pairs] -> count id (errors p pairs) = 0%N.
Proof. by elim: pairs => //= [[a b]] pairs IH [-> /IH ->]; rewrite eqxx. Qed.

Lemma unique_within (t radius : nat) pairs p q : uniq (map value (unzip1 pairs)) ->
  (size p <= t)%N -> (size q <= t)%N -> (t + radius.*2 <= size pairs)%N ->
  (count id (errors p pairs) <= radius)%N -> (count id (errors q pairs) <= radius)%N -> p = q.
Proof.
move=> distinct p_small q_small enough p_near q_near; apply/eqP; rewrite -subr_eq0; apply/eqP.
pose both (pair : T * T) := (p.[value pair.1] == value pair.2) && (q.[value pair.1] == value pair.2).
apply: (@roots_geq_poly_eq0 _ _ (map value (unzip1 [seq pair <- pairs | both pair]))).
- apply/allP => _ /mapP[_ /mapP[pair pair_in ->] ->]; move: pair_in.
  by rewrite mem_filter rootE hornerD hornerN => /andP[/andP[/eqP -> /eqP ->] _]; rewrite subrr.
- apply: subseq_uniq distinct; do 2 apply: map_subseq; exact: filter_subseq.
apply: (@leq_trans t); first by apply: leq_trans (size_add _ _) _; rewrite geq_max size_opp p_small.
rewrite !size_map size_filter; have := count_predC both pairs.
have : (count (predC both) pairs <= count id (errors p pairs) + count id (errors q pairs))%N.
  rewrite /errors !count_map -count_predUI; apply: leq_trans (leq_addr _ _).
  by apply: sub_count => pair; rewrite /= /both negb_and.
by rewrite -[count [eta both] pairs]/(count both pairs); lia.
Qed.

Lemma zip_maps (A B C : Type) (f : A -> B) (g : A -> C) s : zip (map f s) (map g s) = [seq (f a, g a) | a <- s].
Proof. by elim: s => //= a s ->. Qed.

Lemma zip_map_left (A B C : Type) (f : A -> B) (s : seq A) (v : seq C) :
  zip (map f s) v = [seq (f pair.1, pair.2) | pair <- zip s v].
Proof. by elim: s v => [|a s IH] [|c v] //=; rewrite IH. Qed.

Lemma first_within_from radius values tried found :
  first_within zero add mul same radius values tried = Some found ->
  exists2 item, item \in tried &
    found = (off same [seq combine w item.2 | w <- item.1.1] values, [seq combine w item.2 | w <- item.1.2])
    /\ (count id found.1 <= radius)%N.
Proof.
elim: tried => //= [[tables chosen]] tried IH; case: ifP => [near [<-]|_ /IH[item item_in result]].
  by exists (tables, chosen); rewrite ?mem_head.
by exists item; rewrite // inE item_in orbT.
Qed.

Lemma first_within_some radius values tried item : item \in tried ->
  (count id (off same [seq combine w item.2 | w <- item.1.1] values) <= radius)%N ->
  first_within zero add mul same radius values tried <> None.
Proof.
move=> + near; elim: tried => //= [[tables chosen]] tried IH; rewrite inE => /orP[/eqP at_first|/IH].
  by rewrite at_first /= in near; rewrite near.
by case: ifP.
Qed.

(* The decoder gives the one polynomial of few enough coefficients that all but so many of  *)
(* the values lie on, tells which ones do not, and gives nothing if there is none.            *)
Section Decoding.
Variables (t radius : nat) (points targets values : seq T).
Hypothesis distinct : uniq (map value points).
Hypothesis sizes : size values = size points.
Hypothesis enough : (t + radius.*2 <= size points)%N.
Let pairs := zip points values.
Let planned := plan t points targets.

Lemma tried_pairs : zip planned (choose t values) =
  [seq (([seq weights (unzip1 chosen) x | x <- points], [seq weights (unzip1 chosen) x | x <- targets]), unzip2 chosen)
  | chosen <- choose t pairs].
Proof.
have on_points : choose t points = map unzip1 (choose t pairs).
  by rewrite -(choose_map fst) -/(unzip1 _) unzip1_zip ?sizes.
have on_values : choose t values = map unzip2 (choose t pairs).
  by rewrite -(choose_map snd) -/(unzip2 _) unzip2_zip ?sizes.
by rewrite /planned /reference.plan on_points on_values -map_comp zip_maps.
Qed.

Lemma chosen_polynomial chosen : chosen \in choose t pairs ->
  exists2 p : {poly F}, (size p <= t)%N &
    (forall x, value (combine (weights (unzip1 chosen) x) (unzip2 chosen)) = p.[value x])
    /\ count id (errors p chosen) = 0%N.
Proof.
case/choose_sub=> part <-.
have chosen_distinct : uniq (map value (unzip1 chosen)).
  apply: subseq_uniq distinct; apply: map_subseq; rewrite -(unzip1_zip (s := points) (t := values)) ?sizes //.
  exact: map_subseq.
have same_sizes : size (unzip2 chosen) = size (unzip1 chosen) by rewrite !size_map.
have [p small through] := interpolating chosen_distinct same_sizes.
exists p; first by move: small; rewrite size_map.
by split=> [x|]; [apply: reference_interpolates | apply: through_errors].
Qed.

Lemma off_errors p (f : T -> T) : (forall x, value (f x) = p.[value x]) ->
  off same (map f points) values = errors p pairs.
Proof.
by move=> fits; rewrite /off zip_map_left -map_comp; apply: eq_map => pair /=; rewrite value_same fits.
Qed.

Theorem reference_decodes p : (size p <= t)%N -> (count id (errors p pairs) <= radius)%N ->
  exists2 found, decode t radius planned values = Some (errors p pairs, found)
    & map value found = [seq p.[value x] | x <- targets].
Proof.
move=> small near; rewrite /reference.decode tried_pairs.
set tried := map _ _; case result: (first_within _ _ _ _ _ _ _) => [found|].
  have [item /mapP[chosen chosen_in ->] [same_found found_near]] := first_within_from result.
  have [q q_small [fits _]] := chosen_polynomial chosen_in.
  move: same_found found_near => -> /=; rewrite -!map_comp (off_errors fits) => q_near.
  have -> : p = q.
    by apply: (@unique_within t radius pairs) => //; rewrite ?unzip1_zip ?size_zip ?sizes ?minnn.
  exists [seq combine (weights (unzip1 chosen) x) (unzip2 chosen) | x <- targets] => //.
  by rewrite -map_comp; apply: eq_map.
pose agreed := [seq pair <- pairs | p.[value pair.1] == value pair.2].
have agreed_size : (t <= size agreed)%N.
  by rewrite agreeing size_zip sizes minnn; move: near enough; rewrite -/pairs; lia.
have chosen_in : take t agreed \in choose t pairs.
  have := @sub_choose _ pairs (take t agreed); rewrite size_takel //; apply.
  exact: subseq_trans (take_subseq _ _) (filter_subseq _ _).
have [q q_small [fits through]] := chosen_polynomial chosen_in.
have same_polynomial : q = p.
  apply: (@unique_within t 0 (take t agreed)); rewrite ?size_takel ?addn0 ?through //.
    apply: subseq_uniq distinct; apply: map_subseq; rewrite -(unzip1_zip (s := points) (t := values)) ?sizes //.
    by apply: map_subseq; apply: subseq_trans (take_subseq _ _) (filter_subseq _ _).
  rewrite leqNgt /errors count_map -has_count; apply/hasPn => pair /mem_take.
  by rewrite mem_filter => /andP[agree _]; rewrite /= negbK.
have [] := first_within_some (map_f _ chosen_in) _ result.
by rewrite /= -map_comp (off_errors fits) same_polynomial.
Qed.

Theorem reference_decodes_only wrong found : decode t radius planned values = Some (wrong, found) ->
  exists2 p : {poly F}, (size p <= t)%N & [/\ wrong = errors p pairs, (count id wrong <= radius)%N
    & map value found = [seq p.[value x] | x <- targets]].
Proof.
rewrite /reference.decode tried_pairs => /first_within_from[item /mapP[chosen chosen_in ->] /= [result near]].
have [q q_small [fits _]] := chosen_polynomial chosen_in.
exists q => //; case: result near => -> ->; rewrite -!map_comp (off_errors fits) => near.
by split=> //; apply: eq_map => x /=; rewrite fits.
Qed.
End Decoding.

(* The polynomial that binomial(x, k) is.                                                  *)
Definition binomial (k : nat) : {poly F} := (k`!%:R)^-1 *: \prod_(0 <= i < k) ('X - i%:R%:P).

Lemma falling x k : \prod_(0 <= i < k) ((x%:R : F) - i%:R) = (x ^_ k)%:R.
Proof.
elim: k => [|k IH]; first by rewrite big_nil.
rewrite big_nat_recr //= IH ffactnSr natrM; case: (leqP k x) => [le|lt]; first by rewrite natrB.
by rewrite ffact_small // mul0r mul0r.
Qed.

Lemma binomial_at x k : (k`!%:R : F) != 0 -> (binomial k).[x%:R] = 'C(x, k)%:R.
Proof.
move=> invertible; rewrite /binomial hornerZ horner_prod.
under eq_bigr do rewrite hornerXsubC.
by rewrite falling -bin_ffact natrM mulrCA mulVf // mulr1.
Qed.

Lemma size_binomial k : (size (binomial k) <= k.+1)%N.
Proof. by apply: leq_trans (size_scale_leq _ _) _; rewrite size_prod_XsubC size_iota subn0. Qed.

Lemma next_row_binomial n x row : map value row = [seq 'C(x, k)%:R | k <- iota 0 n] ->
  map value (next_row zero add row) = [seq 'C(x.+1, k)%:R | k <- iota 0 n].
Proof.
move=> is_row; have row_size : size row = n by rewrite -(size_map value) is_row size_map size_iota.
have at_row i : (i < n)%N -> value (nth zero row i) = 'C(x, i)%:R.
  move=> i_lt; rewrite -(nth_map zero 0) ?row_size // is_row.
  by rewrite (nth_map 0%N) ?size_iota // nth_iota.
have zip_size : size (zip row (zero :: row)) = n by rewrite size_zip /= row_size; lia.
apply: (@eq_from_nth _ 0) => [|i]; rewrite !size_map zip_size ?size_iota // => i_lt.
rewrite -map_comp (nth_map (zero, zero)) ?zip_size // (nth_map 0%N) ?size_iota // nth_iota //.
rewrite nth_zip_cond zip_size i_lt /= value_add at_row // add0n.
case: i i_lt => [|i] i_lt /=; first by rewrite value_zero addr0 !bin0.
by rewrite at_row ?binS ?natrD //; lia.
Qed.

(* Dealing gives values of one polynomial, whose value at zero is the first coefficient.   *)
Theorem reference_deals coefficients holders :
  (forall k, (k < size coefficients)%N -> (k`!%:R : F) != 0) ->
  exists2 p : {poly F}, (size p <= size coefficients)%N & p.[0] = value (nth zero coefficients 0)
    /\ map value (deal zero one add mul coefficients holders) = [seq p.[x%:R] | x <- iota 1 holders].
Proof.
move=> invertible; set n := size coefficients.
pose p : {poly F} := \sum_(k < n) value (nth zero coefficients k) *: binomial k.
have p_at x : p.[x%:R] = \sum_(k < n) 'C(x, k)%:R * value (nth zero coefficients k).
  by rewrite horner_sum; apply: eq_bigr => k _; rewrite hornerZ binomial_at ?invertible // mulrC.
exists p.
  apply: leq_trans (size_sum _ _ _) _; apply/bigmax_leqP => k _.
  by apply: leq_trans (size_scale_leq _ _) (leq_trans (size_binomial k) _).
split.
  have -> : p.[0] = if n is 0 then 0 else value (nth zero coefficients 0).
    rewrite -[0]/(0%:R) p_at; case: (n) => [|n']; first by rewrite big_ord0.
    by rewrite big_ord_recl big1 ?bin0 ?mul1r ?addr0 // => k _; rewrite bin0n mul0r.
  by rewrite /n; case: (coefficients) => //=; rewrite value_zero.
have value_coefficients : map value coefficients = [seq value (nth zero coefficients k) | k <- iota 0 n].
  by rewrite -[in LHS](mkseq_nth zero coefficients) /mkseq -map_comp.
have from_row h x row : map value row = [seq 'C(x, k)%:R | k <- iota 0 n] ->
    map value (dealt zero add mul coefficients row h) = [seq p.[y%:R] | y <- iota x.+1 h].
  elim: h x row => //= h IH x row /next_row_binomial is_next; rewrite (IH x.+1) // p_at; congr (_ :: _).
  have next_size : size (next_row zero add row) = n by rewrite -(size_map value) is_next size_map size_iota.
  rewrite -[next_row zero add row](mkseq_nth zero) next_size /mkseq (combine_map _ value_coefficients).
  have -> : iota 0 n = index_iota 0 n by rewrite /index_iota subn0.
  rewrite big_mkord; apply: eq_bigr => k _; congr (_ * _).
  rewrite -(nth_map zero 0) ?next_size // is_next (nth_map 0%N) ?size_iota // nth_iota //.
apply: from_row; rewrite -map_comp; apply: eq_map => k /=; rewrite bin0n.
by case: k => [|k] /=; rewrite ?value_one ?value_zero.
Qed.
End Correctness.

(* --- Uniform coefficients of binomial(x, k) hide as much as those of powers of x ----------- *)

Section BinomialPrivacy.
Variables (F : finFieldType) (t : nat).
Hypothesis invertible : forall k, (k < t)%N -> (k`!%:R : F) != 0.
Definition binomial_sharing (c : 'rV[F]_t) : {poly F} := \sum_(k < t) c 0 k *: binomial F k.

Lemma binomial_sharing_rV c : rVpoly (poly_rV (binomial_sharing c) : 'rV_t) = binomial_sharing c.
Proof.
apply: poly_rV_K; apply: leq_trans (size_sum _ _ _) _; apply/bigmax_leqP => k _.
by apply: leq_trans (size_scale_leq _ _) (leq_trans (size_binomial F k) _).
Qed.

Lemma binomial_sharing_inj : injective (fun c => poly_rV (binomial_sharing c) : 'rV_t).
Proof.
move=> c d /(congr1 (@rVpoly _ _)); rewrite !binomial_sharing_rV => same; apply/rowP => k.
have at_point (e : 'rV[F]_t) x : (binomial_sharing e).[x%:R] = \sum_(j < t) e 0 j * 'C(x, j)%:R.
  by rewrite horner_sum; apply: eq_bigr => j _; rewrite hornerZ binomial_at ?invertible.
have [n n_k] := ubnP (k : nat); elim: n k n_k => // n IH k k_n.
have := congr1 (fun p : {poly F} => p.[k%:R]) same; rewrite /= !at_point (bigD1 k) //= [in RHS](bigD1 k) //=.
rewrite binn !mulr1; rewrite (eq_bigr (fun j : 'I_t => d 0 j * 'C(k, j)%:R)) => [/addIr //|j other].
case: (ltngtP j k) => [below|above|same_k].
- by rewrite IH //; apply: leq_trans below _; rewrite -ltnS.
- by rewrite bin_small // !mulr0.
- by case/eqP: other; apply: val_inj.
Qed.

Theorem binomial_coefficients_hide holders (share : F -> F) secret secret' :
  uniq (0 :: holders) -> (size holders < t)%N ->
  #|[set c : 'rV[F]_t | ((binomial_sharing c).[0] == secret)
      && all (fun a => (binomial_sharing c).[a] == share a) holders]|
  = #|[set c : 'rV[F]_t | ((binomial_sharing c).[0] == secret')
      && all (fun a => (binomial_sharing c).[a] == share a) holders]|.
Proof.
move=> distinct few; pose turned (c : 'rV[F]_t) : 'rV_t := poly_rV (binomial_sharing c).
have moved z : #|[set c : 'rV[F]_t | ((binomial_sharing c).[0] == z)
      && all (fun a => (binomial_sharing c).[a] == share a) holders]|
    = #|[set c : 'rV[F]_t | explains holders share z c]|.
  rewrite -(card_imset _ binomial_sharing_inj); apply: eq_card => c; rewrite inE.
  have [back turnedK backK] := injF_bij binomial_sharing_inj; apply/imsetP/idP => [[d]|explained].
    by rewrite inE => fits ->; rewrite /explains binomial_sharing_rV.
  by exists (back c); rewrite ?backK // inE -binomial_sharing_rV backK.
by rewrite !moved; apply: too_few_shares_hide.
Qed.
End BinomialPrivacy.

(* --- The integers modulo a prime ---------------------------------------------------------- *)

Lemma power_inverse (F : finFieldType) (order : nat) (x : F) :
  #|F| = order -> (2 < order)%N -> x ^+ (order - 2) = x^-1.
Proof.
move=> is_order two; have [->|nonzero] := eqVneq x 0.
  by rewrite invr0 expr0n subn_eq0 leqNgt two.
have fermat : x ^+ order.-1 = 1.
  have all_nonzero : \prod_(y : F | y != 0) y != 0 by apply/prodf_neq0.
  apply: (mulIf all_nonzero); rewrite mul1r [RHS](reindex_inj (mulfI nonzero)).
  under [RHS]eq_bigl do rewrite mulf_eq0 (negbTE nonzero).
  by rewrite big_split prodr_const /= -is_order cardC1.
apply: (mulIf nonzero); rewrite mulVf // -exprSr -fermat; congr (_ ^+ _); lia.
Qed.

Section Modulo.
Variable p : Z.
Definition add_modulo (a b : Z) : Z := Z.modulo (Z.add a b) p.
Definition sub_modulo (a b : Z) : Z := Z.modulo (Z.sub a b) p.
Definition mul_modulo (a b : Z) : Z := Z.modulo (Z.mul a b) p.
Definition same_modulo (a b : Z) : bool := Z.eqb (Z.modulo a p) (Z.modulo b p).
Fixpoint power_modulo (a : Z) (e : positive) : Z :=
  match e with
  | xH => a
  | xO e' => let root := power_modulo a e' in mul_modulo root root
  | xI e' => let root := power_modulo a e' in mul_modulo a (mul_modulo root root)
  end.
Definition inverse_modulo (a : Z) : Z := power_modulo a (Z.to_pos (Z.sub p 2)).

Hypothesis p_prime : prime (Z.to_nat p).
Hypothesis p_odd : (2 < Z.to_nat p)%N.
Definition residue (a : Z) : 'F_(Z.to_nat p) := (int_of_Z a)%:~R.

Lemma residueD a b : residue (Z.add a b) = residue a + residue b.
Proof. by rewrite /residue (_ : int_of_Z (Z.add a b) = int_of_Z a + int_of_Z b) ?rmorphD //; lia. Qed.

Lemma residueM a b : residue (Z.mul a b) = residue a * residue b.
Proof. by rewrite /residue (_ : int_of_Z (Z.mul a b) = int_of_Z a * int_of_Z b) ?rmorphM //; lia. Qed.

Lemma residueN a : residue (Z.opp a) = - residue a.
Proof. by rewrite /residue (_ : int_of_Z (Z.opp a) = - int_of_Z a) ?rmorphN //; lia. Qed.

Lemma residue_p : residue p = 0.
Proof.
rewrite /residue (_ : int_of_Z p = (Z.to_nat p)%:Z); last by lia.
exact: char_Fp_0.
Qed.

Lemma residue_mod a : residue (Z.modulo a p) = residue a.
Proof.
rewrite [in RHS](Z.div_mod a p); last by lia.
by rewrite residueD residueM residue_p mul0r add0r.
Qed.

Lemma residue_add a b : residue (add_modulo a b) = residue a + residue b.
Proof. by rewrite residue_mod residueD. Qed.

Lemma residue_sub a b : residue (sub_modulo a b) = residue a - residue b.
Proof. by rewrite residue_mod -Z.add_opp_r residueD residueN. Qed.

Lemma residue_mul a b : residue (mul_modulo a b) = residue a * residue b.
Proof. by rewrite residue_mod residueM. Qed.

Lemma residue_power a e : residue (power_modulo a e) = residue a ^+ Pos.to_nat e.
Proof.
elim: e => [e IH|e IH|] //=; rewrite ?residue_mul IH.
- by rewrite (_ : Pos.to_nat e~1 = (Pos.to_nat e + Pos.to_nat e).+1) ?exprS ?exprD //; lia.
- by rewrite (_ : Pos.to_nat e~0 = (Pos.to_nat e + Pos.to_nat e)%N) ?exprD //; lia.
Qed.

Lemma residue_inverse a : residue (inverse_modulo a) = (residue a)^-1.
Proof.
rewrite /inverse_modulo residue_power -(@power_inverse _ (Z.to_nat p)) ?card_Fp //.
by congr (_ ^+ _); lia.
Qed.

Lemma residue_small a : Z.le 0 a -> Z.lt a p -> residue a = (Z.to_nat a)%:R.
Proof. by move=> ? ?; rewrite /residue (_ : int_of_Z a = (Z.to_nat a)%:Z) //; lia. Qed.

Lemma residue_same a b : same_modulo a b = (residue a == residue b).
Proof.
rewrite /same_modulo -(residue_mod a) -(residue_mod b).
have bound c : Z.le 0 (Z.modulo c p) /\ Z.lt (Z.modulo c p) p by apply: Z.mod_pos_bound; lia.
case: (bound a) (bound b); move: (Z.modulo a p) (Z.modulo b p) => c d c0 c1 [d0 d1].
apply/Z.eqb_spec/eqP => [-> //|].
rewrite !residue_small // => /(congr1 val); rewrite /= !val_Fp_nat // !modn_small; lia.
Qed.

(* The operations are those of the field, so that what is proved above holds of them.         *)
Theorem modulo_operations :
  [/\ residue 0 = 0, residue 1 = 1, forall a b, residue (add_modulo a b) = residue a + residue b
    & forall a b, residue (sub_modulo a b) = residue a - residue b]
  /\ [/\ forall a b, residue (mul_modulo a b) = residue a * residue b,
        forall a, residue (inverse_modulo a) = (residue a)^-1
      & forall a b, same_modulo a b = (residue a == residue b)].
Proof.
do 2 split=> //; first [exact: residue_add | exact: residue_sub | exact: residue_mul
  | exact: residue_inverse | exact: residue_same].
Qed.
End Modulo.

Theorem sharing_field_is_prime : prime (2 ^ 16 - 15).
Proof. by vm_compute. Qed.
