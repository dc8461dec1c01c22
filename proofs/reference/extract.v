(* What is compared with the library: the reference modulo a prime, and the tree of the    *)
(* point function over words whose seeds are numbers under exclusive or, with lanes in the   *)
(* integers.                                                                                *)
From Coq Require Import ZArith NArith.
From mathcomp Require Import all_ssreflect all_algebra zify ssrZ.
From Coq Require Import ExtrOcamlBasic ExtrOcamlZBigInt ExtrOcamlNatInt.
Require reference dpf.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Definition modulo_deal p := reference.deal Z0 (Zpos 1) (reference.add_modulo p) (reference.mul_modulo p).
Definition modulo_plan p := reference.plan (Zpos 1) (reference.sub_modulo p) (reference.mul_modulo p)
  (reference.inverse_modulo p) (reference.same_modulo p).
Definition modulo_decode p :=
  reference.decode Z0 (reference.add_modulo p) (reference.mul_modulo p) (reference.same_modulo p).
Definition modulo_weights p := reference.weights (Zpos 1) (reference.sub_modulo p) (reference.mul_modulo p)
  (reference.inverse_modulo p) (reference.same_modulo p).
Definition modulo_combine p := reference.combine Z0 (reference.add_modulo p) (reference.mul_modulo p).
Definition modulo_inverse p := reference.inverse_modulo p.

(* Numbers under exclusive or.                                                              *)
Record seed := Seed { number : N }.
Definition seed_of (s : seed) := nat_of_bin (number s).
Lemma seed_ofK : cancel seed_of (fun n => Seed (bin_of_nat n)).
Proof. by case=> n; rewrite /seed_of /= nat_of_binK. Qed.
Definition seed_eqMixin := CanEqMixin seed_ofK.
Canonical seed_eqType := EqType seed seed_eqMixin.
Definition seed_choiceMixin := CanChoiceMixin seed_ofK.
Canonical seed_choiceType := ChoiceType seed seed_choiceMixin.
Definition xor (a b : seed) := Seed (N.lxor (number a) (number b)).
Lemma xorA : associative xor. Proof. by case=> a [b] [c]; rewrite /xor /= N.lxor_assoc. Qed.
Lemma xorC : commutative xor. Proof. by case=> a [b]; rewrite /xor /= N.lxor_comm. Qed.
Lemma xor0 : left_id (Seed N0) xor. Proof. by case. Qed.
Lemma xorN : left_inverse (Seed N0) id xor. Proof. by case=> a; rewrite /xor /= N.lxor_nilpotent. Qed.
Definition seed_zmodMixin := ZmodMixin xorA xorC xor0 xorN.
Canonical seed_zmodType := ZmodType seed seed_zmodMixin.

(* Lanes before they are reduced.                                                           *)
Record lane := Lane { count : Z }.
Definition lane_to (a : lane) := (Z.ltb (count a) 0, Z.abs_nat (count a)).
Definition lane_from (pair : bool * nat) := Lane (if pair.1 then Z.opp (Z.of_nat pair.2) else Z.of_nat pair.2).
Lemma lane_toK : cancel lane_to lane_from.
Proof. by case=> a; congr Lane => /=; case: Z.ltb_spec0; lia. Qed.
Definition lane_eqMixin := CanEqMixin lane_toK.
Canonical lane_eqType := EqType lane lane_eqMixin.
Definition lane_choiceMixin := CanChoiceMixin lane_toK.
Canonical lane_choiceType := ChoiceType lane lane_choiceMixin.
Definition add (a b : lane) := Lane (Z.add (count a) (count b)).
Definition opposite (a : lane) := Lane (Z.opp (count a)).
Lemma addA : associative add. Proof. by case=> a [b] [c]; congr Lane => /=; lia. Qed.
Lemma addC : commutative add. Proof. by case=> a [b]; congr Lane => /=; lia. Qed.
Lemma add0 : left_id (Lane Z0) add. Proof. by case. Qed.
Lemma addN : left_inverse (Lane Z0) opposite add. Proof. by case=> a; congr Lane => /=; lia. Qed.
Definition lane_zmodMixin := ZmodMixin addA addC add0 addN.
Canonical lane_zmodType := ZmodType lane lane_zmodMixin.

Definition tree_key : (bool -> dpf.node seed_zmodType -> dpf.node seed_zmodType) ->
    (dpf.node seed_zmodType -> nat -> lane) -> (nat -> bool) -> nat -> nat -> nat -> lane ->
    seed * seed -> seed * seed ->
    seq (dpf.correction seed_zmodType * dpf.correction seed_zmodType) * (nat -> lane) :=
  @dpf.generate_key seed_zmodType lane_zmodType.
Definition tree_share : (bool -> dpf.node seed_zmodType -> dpf.node seed_zmodType) ->
    (dpf.node seed_zmodType -> nat -> lane) -> (nat -> bool) -> nat -> nat -> bool -> seed * seed ->
    seq (dpf.correction seed_zmodType * dpf.correction seed_zmodType) * (nat -> lane) -> nat -> lane :=
  @dpf.share seed_zmodType lane_zmodType.

Extraction Language OCaml.
Set Warnings "-extraction".
Extraction "extracted.ml" modulo_deal modulo_plan modulo_decode modulo_weights modulo_combine modulo_inverse
  tree_key tree_share Seed number Lane count.
