(* Every theorem in full, on one page. A theory whose theorem says less than its     *)
(* statement here does not compile. Short definitions are written out; the others     *)
(* are uploads, noise, is_open, component_sum (masks.v), lift, element (ring.v),       *)
(* deal, combine, weights, plan, decode, add_modulo and the like (reference.v),        *)
(* generate_key, share (dpf.v), neighbours, ahead, behind (split.v), obligations, known, *)
(* joined, covered (quorum.v), transcript (transcripts.v), and those are what there is  *)
(* to read beside this page.                                                           *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require ssrZ.
Require masks shamir reference ring dpf one_hot split quorum transcripts one_sum one_answer bounded_updates.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* --- Masks -------------------------------------------------------------------- *)

Theorem dropout_recovery : forall (client : finType) (G : zmodType)
    (neighbour : rel client) (pairwise_mask : client -> client -> G),
  symmetric neighbour -> irreflexive neighbour ->
  (forall i j, pairwise_mask j i = - pairwise_mask i j) ->
  forall (input self_mask : client -> G) (sharers contributors : {set client}),
  contributors \subset sharers ->
  \sum_(i in contributors)
      (input i + self_mask i + \sum_(j in sharers | neighbour i j) pairwise_mask i j)
    - \sum_(i in contributors) self_mask i
    + \sum_(j in sharers :\: contributors) \sum_(i in contributors | neighbour j i) pairwise_mask j i
  = \sum_(i in contributors) input i.
Proof. exact: masks.dropout_recovery. Qed.

Theorem uploads_hide : forall (client : finType) (G : finZmodType) (joined : rel client)
    (covered : {set client}) (id : client -> nat),
  symmetric joined -> irreflexive joined -> injective id ->
  forall x x' : client -> G,
  (forall i, (forall d, d \in covered -> ~~ connect joined i d) ->
    \sum_(j | connect joined i j) x j = \sum_(j | connect joined i j) x' j) ->
  forall seen, #|[set s | masks.uploads joined covered id x s == seen]|
             = #|[set s | masks.uploads joined covered id x' s == seen]|.
Proof.
move=> client G joined covered id sym irr inj x x' same; apply: masks.uploads_hide => // i open_i.
by apply: same => d d_in; move/forallP/(_ d)/implyP: open_i => /(_ d_in).
Qed.

Theorem uploads_reveal : forall (client : finType) (G : finZmodType) (joined : rel client)
    (covered : {set client}) (id : client -> nat),
  symmetric joined -> irreflexive joined ->
  forall (x : client -> G) (s : masks.coins client G) (i : client),
  (forall d, d \in covered -> ~~ connect joined i d) ->
  \sum_(j | connect joined i j) masks.uploads joined covered id x s j
  = \sum_(j | connect joined i j) x j.
Proof.
move=> client G joined covered id sym irr x s i open_i; apply: masks.uploads_reveal => //.
by apply/forallP => d; apply/implyP => /open_i.
Qed.

Theorem full_graph_hides : forall (client : finType) (G : finZmodType) (id : client -> nat)
    (x x' : client -> G), injective id -> \sum_i x i = \sum_i x' i ->
  forall seen, #|[set s | masks.uploads (fun i j => i != j) set0 id x s == seen]|
             = #|[set s | masks.uploads (fun i j => i != j) set0 id x' s == seen]|.
Proof. exact: masks.full_graph_hides. Qed.

(* --- Secret sharing ------------------------------------------------------------- *)

Theorem shares_reconstruct : forall (F : fieldType) (points : seq F) (p : {poly F}),
  uniq (0 :: points) -> (size p <= size points)%N ->
  (- \prod_(c <- points) (- c))
    * (\sum_(a <- points) (a * \prod_(c <- rem a points) (a - c))^-1 * p.[a])
  = p.[0].
Proof. exact: shamir.shares_reconstruct. Qed.

Theorem syndromes_decide : forall (F : fieldType) (points : seq F) (share : F -> F) (t : nat),
  uniq (0 :: points) -> (t <= size points)%N ->
  (exists2 p : {poly F}, (size p <= t)%N & forall a, a \in points -> p.[a] = share a)
  <-> forall k, (0 < k <= size points - t)%N ->
      \sum_(a <- points) (a * \prod_(c <- rem a points) (a - c))^-1 * share a * a ^+ k = 0.
Proof. exact: shamir.syndromes_decide. Qed.

Theorem too_few_shares_hide : forall (F : finFieldType) (t : nat) (holders : seq F)
    (share : F -> F) (secret secret' : F),
  uniq (0 :: holders) -> (size holders < t)%N ->
  #|[set c : 'rV[F]_t | ((rVpoly c).[0] == secret)
      && all (fun a => (rVpoly c).[a] == share a) holders]|
  = #|[set c : 'rV[F]_t | ((rVpoly c).[0] == secret')
      && all (fun a => (rVpoly c).[a] == share a) holders]|.
Proof. exact: shamir.too_few_shares_hide. Qed.

Theorem binomial_coefficients_hide : forall (F : finFieldType) (t : nat),
  (forall k, (k < t)%N -> (k`!%:R : F) != 0) ->
  forall (holders : seq F) (share : F -> F) (secret secret' : F),
  uniq (0 :: holders) -> (size holders < t)%N ->
  let binomial k : {poly F} := (k`!%:R)^-1 *: \prod_(0 <= i < k) ('X - i%:R%:P) in
  let p (c : 'rV[F]_t) : {poly F} := \sum_(k < t) c 0 k *: binomial k in
  #|[set c : 'rV[F]_t | ((p c).[0] == secret) && all (fun a => (p c).[a] == share a) holders]|
  = #|[set c : 'rV[F]_t | ((p c).[0] == secret') && all (fun a => (p c).[a] == share a) holders]|.
Proof. exact: reference.binomial_coefficients_hide. Qed.

(* --- The reference for arithmetic modulo a prime ------------------------------------ *)
(* Operations on T that are those of a field F, as far as values go.                     *)

Definition operations_of (T : Type) (F : fieldType) (value : T -> F) (zero one : T) (add sub mul : T -> T -> T)
    (inverse : T -> T) (same : T -> T -> bool) : Prop :=
  [/\ value zero = 0, value one = 1, forall a b, value (add a b) = value a + value b
    & forall a b, value (sub a b) = value a - value b]
  /\ [/\ forall a b, value (mul a b) = value a * value b, forall a, value (inverse a) = (value a)^-1
      & forall a b, same a b = (value a == value b)].

Theorem modulo_operations : forall p : BinNums.Z, prime (BinInt.Z.to_nat p) ->
  (2 < BinInt.Z.to_nat p)%N ->
  operations_of (fun a => (ssrZ.int_of_Z a)%:~R : 'F_(BinInt.Z.to_nat p)) BinNums.Z0 (BinNums.Zpos BinNums.xH)
    (reference.add_modulo p) (reference.sub_modulo p) (reference.mul_modulo p) (reference.inverse_modulo p)
    (reference.same_modulo p).
Proof. exact: reference.modulo_operations. Qed.

Theorem sharing_field_is_prime : prime (2 ^ 16 - 15).
Proof. exact: reference.sharing_field_is_prime. Qed.

Theorem reference_deals : forall (T : eqType) (zero one : T) (add sub mul : T -> T -> T) (inverse : T -> T)
    (same : T -> T -> bool) (F : fieldType) (value : T -> F),
  operations_of value zero one add sub mul inverse same ->
  forall (coefficients : seq T) (holders : nat),
  (forall k, (k < size coefficients)%N -> (k`!%:R : F) != 0) ->
  exists2 p : {poly F}, (size p <= size coefficients)%N & p.[0] = value (nth zero coefficients 0)
    /\ map value (reference.deal zero one add mul coefficients holders) = [seq p.[x%:R] | x <- iota 1 holders].
Proof.
move=> T zero one add sub mul inverse same F value [[? ? ? ?] [? ? ?]] coefficients holders.
exact: reference.reference_deals.
Qed.

Theorem reference_interpolates : forall (T : eqType) (zero one : T) (add sub mul : T -> T -> T) (inverse : T -> T)
    (same : T -> T -> bool) (F : fieldType) (value : T -> F),
  operations_of value zero one add sub mul inverse same ->
  forall (points values : seq T) (x : T) (p : {poly F}),
  uniq (map value points) -> (size p <= size points)%N -> map value values = [seq p.[value a] | a <- points] ->
  value (reference.combine zero add mul (reference.weights one sub mul inverse same points x) values)
  = p.[value x].
Proof.
move=> T zero one add sub mul inverse same F value [[? ? ? ?] [? ? ?]] points values x p.
exact: reference.reference_interpolates.
Qed.

(* All but so many values lie on p: the decoder finds p, and says which values do not.      *)
Theorem reference_decodes : forall (T : eqType) (zero one : T) (add sub mul : T -> T -> T) (inverse : T -> T)
    (same : T -> T -> bool) (F : fieldType) (value : T -> F),
  operations_of value zero one add sub mul inverse same ->
  forall (t radius : nat) (points targets values : seq T),
  uniq (map value points) -> size values = size points -> (t + radius.*2 <= size points)%N ->
  forall p : {poly F}, (size p <= t)%N ->
  let errors := [seq p.[value pair.1] != value pair.2 | pair <- zip points values] in
  (count id errors <= radius)%N ->
  exists2 found, reference.decode zero add mul same t radius
      (reference.plan one sub mul inverse same t points targets) values = Some (errors, found)
    & map value found = [seq p.[value x] | x <- targets].
Proof.
move=> T zero one add sub mul inverse same F value [[? ? ? ?] [? ? ?]] t radius points targets values.
move=> *; exact: reference.reference_decodes.
Qed.

(* What it finds is such a polynomial; so it finds nothing where there is none.              *)
Theorem reference_decodes_only : forall (T : eqType) (zero one : T) (add sub mul : T -> T -> T) (inverse : T -> T)
    (same : T -> T -> bool) (F : fieldType) (value : T -> F),
  operations_of value zero one add sub mul inverse same ->
  forall (t radius : nat) (points targets values : seq T),
  uniq (map value points) -> size values = size points ->
  forall wrong found, reference.decode zero add mul same t radius
      (reference.plan one sub mul inverse same t points targets) values = Some (wrong, found) ->
  exists2 p : {poly F}, (size p <= t)%N
    & [/\ wrong = [seq p.[value pair.1] != value pair.2 | pair <- zip points values],
          (count id wrong <= radius)%N & map value found = [seq p.[value x] | x <- targets]].
Proof.
move=> T zero one add sub mul inverse same F value [[is_0 is_1 is_add is_sub] [is_mul is_inverse is_same]].
move=> t radius points targets values distinct sizes wrong found.
case/(reference.reference_decodes_only is_0 is_1 is_add is_sub is_mul is_inverse is_same distinct sizes).
by move=> p small fits; exists p.
Qed.

(* --- The ring of p = below + 1 bits ----------------------------------------------- *)

Theorem lift_inverts : forall (below : nat) (q : int),
  - (2 ^ below)%N%:Z <= q < (2 ^ below)%N%:Z -> ring.lift (ring.element below q) = q.
Proof. exact: ring.lift_inverts. Qed.

Theorem sums_within_capacity_are_exact : forall (below : nat) (client : finType)
    (contributors : {set client}) (weight : client -> nat) (code : client -> int) (least greatest : int),
  (forall i, i \in contributors -> least <= code i <= greatest) ->
  - (2 ^ below)%N%:Z <= (\sum_(i in contributors) weight i)%N%:Z * least ->
  (\sum_(i in contributors) weight i)%N%:Z * greatest < (2 ^ below)%N%:Z ->
  ring.lift (\sum_(i in contributors) ring.element below ((weight i)%:Z * code i))
  = \sum_(i in contributors) (weight i)%:Z * code i.
Proof. exact: ring.sums_within_capacity_are_exact. Qed.

Theorem capacity_suffices : forall (below : nat) (client : finType) (contributors : {set client})
    (weight : client -> nat) (code : client -> int) (b : nat),
  (forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z) ->
  (b <= below)%N -> (\sum_(i in contributors) weight i <= 2 ^ (below.+1 - b.+1))%N ->
  ring.lift (\sum_(i in contributors) ring.element below ((weight i)%:Z * code i))
  = \sum_(i in contributors) (weight i)%:Z * code i.
Proof. exact: ring.capacity_suffices. Qed.

Theorem modulus_bits_suffice : forall (below : nat) (client : finType) (contributors : {set client})
    (weight : client -> nat) (code : client -> int) (b : nat),
  (forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z) ->
  (b.+1 + up_log 2 (\sum_(i in contributors) weight i) <= below.+1)%N ->
  ring.lift (\sum_(i in contributors) ring.element below ((weight i)%:Z * code i))
  = \sum_(i in contributors) (weight i)%:Z * code i.
Proof. exact: ring.modulus_bits_suffice. Qed.

Theorem capacity_is_tight : forall (below : nat) (client : finType) (contributors : {set client})
    (weight : client -> nat) (b : nat),
  (b <= below)%N -> (2 ^ (below.+1 - b.+1) < \sum_(i in contributors) weight i)%N ->
  exists2 code : client -> int,
    (forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z)
    & ring.lift (\sum_(i in contributors) ring.element below ((weight i)%:Z * code i))
      != \sum_(i in contributors) (weight i)%:Z * code i.
Proof. exact: ring.capacity_is_tight. Qed.

(* --- Decoders ----------------------------------------------------------------------- *)

Theorem affine_decoders_commute_with_sums : forall (client : finType) (contributors : {set client})
    (weight : client -> nat) (V W : zmodType) (linear : {additive V -> W}) (offset : W)
    (payload : client -> V),
  linear (\sum_(i in contributors) payload i *+ weight i)
    + offset *+ (\sum_(i in contributors) weight i)
  = \sum_(i in contributors) (linear (payload i) + offset *+ 1) *+ weight i.
Proof. exact: ring.affine_decoders_commute_with_sums. Qed.

Theorem scalar_sums_decode : forall (client : finType) (contributors : {set client})
    (weight : client -> nat) (R : comRingType) (step : R) (zero_point : int) (code : client -> int),
  step * (\sum_(i in contributors) (weight i)%:Z * code i
          - zero_point * (\sum_(i in contributors) weight i)%N%:Z)%:~R
  = \sum_(i in contributors) (step * (code i - zero_point)%:~R) *+ weight i.
Proof. exact: ring.scalar_sums_decode. Qed.

Theorem histograms_decode : forall (client : finType) (contributors : {set client})
    (weight : client -> nat) (index : finType) (W : zmodType) (codeword : index -> W)
    (assignment : client -> index),
  \sum_(i in contributors) codeword (assignment i) *+ weight i
  = \sum_r codeword r *+ (\sum_(i in contributors | assignment i == r) weight i).
Proof. exact: ring.histograms_decode. Qed.

Theorem masked_sums_decode : forall (below b : nat) (client : finType) (neighbour : rel client)
    (pairwise_mask : client -> client -> 'Z_(2 ^ below.+1)) (self_mask : client -> 'Z_(2 ^ below.+1))
    (sharers contributors : {set client}) (weight : client -> nat) (code : client -> int),
  symmetric neighbour -> irreflexive neighbour ->
  (forall i j, pairwise_mask j i = - pairwise_mask i j) ->
  contributors \subset sharers ->
  (forall i, i \in contributors -> - (2 ^ b)%N%:Z <= code i < (2 ^ b)%N%:Z) ->
  (b <= below)%N -> (\sum_(i in contributors) weight i <= 2 ^ (below.+1 - b.+1))%N ->
  forall (R : comRingType) (step : R) (zero_point : int),
  let sum := ring.lift (masks.unmasked_sum neighbour pairwise_mask
      (fun i => ring.element below ((weight i)%:Z * code i)) self_mask sharers contributors) in
  step * (sum - zero_point * (\sum_(i in contributors) weight i)%N%:Z)%:~R
  = \sum_(i in contributors) (step * (code i - zero_point)%:~R) *+ weight i.
Proof. exact: ring.masked_sums_decode. Qed.

(* --- The two-server point function --------------------------------------------------- *)

Theorem point_function_correct : forall (seed_type G : zmodType),
  (forall s : seed_type, s + s = 0) ->
  let node := ((seed_type * bool) * (seed_type * bool))%type in
  forall (hash : bool -> node -> node) (convert : node -> nat -> G) (is_second : nat -> bool)
    (depth lanes alpha : nat) (beta : G) (seeds_0 seeds_1 : seed_type * seed_type) (x : nat),
  (alpha < 2 ^ depth * lanes)%N -> (x < 2 ^ depth * lanes)%N ->
  let key := dpf.generate_key hash convert is_second depth lanes alpha beta seeds_0 seeds_1 in
  dpf.share hash convert is_second depth lanes false seeds_0 key x
  + dpf.share hash convert is_second depth lanes true seeds_1 key x = if x == alpha then beta else 0.
Proof. move=> S G xor2 *; exact: dpf.point_function_correct. Qed.

Theorem point_functions_sum_to_histogram : forall (seed_type G : zmodType),
  (forall s : seed_type, s + s = 0) ->
  let node := ((seed_type * bool) * (seed_type * bool))%type in
  forall (hash : bool -> node -> node) (convert : node -> nat -> G) (is_second : nat -> bool)
    (client : finType) (contributors : {set client}) (depth lanes : nat) (assignment : client -> nat)
    (beta : client -> G) (weight : client -> nat) (seeds_0 seeds_1 : client -> seed_type * seed_type) (x : nat),
  (x < 2 ^ depth * lanes)%N -> (forall i, assignment i < 2 ^ depth * lanes)%N ->
  let key i := dpf.generate_key hash convert is_second depth lanes (assignment i) (beta i) (seeds_0 i) (seeds_1 i) in
  \sum_(i in contributors) dpf.share hash convert is_second depth lanes false (seeds_0 i) (key i) x *+ weight i
  + \sum_(i in contributors) dpf.share hash convert is_second depth lanes true (seeds_1 i) (key i) x *+ weight i
  = \sum_(i in contributors | x == assignment i) beta i *+ weight i.
Proof. move=> S G xor2 *; exact: dpf.point_functions_sum_to_histogram. Qed.

(* Without a tree; the lane after the sent ones is derived from these.                    *)
Theorem explicit_shares_correct : forall (G : zmodType) (sent : nat) (stream : nat -> G)
    (alpha : nat) (beta : G) (x : nat),
  let derived (total : G) (lanes : nat -> G) :=
    if (x < sent)%N then lanes x else total - \sum_(j < sent) lanes j in
  (alpha <= sent)%N -> (x <= sent)%N ->
  derived beta stream + derived 0 (fun j => (if j == alpha then beta else 0) - stream j)
  = if x == alpha then beta else 0.
Proof. move=> G sent stream alpha beta x; exact: dpf.explicit_shares_correct. Qed.

(* --- The check that every block is one vote ------------------------------------------ *)
(* A challenge is (r, rho, sigma, eta). u is over_rows, v linear_part, and f_i the         *)
(* polynomial through a mask and <r, y_i1>, ..., <r, y_iG>.                                 *)

Theorem one_hot_rows_pass : forall (F : finFieldType) (codewords rows columns : nat)
    (lanes : 'I_rows -> 'I_columns -> 'I_codewords -> F) (column : 'I_columns -> F)
    (c : one_hot.challenges F codewords rows columns) (f : 'I_rows -> {poly F}) (tau : F),
  (forall i g, exists a, forall j, lanes i g j = (j == a)%:R) ->
  (forall i g, (f i).[column g] = \sum_j c.1.1.1 j * lanes i g j) ->
  let p := \sum_i c.1.1.2 i *: f i ^+ 2 in
  let u g j := \sum_i c.1.1.2 i * lanes i g j in
  (\sum_g c.1.2 g * (p.[column g] - \sum_j c.1.1.1 j ^+ 2 * u g j)
   + \sum_g c.2 g * (\sum_j u g j - \sum_i c.1.1.2 i) == 0)
  && (p.[tau] == \sum_i c.1.1.2 i * (f i).[tau] ^+ 2).
Proof.
move=> F codewords rows columns lanes column c f tau units through.
exact: one_hot.one_hot_rows_pass.
Qed.

Theorem other_rows_rarely_pass : forall (F : finFieldType) (codewords rows columns : nat)
    (lanes : 'I_rows -> 'I_columns -> 'I_codewords -> F) (column : 'I_columns -> F),
  let challenges := ({ffun 'I_codewords -> F} * {ffun 'I_rows -> F}
    * {ffun 'I_columns -> F} * {ffun 'I_columns -> F})%type in
  forall (p : challenges -> {poly F}) (f : challenges -> 'I_rows -> {poly F}) (points : {set F}),
  (2%:R : F) != 0 ->
  ~ (forall i g, exists a, forall j, lanes i g j = (j == a)%:R) ->
  (forall c, size (p c) <= columns.*2.+1)%N ->
  (forall c i, size (f c i) <= columns.+1)%N ->
  (forall c i g, (f c i).[column g] = \sum_j c.1.1.1 j * lanes i g j) ->
  let u (c : challenges) g j := \sum_i c.1.1.2 i * lanes i g j in
  let accepted (c : challenges) tau :=
    (\sum_g c.1.2 g * ((p c).[column g] - \sum_j c.1.1.1 j ^+ 2 * u c g j)
     + \sum_g c.2 g * (\sum_j u c g j - \sum_i c.1.1.2 i) == 0)
    && ((p c).[tau] == \sum_i c.1.1.2 i * (f c i).[tau] ^+ 2) in
  (#|F| * #|[set x : challenges * F | (x.2 \in points) && accepted x.1 x.2]|
   <= (4 * #|points| + columns.*2 * #|F|) * #|{: challenges}|)%N.
Proof.
move=> F codewords rows columns lanes column challenges p f points.
exact: one_hot.other_rows_rarely_pass.
Qed.

(* --- Agreement, and what is revealed --------------------------------------------------- *)
Local Open Scope nat_scope.

Theorem split_proof : forall (client : finType) (last degree : nat) (place : client -> 'I_last.+1),
  injective place ->
  let after (u v : client) : nat := (place v - place u)%R in
  let neighbours u v := (0 < after u v <= degree./2) || (0 < after v u <= degree./2) in
  let ahead u := [set v | 0 < after u v <= degree./2] in
  let behind u := [set v | 0 < after v u <= degree./2] in
  forall (contributing corrupted S : {set client}) (threshold h : nat),
  degree./2 + h + 1 <= threshold ->
  S \subset contributing ->
  (forall u v, u \in S -> v \in S -> [disjoint ahead u & behind v] ->
     #|corrupted :&: ahead u| <= h \/ #|corrupted :&: behind v| <= h) ->
  (forall u v, u \in S -> v \in contributing -> neighbours u v -> v \in S) ->
  (forall u, u \in S -> threshold <= #|[set v in contributing :|: corrupted | neighbours u v]|) ->
  S = contributing \/ S = set0.
Proof.
move=> client last degree place inj after neighbours ahead behind contributing corrupted S threshold h.
exact: split.split_proof.
Qed.

Theorem two_answers_share_an_honest_holder : forall (client : finType) (last degree : nat)
    (place : client -> 'I_last.+1), injective place ->
  let neighbours := split.neighbours degree place in
  forall (corrupted A B : {set client}) (threshold c : nat) (v : client),
  degree + c < 2 * threshold ->
  #|[set w in corrupted | neighbours v w]| <= c ->
  (forall w, w \in A :|: B -> neighbours v w) -> threshold <= #|A| -> threshold <= #|B| ->
  exists2 w, w \in A :&: B & w \notin corrupted.
Proof. move=> client last degree place inj neighbours; exact: split.two_answers_share_an_honest_holder. Qed.

Section Session.
Variables (client : finType) (corrupted committee : {set client}).
Variables (threshold quorum minimum_cohort c window : nat).
Variable signs : client -> {set client} * {set client} -> bool.
Variables shows_self shows_root shows_edge masks_with : client -> client -> bool.
Notation obliged neighbours := (quorum.obligations corrupted committee neighbours quorum minimum_cohort
  signs shows_self shows_root shows_edge masks_with).
Notation joined neighbours :=
  (@quorum.joined client corrupted neighbours threshold shows_root shows_edge masks_with).
Notation is_open neighbours i := (forall d, d \in quorum.covered corrupted neighbours threshold
    shows_self shows_root shows_edge masks_with -> ~~ connect (joined neighbours) i d).
Notation certified p := (quorum <= #|[set m in committee | (m \in corrupted) || signs m p]|).
Notation one_sum neighbours i := (exists p, [/\ certified p, minimum_cohort <= #|p.2|
  & forall j, connect (joined neighbours) i j = (val j \in p.2)]).

Theorem certificate_unique : forall neighbours : rel client, obliged neighbours ->
  forall p p' : {set client} * {set client},
  certified p -> certified p' -> p = p'.
Proof. by move=> neighbours duties p p'; apply: quorum.certificate_unique duties p p'. Qed.

Theorem never_both : forall neighbours : rel client, obliged neighbours ->
  (forall v, v \notin corrupted -> #|[set h in corrupted | neighbours v h]| <= c) -> c < threshold ->
  forall v, v \notin corrupted ->
  ~ (threshold <= #|[set h | neighbours v h && ((h \in corrupted) || shows_self h v)]|
     /\ threshold <= #|[set h | neighbours v h && ((h \in corrupted) || shows_root h v)]|).
Proof.
move=> neighbours duties few beyond v honest_v [self root].
have := quorum.never_both duties few beyond honest_v.
by rewrite /quorum.known self root.
Qed.

Theorem full_graph_reveals_one_sum : obliged (fun u v => u != v) -> #|corrupted| < threshold ->
  forall i : {v : client | v \notin corrupted}, is_open (fun u v => u != v) i ->
  one_sum (fun u v => u != v) i.
Proof.
move=> duties beyond i open_i; apply: (quorum.full_graph_reveals_one_sum duties beyond).
by apply/forallP => d; apply/implyP => /open_i.
Qed.

Theorem sparse_graph_reveals_one_sum : forall (last degree : nat) (place : client -> 'I_last.+1),
  let neighbours := split.neighbours degree place in
  let ahead := split.ahead degree place in
  let behind := split.behind degree place in
  injective place -> degree./2.*2 <= last -> obliged neighbours ->
  (forall u v, u \notin corrupted -> v \notin corrupted -> [disjoint ahead u & behind v] ->
     #|corrupted :&: ahead u| <= window \/ #|corrupted :&: behind v| <= window) ->
  degree./2 + window + 1 <= threshold ->
  forall i : {v : client | v \notin corrupted}, is_open neighbours i -> one_sum neighbours i.
Proof.
move=> last degree place neighbours ahead behind inj room duties windows large i open_i.
apply: (quorum.sparse_graph_reveals_one_sum inj room duties windows large).
by apply/forallP => d; apply/implyP => /open_i.
Qed.

Theorem one_sum_is_large : forall (linked : rel {v : client | v \notin corrupted})
    (i : {v : client | v \notin corrupted}) (contributors : {set client}),
  minimum_cohort <= #|contributors| ->
  (forall j, connect linked i j = (val j \in contributors)) ->
  minimum_cohort - #|corrupted| <= #|[set j | connect linked i j]|.
Proof. exact: quorum.one_sum_is_large. Qed.

Theorem one_open_component : forall neighbours : rel client, obliged neighbours ->
  (forall i : {v : client | v \notin corrupted}, is_open neighbours i -> one_sum neighbours i) ->
  forall i i', is_open neighbours i -> is_open neighbours i' -> connect (joined neighbours) i i'.
Proof.
move=> neighbours duties sums i i' open_i open_i'.
apply: (one_sum.one_open_component duties) => [j open_j||]; last 2 first.
- by apply/forallP => d; apply/implyP => /open_i.
- by apply/forallP => d; apply/implyP => /open_i'.
by apply: sums => d d_in; move/forallP/(_ d)/implyP: open_j; apply.
Qed.

Theorem sum_only : forall (G : finZmodType) (neighbours : rel client),
  symmetric neighbours -> irreflexive neighbours -> obliged neighbours ->
  (forall i : {v : client | v \notin corrupted}, is_open neighbours i -> one_sum neighbours i) ->
  forall id : {v : client | v \notin corrupted} -> nat, injective id ->
  let added (i j : {v : client | v \notin corrupted}) :=
    [&& neighbours (val i) (val j), masks_with (val i) (val j) & masks_with (val j) (val i)] in
  let alone := quorum.covered corrupted neighbours threshold shows_self shows_root shows_edge masks_with in
  forall (x x' : {v : client | v \notin corrupted} -> G) (y : {ffun _ -> G}) (r : masks.coins _ G),
  (forall p : {set client} * {set client}, certified p -> minimum_cohort <= #|p.2| ->
     (\sum_(j : {v : client | v \notin corrupted} | val j \in p.2) x j
      = \sum_(j : {v : client | v \notin corrupted} | val j \in p.2) x' j)%R) ->
  #|[set s | transcripts.transcript id added (joined neighbours) setT alone x y r s]|
  = #|[set s | transcripts.transcript id added (joined neighbours) setT alone x' y r s]|.
Proof.
move=> G neighbours sym irr duties sums id inj added alone x x' y r same.
apply: (one_sum.sum_only sym irr _ inj) same => j open_j.
by apply: sums => d d_in; move/forallP/(_ d)/implyP: open_j; apply.
Qed.

(* The headline, with no premise left but what is said of graph, committee and corrupted     *)
(* clients: at most one component is open, and a transcript (the uploads, and all masks that  *)
(* the server chose to learn after it had seen them) is explained equally often by any two     *)
(* inputs with equal sums over the honest contributors of the certified set.                   *)
Notation tells_one_sum neighbours :=
  ((forall i i' : {v : client | v \notin corrupted},
      is_open neighbours i -> is_open neighbours i' -> connect (joined neighbours) i i')
   /\ forall (G : finZmodType) (id : {v : client | v \notin corrupted} -> nat)
        (x x' : {v : client | v \notin corrupted} -> G) (y : {ffun _ -> G}) (r : masks.coins _ G),
      injective id ->
      let added (i j : {v : client | v \notin corrupted}) :=
        [&& (neighbours : rel client) (val i) (val j), masks_with (val i) (val j) & masks_with (val j) (val i)] in
      let unknown := joined neighbours in
      let alone := quorum.covered corrupted neighbours threshold shows_self shows_root shows_edge masks_with in
      (forall p : {set client} * {set client}, certified p -> minimum_cohort <= #|p.2| ->
         (\sum_(j : {v : client | v \notin corrupted} | val j \in p.2) x j
          = \sum_(j : {v : client | v \notin corrupted} | val j \in p.2) x' j)%R) ->
      #|[set s | transcripts.transcript id added unknown setT alone x y r s]|
      = #|[set s | transcripts.transcript id added unknown setT alone x' y r s]|).

Theorem full_graph_tells_one_sum : obliged (fun u v => u != v) -> #|corrupted| < threshold ->
  tells_one_sum (fun u v => u != v).
Proof.
move=> duties beyond; split=> [i i' open_i open_i'|G id x x' y r inj added unknown alone same].
  case: (one_sum.full_graph_tells_one_sum (Zp_finZmodType 1) duties beyond) => connected _.
  by apply: connected; apply/forallP => d; apply/implyP; [apply: open_i|apply: open_i'].
by case: (one_sum.full_graph_tells_one_sum G duties beyond) => _; apply.
Qed.

Theorem sparse_graph_tells_one_sum : forall (last degree : nat) (place : client -> 'I_last.+1),
  let neighbours := split.neighbours degree place in
  let ahead := split.ahead degree place in
  let behind := split.behind degree place in
  injective place -> degree./2.*2 <= last -> obliged neighbours ->
  (forall u v, u \notin corrupted -> v \notin corrupted -> [disjoint ahead u & behind v] ->
     #|corrupted :&: ahead u| <= window \/ #|corrupted :&: behind v| <= window) ->
  degree./2 + window + 1 <= threshold -> tells_one_sum neighbours.
Proof.
move=> last degree place neighbours ahead behind inj room duties windows large.
split=> [i i' open_i open_i'|G id x x' y r id_inj added unknown alone same].
  case: (one_sum.sparse_graph_tells_one_sum (Zp_finZmodType 1) inj room duties windows large) => connected _.
  by apply: connected; apply/forallP => d; apply/implyP; [apply: open_i|apply: open_i'].
by case: (one_sum.sparse_graph_tells_one_sum G inj room duties windows large) => _; apply.
Qed.

(* Clients that add noise first: what is shown follows from the sum of inputs and noise    *)
(* alone, so whoever opens it has no more than a function of the noised sum.             *)
Theorem noised_sum_only : forall (G : finZmodType) (neighbours : rel client),
  symmetric neighbours -> irreflexive neighbours -> obliged neighbours ->
  (forall i : {v : client | v \notin corrupted}, is_open neighbours i -> one_sum neighbours i) ->
  forall id : {v : client | v \notin corrupted} -> nat, injective id ->
  let added (i j : {v : client | v \notin corrupted}) :=
    [&& neighbours (val i) (val j), masks_with (val i) (val j) & masks_with (val j) (val i)] in
  let alone := quorum.covered corrupted neighbours threshold shows_self shows_root shows_edge masks_with in
  forall (x x' n n' : {v : client | v \notin corrupted} -> G) (y : {ffun _ -> G}) (r : masks.coins _ G),
  (forall p : {set client} * {set client}, certified p -> minimum_cohort <= #|p.2| ->
     (\sum_(j : {v : client | v \notin corrupted} | val j \in p.2) x j
      + \sum_(j : {v : client | v \notin corrupted} | val j \in p.2) n j
      = \sum_(j : {v : client | v \notin corrupted} | val j \in p.2) x' j
      + \sum_(j : {v : client | v \notin corrupted} | val j \in p.2) n' j)%R) ->
  #|[set s | transcripts.transcript id added (joined neighbours) setT alone (fun j => x j + n j)%R y r s]|
  = #|[set s | transcripts.transcript id added (joined neighbours) setT alone (fun j => x' j + n' j)%R y r s]|.
Proof.
move=> G neighbours sym irr duties sums id inj added alone x x' n n' y r same.
apply: (sum_only sym irr duties sums inj) => p cert cohort.
by rewrite !big_split; apply: same.
Qed.
End Session.

Theorem transcripts_hide : forall (client : finType) (G : finZmodType) (id : client -> nat)
    (joined0 joined : rel client) (covered0 covered : {set client}),
  symmetric joined0 -> irreflexive joined0 -> symmetric joined -> subrel joined joined0 ->
  covered \subset covered0 -> injective id ->
  let revealed (p : client * client) :=
    ((p.1 == p.2) && (p.1 \in covered0) && (p.1 \notin covered)) || (joined0 p.1 p.2 && ~~ joined p.1 p.2) in
  let transcript (x : client -> G) y (r s : masks.coins client G) :=
    (masks.uploads joined0 covered0 id x s == y) && [forall p, revealed p ==> (s p == r p)] in
  forall (x x' : client -> G) (y : {ffun client -> G}) (r : masks.coins client G),
  (forall i, (forall d, d \in covered -> ~~ connect joined i d) ->
    (\sum_(j | connect joined i j) x j = \sum_(j | connect joined i j) x' j)%R) ->
  #|[set s | transcript x y r s]| = #|[set s | transcript x' y r s]|.
Proof.
move=> client G id joined0 joined covered0 covered sym0 irr0 sym sub csub inj revealed transcript x x' y r same.
apply: (transcripts.transcripts_hide irr0 sym sub csub inj) => i open_i.
by apply: same => d d_in; move/forallP/(_ d)/implyP: open_i; apply.
Qed.

Theorem runs_meet_the_obligations : forall (client : finType) (corrupted A : {set client})
    (neighbours : rel client) (threshold quorum minimum_cohort : nat),
  symmetric neighbours ->
  #|client| + #|corrupted| < 2 * quorum -> quorum <= #|A :|: corrupted| -> minimum_cohort <= #|A| ->
  (forall v, v \notin corrupted -> threshold <= #|[set h in A :|: corrupted | neighbours v h]|) ->
  let signs (m : client) (p : {set client} * {set client}) := (m \in A) && (p == (setT, A)) in
  let shows_self h v := [&& neighbours v h, h \in A & v \in A] in
  let shows_root h v := [&& neighbours v h, h \in A & v \notin A] in
  let no_edge (_ _ : client) := false in
  quorum.obligations corrupted setT neighbours quorum minimum_cohort signs shows_self shows_root no_edge neighbours
  /\ forall i : quorum.honest corrupted, val i \in A ->
     masks.is_open (quorum.joined neighbours threshold shows_root no_edge neighbours)
       (quorum.covered corrupted neighbours threshold shows_self shows_root no_edge neighbours) i.
Proof. move=> *; exact: quorum.runs_meet_the_obligations. Qed.

Theorem premises_hold_together :
  let place := @id 'I_12 in let neighbours := split.neighbours 8 place in
  let corrupted := [set ord0] : {set 'I_12} in let A := ~: [set ord0; ord_max] : {set 'I_12} in
  let shows_self h v := [&& neighbours v h, h \in A & v \in A] in
  let shows_root h v := [&& neighbours v h, h \in A & v \notin A] in
  let no_edge (_ _ : 'I_12) := false in
  [/\ injective place, (8./2.*2 <= 11) && (8./2 + 1 + 1 <= 6),
      quorum.obligations corrupted setT neighbours 7 10 (fun m p => (m \in A) && (p == (setT, A)))
        shows_self shows_root no_edge neighbours,
      forall u v, u \notin corrupted -> v \notin corrupted ->
        [disjoint split.ahead 8 place u & split.behind 8 place v] ->
        #|corrupted :&: split.ahead 8 place u| <= 1 \/ #|corrupted :&: split.behind 8 place v| <= 1
    & exists i : quorum.honest corrupted,
        masks.is_open (quorum.joined neighbours 6 shows_root no_edge neighbours)
          (quorum.covered corrupted neighbours 6 shows_self shows_root no_edge neighbours) i].
Proof. exact: quorum.premises_hold_together. Qed.

(* --- One message a client --------------------------------------------------------------- *)
(* Each client shares rho secrets among C holders by a polynomial of T coefficients; each    *)
(* holder adds the shares of the clients on a certified list; c holders                      *)
(* are corrupted. `explains` says of coins that with them these secrets give this view: the   *)
(* honest holders' answers and the corrupted holders' shares.                                 *)
Local Open Scope ring_scope.

Section OneAnswer.
Variables (F : finFieldType) (T : nat) (client holder secret sum : finType).
Variables (corrupted : {set holder}) (point : secret + holder -> F).
(* Which sum an upload is for, and which clients the server shows to a holder.              *)
Variables (names : client -> sum) (listed : holder -> {set client}).
Notation value f i z := ((rVpoly (f i)).[point z]).
Notation list_of j t := [set i in listed j | names i == t].
Notation explains s answers shares f :=
  [&& [forall i, forall l, value f i (inl l) == s i l],
      [forall j, forall t, (j \notin corrupted) ==> (\sum_(i in list_of j t) value f i (inr j) == answers j t)]
    & [forall i, forall k, (k \in corrupted) ==> (value f i (inr k) == shares i k)]].

Theorem certified_hides : injective point -> (#|corrupted| + #|secret| <= T)%N ->
  forall A : sum -> {set client}, (forall t, {in A t, forall i, names i = t}) ->
  (forall j t, j \notin corrupted -> list_of j t = A t \/ list_of j t = set0) ->
  forall s s' : client -> secret -> F,
  (forall t l, \sum_(i in A t) s i l = \sum_(i in A t) s' i l) ->
  forall (answers : holder -> sum -> F) (shares : client -> holder -> F),
  #|[set f : {ffun client -> 'rV[F]_T} | explains s answers shares f]|
  = #|[set f : {ffun client -> 'rV[F]_T} | explains s' answers shares f]|.
Proof.
move=> distinct high A named one_list s s' same answers shares.
exact: (one_answer.certified_hides distinct high (conj named one_list)).
Qed.
End OneAnswer.

(* --- Bounded updates ------------------------------------------------------------ *)

Theorem one_codeword_bounds_an_update : forall (R : realDomainType) (blocks codewords width : nat)
    (codeword : 'I_blocks -> 'I_codewords -> 'I_width -> R) (greatest : 'I_blocks -> R)
    (lanes : 'I_blocks -> 'I_codewords -> R),
  (forall b k, \sum_w codeword b k w ^+ 2 <= greatest b) ->
  (forall b, exists a, forall k, lanes b k = (k == a)%:R) ->
  \sum_b \sum_w (\sum_k lanes b k * codeword b k w) ^+ 2 <= \sum_b greatest b.
Proof. exact: bounded_updates.one_codeword_bounds_an_update. Qed.

Theorem unit_codewords_fix_the_length : forall (R : realDomainType) (blocks codewords width : nat)
    (codeword : 'I_blocks -> 'I_codewords -> 'I_width -> R) (lanes : 'I_blocks -> 'I_codewords -> R),
  (forall b k, \sum_w codeword b k w ^+ 2 = 1) ->
  (forall b, exists a, forall k, lanes b k = (k == a)%:R) ->
  \sum_b \sum_w (\sum_k lanes b k * codeword b k w) ^+ 2 = blocks%:R.
Proof. exact: bounded_updates.unit_codewords_fix_the_length. Qed.

Theorem attackers_move_a_sum_little : forall (R : realDomainType) (blocks codewords width : nat)
    (codeword : 'I_blocks -> 'I_codewords -> 'I_width -> R) (client : finType) (attackers : {set client})
    (lanes : client -> 'I_blocks -> 'I_codewords -> R) (greatest : R),
  (forall b k, \sum_w codeword b k w ^+ 2 <= greatest) ->
  (forall i b, i \in attackers -> exists a, forall k, lanes i b k = (k == a)%:R) ->
  \sum_b \sum_w (\sum_(i in attackers) \sum_k lanes i b k * codeword b k w) ^+ 2
    <= #|attackers|%:R ^+ 2 * (blocks%:R * greatest).
Proof. exact: bounded_updates.attackers_move_a_sum_little. Qed.
