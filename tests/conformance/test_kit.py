"""The conformance suite itself: its messages, its requirements on candidates, and the forms of updates it accepts."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.fixed_point import Identity
from secagg.conformance import LAWS, Candidate, Law, cases
from secagg.conformance.candidate import (
    InsecureCountedCoins,
    assembled,
    copied,
    leaves,
    require_identical,
    require_sum,
    require_within,
    with_leaves,
)
from secagg.contract import MAXIMUM_CONTRIBUTORS, Aggregate, Layout, Payload
from secagg.crypto.entropy import Coins
from secagg.errors import ContractViolation, InvalidParameters, Misuse, Reason, SecAggError

QUICK = settings(max_examples=20, deadline=None, database=None, print_blob=False, phases=[Phase.generate])
"""Any counterexample is enough."""
LAW = {str(law): law for law in LAWS}
Update = Any


def identity(length: int = 2, bound: int = 10, modulus_bits: int = 12) -> Identity:
    return Identity(length=length, bound=bound, modulus_bits=modulus_bits)


CANDIDATE = Candidate(
    name="identity",
    make=identity,
    updates=arrays(np.int64, 2, elements=st.integers(-10, 10)),
    error=0,
    extremes=[np.full(2, 10), np.full(2, -10)],
    others={"another bound": lambda: identity(bound=9)},
)


class Pair:
    """Two schemes combined: an update is a tuple of two."""

    def __init__(self, bound: int = 10) -> None:
        self.inner = identity(bound=bound)

    @property
    def layout(self) -> Layout:
        return Layout(self.inner.layout.segments * 2, self.inner.layout.version)

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    def encode(self, update: Update, coins: Coins) -> Payload:
        payloads = [self.inner.encode(part, coins) for part in self.parts(update)]
        return Payload(self.layout, (payloads[0].values[0], payloads[1].values[0]))

    def decode(self, aggregate: Aggregate) -> Update:
        if aggregate.layout != self.layout:
            raise Misuse("another layout")
        halves = [Aggregate(self.inner.layout, (value,), aggregate.contributors) for value in aggregate.values]
        return self.form(*(self.inner.decode(half) for half in halves))

    def parts(self, update: Update) -> Update:
        # Compared by name, because pyright and mypy would otherwise disagree about the tuple's elements.
        if type(update).__name__ != "tuple" or len(update) != 2:
            raise Misuse("an update is a tuple of two")
        return update

    def form(self, first: Update, second: Update) -> Update:
        return first, second


class Nested(Pair):
    """The same, but an update is a dict with a dict with a list."""

    def parts(self, update: Update) -> Update:
        if type(update) is not dict or update.keys() != {"a", "b"}:
            raise Misuse("an update is a dict of a and b")
        return update["a"], update["b"]["c"][0]

    def form(self, first: Update, second: Update) -> Update:
        return {"a": first, "b": {"c": [second]}}


def one_more(update: Update) -> Update:
    return update + 1


# --- Messages ---------------------------------------------------------------------------------------------------------


def test_a_violation_is_reported_with_the_evidence_the_law_the_repair_and_the_update() -> None:
    with pytest.raises(ContractViolation) as caught:
        LAW["round_trip"].check(replace(CANDIDATE, expected=one_more))
    message = str(caught.value)
    assert message.startswith("identity breaks the law of round_trip: the decoded update, at update, has ")
    assert "they may only differ by 0" in message
    assert LAW["round_trip"].rule in message
    assert LAW["round_trip"].repair in message
    assert any("round_trip_of_identity" in note for note in caught.value.__notes__)
    assert any("array([0, 0])" in note for note in caught.value.__notes__)
    assert caught.value.reason is Reason.CONTRACT_VIOLATION


def test_an_error_on_a_valid_update_is_a_violation_that_quotes_the_error() -> None:
    with pytest.raises(ContractViolation, match=r"Misuse.*use FixedPoint for floats"):
        LAW["linearity"].check(replace(CANDIDATE, updates=arrays(np.float64, 2), extremes=[]), QUICK)


def test_an_error_on_an_aggregate_within_the_capacity_is_a_violation_that_quotes_the_error() -> None:
    class Reluctant(Pair):
        """Every aggregate is refused."""

        def decode(self, aggregate: Aggregate) -> Update:
            raise Misuse(f"{aggregate.contributors} clients are not enough")

    with pytest.raises(
        ContractViolation, match=r"decode refuses an aggregate of 1 contributors, capacity 204: .*not enough"
    ):
        LAW["round_trip"].check(replace(PAIR, make=Reluctant), QUICK)


def test_a_scheme_that_changes_its_answer_is_a_violation_and_no_error_of_the_search() -> None:
    calls = list[int]()

    class Moody(Pair):
        """The first payload differs from all later ones."""

        def parts(self, update: Update) -> Update:
            calls.append(1)
            return (one_more(update[0]), update[1]) if len(calls) == 1 else update

    with pytest.raises(ContractViolation, match="differently the second time"):
        LAW["determinism"].check(replace(PAIR, make=Moody))


@pytest.mark.parametrize(
    ("law", "due"), [("capacity", "CapacityExceeded"), ("version", "Misuse"), ("refusal", "Misuse")]
)
def test_an_error_of_the_wrong_class_is_named_with_the_expected_one(law: str, due: str) -> None:
    class Blunt(Pair):
        """Every refusal is a ValueError."""

        def encode(self, update: Update, coins: Coins) -> Payload:
            try:
                return super().encode(update, coins)
            except SecAggError as error:
                raise ValueError from error

        def decode(self, aggregate: Aggregate) -> Update:
            if aggregate.layout != self.layout or aggregate.contributors > self.capacity:
                raise ValueError
            return super().decode(aggregate)

    with pytest.raises(ContractViolation, match=rf"refused by ValueError\(\) instead of {due}"):
        LAW[law].check(replace(PAIR, make=Blunt), QUICK)


def test_the_documentation_lists_every_law_once(repository: Path) -> None:
    text = (repository / "compression" / "README.md").read_text(encoding="utf-8")
    rows = text.partition("| law | meaning |")[2].partition("\n\n")[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(law.name for law in LAWS)


# --- Requirements on a candidate --------------------------------------------------------------------------------------


def test_a_candidate_with_rings_must_give_extremes() -> None:
    with pytest.raises(InvalidParameters, match="extremes"):
        LAW["capacity"].check(replace(CANDIDATE, extremes=[]))


def test_extremes_that_do_not_reach_the_ends_of_the_codes_are_detected() -> None:
    timid = replace(CANDIDATE, extremes=[np.array([9, -9])])
    with pytest.raises(ContractViolation, match="tight_capacity=False"):
        LAW["capacity"].check(timid)
    LAW["capacity"].check(replace(timid, tight_capacity=False))


def test_one_extreme_is_enough_if_the_codes_are_symmetric() -> None:
    for extreme in (np.array([10, 0]), np.array([0, -10])):
        LAW["capacity"].check(replace(CANDIDATE, extremes=[extreme]))


def test_the_maximum_capacity_is_filled() -> None:
    class Endless(Pair):
        """Its ring could hold more than the maximum number of contributors; it declares that maximum."""

        def __init__(self) -> None:
            self.inner = identity(modulus_bits=64)

        @property
        def capacity(self) -> int:
            return MAXIMUM_CONTRIBUTORS

    for law in ("capacity", "alike"):
        LAW[law].check(replace(PAIR, make=Endless))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_ring_for_few_clients_is_refused(law: Law) -> None:
    with pytest.raises(InvalidParameters, match="wider ring"):
        law.check(replace(CANDIDATE, make=lambda: identity(bound=600)))


def test_an_error_bound_for_only_some_arrays_is_refused() -> None:
    pair = {"a": np.zeros(2), "b": np.zeros(2)}
    with pytest.raises(InvalidParameters, match=r"update\['a'\]"):
        require_within(pair, pair, {"a": np.zeros(2)}, ulps=0)


def test_a_capacity_that_is_not_an_integer_is_a_violation() -> None:
    class Vague(Pair):
        """The capacity is a float."""

        @property
        def capacity(self) -> Any:
            return float(super().capacity)

    with pytest.raises(ContractViolation, match="capacity must be an integer"):
        LAW["capacity"].check(replace(PAIR, make=Vague))


def test_two_objects_of_one_scheme_must_have_the_same_capacity() -> None:
    numbers = count()

    class Uneven(Pair):
        """Each new object's capacity is one lower than the last."""

        def __init__(self) -> None:
            super().__init__()
            self.number = next(numbers)

        @property
        def capacity(self) -> int:
            return super().capacity - self.number

    with pytest.raises(ContractViolation, match="capacities"):
        LAW["agreement"].check(replace(PAIR, make=Uneven), QUICK)


def test_the_caller_sets_the_length_of_the_search() -> None:
    tried = list[int]()

    def expected(update: Update) -> Update:
        tried.append(1)
        return update

    LAW["round_trip"].check(replace(CANDIDATE, expected=expected), settings(max_examples=7, database=None))
    assert 1 <= len(tried) <= 7


def test_a_candidate_must_give_schemes_with_other_parameters() -> None:
    with pytest.raises(InvalidParameters, match="`others`, give for each"):
        LAW["version"].check(replace(CANDIDATE, others={}))


# --- Forms of updates -------------------------------------------------------------------------------------------------


EXTREMES = [np.full(2, 10), np.full(2, -10)]
PAIR = Candidate(
    name="pair",
    make=Pair,
    updates=st.tuples(CANDIDATE.updates, CANDIDATE.updates),
    error=0,
    extremes=[(extreme, extreme) for extreme in EXTREMES],
    others={"another bound": lambda: Pair(bound=9)},
)
NESTED = Candidate(
    name="nested",
    make=Nested,
    updates=st.builds(Nested().form, CANDIDATE.updates, CANDIDATE.updates),
    error=0,
    extremes=[Nested().form(extreme, extreme) for extreme in EXTREMES],
    others={"another bound": lambda: Nested(bound=9)},
)


@pytest.mark.parametrize(("candidate", "law"), cases(PAIR, NESTED), ids=str)
def test_updates_may_be_trees_of_arrays(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


def test_a_dict_with_a_missing_or_an_extra_tensor_must_be_refused() -> None:
    class Forgiving(Nested):
        """Missing tensors are encoded as zero."""

        def parts(self, update: Update) -> Update:
            return super().parts(update if "a" in update else {"a": np.zeros(2, dtype=np.int64), **update})

    class Careless(Nested):
        """Unknown tensors are ignored."""

        def parts(self, update: Update) -> Update:
            return super().parts({name: update[name] for name in ("a", "b") if name in update})

    for make, found in ((Forgiving, "one tensor too few is encoded"), (Careless, "one tensor too many is encoded")):
        with pytest.raises(ContractViolation, match=found):
            LAW["refusal"].check(replace(NESTED, make=make), QUICK)


def test_a_payload_that_is_a_view_of_the_update_is_a_violation() -> None:
    class View(Pair):
        """Non-negative integers are returned as ring elements without a copy."""

        def __init__(self) -> None:
            self.inner = identity(modulus_bits=64)

        def encode(self, update: Update, coins: Coins) -> Payload:
            super().encode(update, coins)
            return Payload(self.layout, tuple(part.view(np.uint64) for part in update))

    positive = arrays(np.int64, 2, elements=st.integers(1, 10))
    with pytest.raises(ContractViolation, match="a payload changes when its update"):
        LAW["no_mutation"].check(replace(PAIR, make=View, updates=st.tuples(positive, positive)), QUICK)


def test_a_tree_can_be_taken_apart_and_rebuilt() -> None:
    tree = {"a": np.arange(2), "b": (np.zeros(1), [np.ones(3)])}
    assert list(leaves(tree)) == ["update['a']", "update['b'][0]", "update['b'][1][0]"]
    doubled = with_leaves(tree, lambda _, leaf: leaf * 2)
    assert type(doubled["b"]) is tuple
    assert type(doubled["b"][1]) is list
    assert doubled["b"][1][0].tolist() == [2.0, 2.0, 2.0]
    assert assembled(tree, {"a": 1}) == {"a": 1}
    assert not any(np.shares_memory(leaf, leaves(tree)[place]) for place, leaf in leaves(copied(tree)).items())


@pytest.mark.parametrize("strange", [None, "text", {1, 2}, object()], ids=["nothing", "text", "set", "object"])
def test_an_update_must_be_a_tree_of_arrays(strange: Any) -> None:
    with pytest.raises(ContractViolation, match="a dict, tuple or list"):
        leaves(strange)


@pytest.mark.parametrize(
    "other",
    [np.zeros(3), np.zeros((2, 1)), [np.zeros(2)], np.array([0.0, -0.0]), np.array([0.0, 1.0]), np.zeros(2, np.int64)],
    ids=repr,
)
def test_arrays_that_are_not_identical_differ(other: Update) -> None:
    require_identical(np.zeros(2), np.zeros(2), "two zeros")
    with pytest.raises(ContractViolation, match="zero and the other differ"):
        require_identical(np.zeros(2), other, "zero and the other")


def test_integers_are_added_exactly_and_floats_within_rounding() -> None:
    large = np.array([2**62 + 1])
    require_sum(np.array([2**63 - 1]), [large, np.array([2**61 - 1])], [1, 2], ulps=8)
    with pytest.raises(ContractViolation):
        require_sum(np.array([2**62]), [large], [1], ulps=8)
    third = np.array([1 / 3])
    require_sum(third * 3 + 2**-52, [third], [3], ulps=8)
    for ulps, total in ((8, third * 3 + 1e-14), (0, third * 3 + 2**-52), (8, np.array([float("nan")]))):
        with pytest.raises(ContractViolation):
            require_sum(total, [third], [3], ulps)


def test_sums_and_summands_must_have_one_structure() -> None:
    for part in (np.zeros(1), [np.zeros(2)], np.zeros((1, 2))):
        with pytest.raises(ContractViolation, match="differ in form"):
            require_sum(np.zeros(2), [part], [1], ulps=8)


def test_the_coins_of_the_suite_repeat_and_are_counted() -> None:
    first, second, other = (InsecureCountedCoins(seed) for seed in (b"a", b"a", b"b"))
    assert first.draw(8) == second.draw(8) != other.draw(8)
    assert first.draw(8) == second.draw(8) != first.draw(8)
    assert (first.draws, second.draws, other.draws) == (3, 2, 1)


def test_without_hypothesis_the_error_names_the_extra() -> None:
    program = (
        "import sys\n"
        "sys.modules['hypothesis'] = None\n"
        "try: import secagg.conformance\n"
        "except ModuleNotFoundError as missing: print(missing.name, missing, sep=': ')\n"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert child.stdout.startswith("hypothesis: ")
    assert "pip install '.[conformance]'" in child.stdout
