(* The one-hot check of point_functions/one_hot_check.py, as the two servers'         *)
(* shares add up: whoever fixed his rows before the challenges were drawn, and his    *)
(* polynomials before the query point was, passes with rows that are not all unit     *)
(* vectors for at most 4 / |F| + 2 G / |T| of the challenges and query points.        *)
From mathcomp Require Import all_ssreflect all_algebra zify.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Import GRing.Theory.
Local Open Scope ring_scope.

(* If a challenge can be moved along a line of |F| challenges, and at most d of every  *)
(* line are bad, at most d / |F| of all are.                                           *)
Section Lines.
Variables (C F : finType) (move : C -> F -> C) (coordinate : C -> F).
Hypothesis back : forall c t, move (move c t) (coordinate c) = c.
Hypothesis moved : forall c t, coordinate (move c t) = t.

Lemma few_on_lines (bad : pred C) (d : nat) :
  (forall c, #|[set t | bad (move c t)]| <= d)%N ->
  (#|F| * #|[set c | bad c]| <= d * #|C|)%N.
Proof.
move=> few; pose swap (x : C * F) := (move x.1 x.2, coordinate x.1).
have swapK : involutive swap by case=> c t; rewrite /swap /= back moved.
have -> : (#|F| * #|[set c | bad c]| = #|[set x : C * F | bad (swap x).1]|)%N.
  rewrite -(card_imset _ (inv_inj swapK)) mulnC -cardsT -cardsX; apply: eq_card => -[c t].
  rewrite !inE andbT; apply/idP/imsetP => [bad_c|[x x_in eq]].
    by exists (swap (c, t)); rewrite ?swapK // inE swapK.
  by move: x_in; rewrite inE -[x in swap x]swapK -eq swapK /=.
rewrite -sum1dep_card (eq_bigl (fun x : C * F => xpredT x.1 && bad (move x.1 x.2))) //.
rewrite -(pair_big_dep xpredT (fun c t => bad (move c t)) (fun _ _ => 1%N)) /=.
rewrite mulnC -sum_nat_const; apply: leq_sum => c _.
by rewrite sum1dep_card; apply: few.
Qed.
End Lines.


Lemma few_roots (F : finFieldType) (p : {poly F}) : p != 0 -> (#|[set t | (p.[t] == 0)%R]| < size p)%N.
Proof.
move=> nonzero; rewrite cardE; apply: max_poly_roots => //; last exact: enum_uniq.
by apply/allP => t; rewrite mem_enum inE.
Qed.

Section AnyRing.
Variables (R : Type) (zero one : R) (plus times minus : R -> R -> R) (opposite : R -> R).
Hypothesis laws : ring_theory zero one plus times minus opposite eq.
Add Ring laws_of_R : laws.

Lemma square_of_sum (t y a b : R) :
  minus (times (plus (times t y) a) (plus (times t y) a)) (plus (times (times t t) y) b)
  = plus (plus (times (minus (times y y) y) (times t t)) (times (times (times (plus one one) y) a) t))
      (minus (times a a) b).
Proof. ring. Qed.
End AnyRing.

Lemma square_at (R : comRingType) (t y a b : R) : (t * y + a) * (t * y + a) - (t * t * y + b)
  = (y * y - y) * (t * t) + (1 + 1) * y * a * t + (a * a - b).
Proof.
apply: (@square_of_sum R 0 1 +%R *%R (fun u v => u - v) -%R); constructor=> //.
- exact: add0r. - exact: addrC. - exact: addrA. - exact: mul1r. - exact: mulrC. - exact: mulrA.
- exact: mulrDl. - exact: subrr.
Qed.

Section Challenges.
Variables (F : finFieldType) (codewords rows columns : nat).
(* r, rho, sigma, eta.                                                                  *)
Definition challenges := ({ffun 'I_codewords -> F} * {ffun 'I_rows -> F}
  * {ffun 'I_columns -> F} * {ffun 'I_columns -> F})%type.
Implicit Type c : challenges.
Definition r_of c := c.1.1.1.
Definition rho_of c := c.1.1.2.
Definition sigma_of c := c.1.2.
Definition eta_of c := c.2.

(* What the two servers hold together: a share of each lane, row after row.             *)
Variable lanes : 'I_rows -> 'I_columns -> 'I_codewords -> F.
Variable column : 'I_columns -> F.

Definition is_unit (block : 'I_codewords -> F) := exists a, forall j, block j = (j == a)%:R.
Definition over_rows c g j := \sum_i rho_of c i * lanes i g j.
(* v of one_hot_check.py, and the decision: OneHotVerifier._is_one_hot.                  *)
Definition linear_part c (p : {poly F}) : F :=
  \sum_g sigma_of c g * (p.[column g] - \sum_j r_of c j ^+ 2 * over_rows c g j)
  + \sum_g eta_of c g * (\sum_j over_rows c g j - \sum_i rho_of c i).
Definition row_squares c (f : 'I_rows -> {poly F}) : {poly F} := \sum_i rho_of c i *: f i ^+ 2.
Definition accepted c (p : {poly F}) (f : 'I_rows -> {poly F}) (tau : F) :=
  (linear_part c p == 0) && (p.[tau] == \sum_i rho_of c i * (f i).[tau] ^+ 2).

Lemma row_squares_at c f t : (row_squares c f).[t] = \sum_i rho_of c i * (f i).[t] ^+ 2.
Proof. by rewrite /row_squares horner_sum; apply: eq_bigr => i _; rewrite hornerZ horner_exp. Qed.

(* One block's part of v, with the polynomial that an honest client sends.               *)
Definition not_boolean c i g :=
  (\sum_j r_of c j * lanes i g j) ^+ 2 - \sum_j r_of c j ^+ 2 * lanes i g j.
Definition column_a c g := \sum_i rho_of c i * not_boolean c i g.
Definition column_b c g := \sum_i rho_of c i * (\sum_j lanes i g j - 1).
Definition both c := \sum_g sigma_of c g * column_a c g + \sum_g eta_of c g * column_b c g.

Lemma linear_part_of_squares c f :
  (forall i g, (f i).[column g] = \sum_j r_of c j * lanes i g j) ->
  linear_part c (row_squares c f) = both c.
Proof.
move=> through; rewrite /linear_part /both; congr (_ + _); apply: eq_bigr => g _; congr (_ * _).
  rewrite row_squares_at /column_a /over_rows.
  have -> : \sum_j r_of c j ^+ 2 * (\sum_i rho_of c i * lanes i g j)
      = \sum_i rho_of c i * (\sum_j r_of c j ^+ 2 * lanes i g j).
    under eq_bigr do rewrite mulr_sumr; rewrite exchange_big; apply: eq_bigr => i _.
    by rewrite mulr_sumr; apply: eq_bigr => j _; rewrite mulrCA.
  by rewrite -sumrB; apply: eq_bigr => i _; rewrite through mulrBr.
rewrite /column_b /over_rows exchange_big -sumrB; apply: eq_bigr => i _.
by rewrite mulrBr mulr1 mulr_sumr.
Qed.

Theorem one_hot_rows_pass c (f : 'I_rows -> {poly F}) tau :
  (forall i g, is_unit (lanes i g)) ->
  (forall i g, (f i).[column g] = \sum_j r_of c j * lanes i g j) ->
  accepted c (row_squares c f) f tau.
Proof.
move=> units through; apply/andP; split; last by rewrite row_squares_at.
rewrite (linear_part_of_squares through) /both.
have pick i g : exists a, forall (x : 'I_codewords -> F), \sum_j x j * lanes i g j = x a.
  have [a is_a] := units i g; exists a => x; rewrite (bigD1 a) //= is_a eqxx mulr1 big1 ?addr0 //.
  by move=> j /negbTE ja; rewrite is_a ja mulr0.
rewrite !big1 ?addr0 // => g _; rewrite /column_b /column_a big1 ?mulr0 // => i _; have [a is_a] := pick i g.
  by have := is_a (fun=> 1); under eq_bigr do rewrite mul1r; move=> ->; rewrite subrr mulr0.
by rewrite /not_boolean !is_a subrr mulr0.
Qed.

(* --- Lines through the challenges ---------------------------------------------------- *)

Definition set_at (I : finType) (x : {ffun I -> F}) i t : {ffun I -> F} :=
  [ffun j => if j == i then t else x j].

Lemma set_at_back (I : finType) (x : {ffun I -> F}) i t : set_at (set_at x i t) i (x i) = x.
Proof. by apply/ffunP => j; rewrite !ffunE; case: eqP => [->|]. Qed.

Lemma set_at_sum (I : finType) (x : {ffun I -> F}) i t (h : I -> F -> F) :
  \sum_j h j (set_at x i t j) = h i t + \sum_(j | j != i) h j (x j).
Proof.
rewrite (bigD1 i) //= ffunE eqxx; congr (_ + _).
by apply: eq_bigr => j /negbTE ji; rewrite ffunE ji.
Qed.

Definition move_r j c t : challenges := (set_at (r_of c) j t, rho_of c, sigma_of c, eta_of c).
Definition move_rho i c t : challenges := (r_of c, set_at (rho_of c) i t, sigma_of c, eta_of c).
Definition move_sigma g c t : challenges := (r_of c, rho_of c, set_at (sigma_of c) g t, eta_of c).
Definition move_eta g c t : challenges := (r_of c, rho_of c, sigma_of c, set_at (eta_of c) g t).

Lemma few_on_r j (bad : pred challenges) d :
  (forall c, #|[set t | bad (move_r j c t)]| <= d)%N ->
  (#|F| * #|[set c | bad c]| <= d * #|{: challenges}|)%N.
Proof.
apply: (few_on_lines (coordinate := fun c => r_of c j)) => [[[[? ?] ?] ?] t|c t].
  by rewrite /move_r /r_of /= set_at_back.
by rewrite /r_of /= ffunE eqxx.
Qed.

Lemma few_on_rho i (bad : pred challenges) d :
  (forall c, #|[set t | bad (move_rho i c t)]| <= d)%N ->
  (#|F| * #|[set c | bad c]| <= d * #|{: challenges}|)%N.
Proof.
apply: (few_on_lines (coordinate := fun c => rho_of c i)) => [[[[? ?] ?] ?] t|c t].
  by rewrite /move_rho /rho_of /= set_at_back.
by rewrite /rho_of /= ffunE eqxx.
Qed.

Lemma few_on_sigma g (bad : pred challenges) d :
  (forall c, #|[set t | bad (move_sigma g c t)]| <= d)%N ->
  (#|F| * #|[set c | bad c]| <= d * #|{: challenges}|)%N.
Proof.
apply: (few_on_lines (coordinate := fun c => sigma_of c g)) => [[[[? ?] ?] ?] t|c t].
  by rewrite /move_sigma /sigma_of /= set_at_back.
by rewrite /sigma_of /= ffunE eqxx.
Qed.

Lemma few_on_eta g (bad : pred challenges) d :
  (forall c, #|[set t | bad (move_eta g c t)]| <= d)%N ->
  (#|F| * #|[set c | bad c]| <= d * #|{: challenges}|)%N.
Proof.
apply: (few_on_lines (coordinate := fun c => eta_of c g)) => [[[[? ?] ?] ?] t|c t].
  by rewrite /move_eta /eta_of /= set_at_back.
by rewrite /eta_of /= ffunE eqxx.
Qed.

Lemma few_linear (a b : F) : a != 0 -> (#|[set t | (a * t + b == 0)%R]| <= 1)%N.
Proof.
move=> nonzero; rewrite -(cards1 (- b / a)); apply: subset_leq_card; apply/subsetP => t.
rewrite !inE addr_eq0 => /eqP eq; apply/eqP; rewrite -eq mulrAC mulfV ?mul1r //.
Qed.

Lemma few_quadratic (a b d : F) : a != 0 -> (#|[set t | (a * t ^+ 2 + b * t + d == 0)%R]| <= 2)%N.
Proof.
move=> nonzero; pose p : {poly F} := Poly [:: d; b; a].
have at_t t : p.[t] = a * t ^+ 2 + b * t + d.
  by rewrite horner_Poly /= mul0r add0r mulrDl -mulrA -expr2.
have : p != 0 by apply/eqP => /(congr1 (fun q : {poly F} => q`_2)); rewrite coef_Poly coef0 /=; apply/eqP.
move/few_roots => few; rewrite -ltnS; apply: leq_trans (_ : size p <= 3)%N; last exact: size_Poly.
apply: leq_trans few; rewrite ltnS; apply: subset_leq_card; apply/subsetP => t.
by rewrite !inE at_t.
Qed.

Lemma few_or (A B : pred challenges) a b :
  (#|F| * #|[set c | A c]| <= a * #|{: challenges}|)%N ->
  (#|F| * #|[set c | B c]| <= b * #|{: challenges}|)%N ->
  (#|F| * #|[set c | A c || B c]| <= (a + b) * #|{: challenges}|)%N.
Proof.
move=> few_a few_b; rewrite mulnDl; apply: leq_trans (leq_add few_a few_b).
rewrite -mulnDr leq_mul2l; apply/orP; right; apply: leq_trans (leq_card_setU _ _).
by apply: subset_leq_card; apply/subsetP => c; rewrite !inE.
Qed.

Lemma few_if (A B : pred challenges) a :
  (forall c, A c -> B c) ->
  (#|F| * #|[set c | B c]| <= a * #|{: challenges}|)%N ->
  (#|F| * #|[set c | A c]| <= a * #|{: challenges}|)%N.
Proof.
move=> sub; apply: leq_trans; rewrite leq_mul2l; apply/orP; right.
by apply: subset_leq_card; apply/subsetP => c; rewrite !inE; apply: sub.
Qed.

(* --- Rows that are not unit vectors -------------------------------------------------- *)

Lemma not_unit (block : 'I_codewords -> F) : ~ is_unit block ->
  [\/ \sum_j block j - 1 != 0, exists j, block j ^+ 2 - block j != 0
    | exists j l, [/\ l != j, block j = 1, block l = 1 & forall a, block a ^+ 2 - block a = 0]].
Proof.
move=> no_unit; have [sum1|] := eqVneq (\sum_j block j - 1) 0; last by constructor 1.
have [boolean|] := boolP [forall j, block j ^+ 2 - block j == 0]; last first.
  by rewrite negb_forall => /existsP[j]; constructor 2; exists j.
have bool_j a : block a ^+ 2 - block a = 0 by apply/eqP/(forallP boolean).
have bit a : block a = (block a == 1)%:R.
  have := bool_j a; rewrite expr2 -[X in _ - X]mulr1 -mulrBr => /eqP; rewrite mulf_eq0 subr_eq0.
  by have [->|_] := eqVneq (block a) 1; rewrite ?eqxx // orbF => /eqP.
constructor 3; have [j one_j|none] := pickP (fun j => block j == 1); last first.
  move/eqP: sum1; rewrite big1 ?sub0r ?oppr_eq0 ?oner_eq0 // => j _.
  by rewrite bit none.
have [l /andP[lj /eqP one_l]|only] := pickP (fun l => (l != j) && (block l == 1)).
  by exists j, l; split=> //; apply/eqP.
case: no_unit; exists j => a; rewrite bit; have [->|aj] := eqVneq a j; first by rewrite one_j.
by have := only a; rewrite /= aj /=; case: (block a == 1).
Qed.

Section Unlucky.
Variables (i : 'I_rows) (g : 'I_columns).
Notation y := (lanes i g).

Lemma few_bad_totals : \sum_j y j - 1 != 0 ->
  (#|F| * #|[set c | column_b c g == 0%R]| <= 1 * #|{: challenges}|)%N.
Proof.
move=> wrong; apply: (few_on_rho (i := i)) => c.
apply: leq_trans (few_linear (\sum_(a | a != i) rho_of c a * (\sum_j lanes a g j - 1)) wrong).
apply: subset_leq_card; apply/subsetP => t; rewrite !inE /column_b.
by rewrite /move_rho /rho_of /= (set_at_sum _ _ _ (fun a x => x * (\sum_j lanes a g j - 1))) mulrC.
Qed.

Lemma few_bad_columns :
  (#|F| * #|[set c | (column_a c g == 0%R) && (not_boolean c i g != 0%R)]| <= 1 * #|{: challenges}|)%N.
Proof.
apply: (few_on_rho (i := i)) => c; have [zero|nonzero] := eqVneq (not_boolean c i g) 0.
  rewrite (_ : [set t | _] = set0) ?cards0 //; apply/setP => t; rewrite !inE.
  by rewrite andbF.
apply: leq_trans (few_linear (\sum_(a | a != i) rho_of c a * not_boolean c a g) nonzero).
apply: subset_leq_card; apply/subsetP => t; rewrite !inE => /andP[+ _].
rewrite /column_a /move_rho /rho_of /= (set_at_sum _ _ _ (fun a x => x * not_boolean _ a g)).
by rewrite mulrC.
Qed.

Lemma not_boolean_at c j t : not_boolean (move_r j c t) i g
  = (y j ^+ 2 - y j) * t ^+ 2 + 2%:R * y j * (\sum_(a | a != j) r_of c a * y a) * t
    + ((\sum_(a | a != j) r_of c a * y a) ^+ 2 - \sum_(a | a != j) r_of c a ^+ 2 * y a).
Proof.
rewrite /not_boolean /move_r /r_of /= (set_at_sum _ _ _ (fun a x => x * y a)).
rewrite (set_at_sum _ _ _ (fun a x => x ^+ 2 * y a)) -/(r_of c).
set A := \sum_(_ | _) _ * _; set B := \sum_(_ | _) _ ^+ 2 * _.
by rewrite !expr2 [2%:R]mulr2n; apply: square_at.
Qed.

Lemma few_bad_squares : (2%:R : F) != 0 ->
  (exists j, y j ^+ 2 - y j != 0)
  \/ (exists j l, [/\ l != j, y j = 1, y l = 1 & forall a, y a ^+ 2 - y a = 0]) ->
  (#|F| * #|[set c | not_boolean c i g == 0%R]| <= 2 * #|{: challenges}|)%N.
Proof.
move=> odd [[j no_bit]|[j [l [lj one_j one_l bits]]]].
  apply: (few_on_r (j := j)) => c.
  apply: leq_trans (few_quadratic (2%:R * y j * (\sum_(a | a != j) r_of c a * y a))
    ((\sum_(a | a != j) r_of c a * y a) ^+ 2 - \sum_(a | a != j) r_of c a ^+ 2 * y a) no_bit).
  by apply: subset_leq_card; apply/subsetP => t; rewrite !inE not_boolean_at.
pose others c := \sum_(a | a != j) r_of c a * y a.
apply: (few_if (B := fun c => (others c == 0) || ((not_boolean c i g == 0) && (others c != 0)))).
  by move=> c ->; case: eqP.
apply: (few_or (a := 1) (b := 1)); [apply: (few_on_r (j := l))|apply: (few_on_r (j := j))] => c.
  apply: leq_trans (few_linear (\sum_(a | (a != j) && (a != l)) r_of c a * y a) (oner_neq0 F)).
  apply: subset_leq_card; apply/subsetP => t; rewrite !inE /others /r_of /= (bigD1 l) //= ffunE eqxx one_l.
  rewrite mulr1 mul1r; congr (_ + _ == 0); apply: eq_bigr => a /andP[_ /negbTE al].
  by rewrite ffunE al.
have kept t : others (move_r j c t) = others c.
  by apply: eq_bigr => a /negbTE aj; rewrite /r_of /= ffunE aj.
have [zero|nonzero] := eqVneq (others c) 0.
  rewrite (_ : [set t | _] = set0) ?cards0 //; apply/setP => t; rewrite !inE kept zero eqxx andbF //.
have steep : 2%:R * y j * others c != 0 by rewrite one_j mulr1 mulf_neq0.
apply: leq_trans (few_linear (others c ^+ 2 - \sum_(a | a != j) r_of c a ^+ 2 * y a) steep).
apply: subset_leq_card; apply/subsetP => t; rewrite !inE not_boolean_at bits mul0r add0r => /andP[+ _].
by rewrite /others.
Qed.

Lemma few_lucky : (2%:R : F) != 0 -> ~ is_unit y ->
  (#|F| * #|[set c | both c == 0%R]| <= 4 * #|{: challenges}|)%N.
Proof.
move=> odd /not_unit bad.
have steer_a : (#|F| * #|[set c | (both c == 0%R) && (column_a c g != 0%R)]| <= 1 * #|{: challenges}|)%N.
  apply: (few_on_sigma (g := g)) => c; have [zero|nonzero] := eqVneq (column_a c g) 0.
    rewrite (_ : [set t | _] = set0) ?cards0 //; apply/setP => t; rewrite !inE.
    by rewrite andbF.
  apply: leq_trans (few_linear (\sum_(a | a != g) sigma_of c a * column_a c a
    + \sum_a eta_of c a * column_b c a) nonzero).
  apply: subset_leq_card; apply/subsetP => t; rewrite !inE => /andP[+ _].
  rewrite /both /move_sigma /sigma_of /= (set_at_sum _ _ _ (fun a x => x * column_a _ a)).
  by rewrite mulrC addrA.
have steer_b : (#|F| * #|[set c | (both c == 0%R) && (column_b c g != 0%R)]| <= 1 * #|{: challenges}|)%N.
  apply: (few_on_eta (g := g)) => c; have [zero|nonzero] := eqVneq (column_b c g) 0.
    rewrite (_ : [set t | _] = set0) ?cards0 //; apply/setP => t; rewrite !inE.
    by rewrite andbF.
  apply: leq_trans (few_linear (\sum_a sigma_of c a * column_a c a
    + \sum_(a | a != g) eta_of c a * column_b c a) nonzero).
  apply: subset_leq_card; apply/subsetP => t; rewrite !inE => /andP[+ _].
  rewrite /both /move_eta /eta_of /= (set_at_sum _ _ _ (fun a x => x * column_b _ a)).
  by rewrite mulrC addrCA.
have [total|squares] : \sum_j y j - 1 != 0 \/ ((exists j, y j ^+ 2 - y j != 0)
    \/ (exists j l, [/\ l != j, y j = 1, y l = 1 & forall a, y a ^+ 2 - y a = 0])).
  by case: bad; [left|right; left|right; right].
  apply: leq_trans (_ : (1 + 1) * #|{: challenges}| <= _)%N; last by rewrite leq_mul2r orbT.
  apply: few_if (few_or steer_b (few_bad_totals total)) => c /= ->.
  by case: eqP.
apply: few_if (few_or steer_a (few_or few_bad_columns (few_bad_squares odd squares))) => c /= ->.
by case: eqP => //= _; case: eqP.
Qed.
End Unlucky.

(* The client may choose its polynomials after it has seen the challenges; the query     *)
(* point it never sees.                                                                  *)
Theorem other_rows_rarely_pass (p : challenges -> {poly F}) (f : challenges -> 'I_rows -> {poly F})
    (points : {set F}) :
  (2%:R : F) != 0 ->
  ~ (forall i g, is_unit (lanes i g)) ->
  (forall c, size (p c) <= columns.*2.+1)%N ->
  (forall c i, size (f c i) <= columns.+1)%N ->
  (forall c i g, (f c i).[column g] = \sum_j r_of c j * lanes i g j) ->
  (#|F| * #|[set x : challenges * F | (x.2 \in points) && accepted x.1 (p x.1) (f x.1) x.2]|
   <= (4 * #|points| + columns.*2 * #|F|) * #|{: challenges}|)%N.
Proof.
move=> odd not_units small_p small_f through.
have unitP i g : reflect (is_unit (lanes i g)) [exists a, [forall j, lanes i g j == (j == a)%:R]].
  apply: (iffP existsP) => -[a is_a]; exists a; first by move=> j; apply/eqP/(forallP is_a).
  by apply/forallP => j; rewrite is_a.
have [i [g bad]] : exists i g, ~ is_unit (lanes i g).
  have [units|] := boolP [forall i, [forall g, [exists a, [forall j, lanes i g j == (j == a)%:R]]]].
    by case: not_units => i g; apply/unitP/(forallP (forallP units i)).
  rewrite negb_forall => /existsP[i]; rewrite negb_forall => /existsP[g /unitP bad].
  by exists i, g.
pose squares c := row_squares c (f c).
pose guessed c := [set t | (p c).[t] == (squares c).[t]] :&: [set t | p c != squares c].
have few_guessed c : (#|guessed c| <= columns.*2)%N.
  have [same|differ] := eqVneq (p c) (squares c).
    rewrite (_ : guessed c = set0) ?cards0 //; apply/setP => t.
    by rewrite !inE /= ?andbF ?same ?eqxx ?andbF.
  have nonzero : p c - squares c != 0 by rewrite subr_eq0.
  have few : (#|guessed c| < size (p c - squares c)%R)%N.
    apply: leq_ltn_trans (few_roots nonzero); apply: subset_leq_card; apply/subsetP => t.
    by rewrite !inE hornerD hornerN subr_eq0 => /andP[].
  rewrite -ltnS; apply: leq_trans few _.
  apply: leq_trans (size_add _ _) _; rewrite geq_max small_p size_opp /squares /row_squares /=.
  elim/big_ind: _ => [|u v small_u small_v|a _]; first by rewrite size_poly0.
    by apply: leq_trans (size_add _ _) _; rewrite geq_max small_u.
  apply: leq_trans (size_scale_leq _ _) _; rewrite expr2; apply: leq_trans (size_mul_leq _ _) _.
  by have := small_f c a; lia.
have few_both := few_lucky odd bad.
pose A := [set x : challenges * F | x.2 \in guessed x.1].
pose B := setX [set c | both c == 0] points.
have sub : [set x : challenges * F | (x.2 \in points) && accepted x.1 (p x.1) (f x.1) x.2] \subset A :|: B.
  apply/subsetP => -[c t]; rewrite !inE /= => /and3P[-> zero_v zero_z]; rewrite andbT.
  have [same|differ] := eqVneq (p c) (squares c); last by rewrite /squares row_squares_at zero_z.
  by apply/orP; right; rewrite -(linear_part_of_squares (through c)) -/(squares c) -same.
have card_A : (#|A| <= columns.*2 * #|{: challenges}|)%N.
  rewrite -sum1dep_card -(pair_big_dep xpredT (fun c t => t \in guessed c) (fun _ _ => 1%N)) /=.
  rewrite mulnC -sum_nat_const; apply: leq_sum => c _.
  by rewrite sum1_card; apply: few_guessed.
apply: leq_trans (_ : #|F| * (#|A| + #|B|) <= _)%N.
  rewrite leq_mul2l; apply/orP; right; apply: leq_trans (subset_leq_card sub) _.
  exact: leq_card_setU.
rewrite cardsX mulnDr addnC mulnDl; apply: leq_add.
  by rewrite mulnA (mulnAC 4%N); apply: leq_mul.
by rewrite (mulnC _ #|F|) -mulnA; apply: leq_mul.
Qed.

End Challenges.
