"""Invitations that a policy must refuse, whatever the server claims, and invalid policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from secagg.choices import Accumulation, ReleaseForm, SharingMode, Topology
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.parameters import SecurityMode, Suite
from secagg.session.client_policy import (
    DEFAULTS,
    RULES,
    ClientPolicy,
    Compared,
    Limit,
    Pinned,
    require_policy,
    usual_corrupted,
    usual_dropped,
)
from secagg.session.registry import find, names

OWN, HOSTILE = bytes([1]) * 32, bytes([7]) * 32
LIMITS = [name for name, rule in RULES.items() if isinstance(rule, Limit)]
ENCLAVE, PAIRWISE, TWO_SERVERS = (find(name).keeps for name in ("enclave", "pairwise", "two-servers"))


def enclave(
    form: object = ReleaseForm.DECODED_SUM, accumulation: object = Accumulation.OBLIVIOUS, authority: object = HOSTILE
) -> Iterator[Compared]:
    yield "suites", Suite.HYBRID, "suite"
    yield "minimum_cohort", 3, "cohort"
    yield "authority", authority, "another authority"
    yield "forms", form, "it releases histograms"
    yield "accumulations", accumulation, "direct form"


def two_servers(keys: object = (HOSTILE, bytes([8]) * 32)) -> Iterator[Compared]:
    yield "sharings", SharingMode.CHECKED_POINT_FUNCTIONS, "mode"
    yield "authority", OWN, "another authority"
    yield "server_keys", keys, "not the two servers"


def pairwise(**offered: Any) -> Iterator[Compared]:
    most: dict[str, Any] = {"suites": Suite.CLASSIC, "modes": SecurityMode.ACTIVE, "topologies": Topology.SPARSE}
    for name, value in (most | {"minimum_cohort": 60} | offered).items():
        yield name, value, f"{name} is {{offered}}, and not {{own}}"


def refused(policy: ClientPolicy, keeps: frozenset[str], offer: Iterator[Compared], said: str) -> None:
    with pytest.raises(InvalidParameters, match=said) as error:
        policy.admit("the offer", keeps, offer)
    assert error.value.reason is Reason.BELOW_FLOOR


def test_a_client_without_a_pinned_authority_refuses_an_enclave() -> None:
    refused(ClientPolicy(), ENCLAVE, enclave(), "another authority; set authority")
    refused(ClientPolicy(), ENCLAVE, enclave(authority=None), "set authority")
    refused(ClientPolicy(authority=OWN), ENCLAVE, enclave(), "another authority")
    ClientPolicy(authority=OWN).admit("the offer", ENCLAVE, enclave(authority=OWN))


def test_a_client_without_pinned_servers_refuses_two_servers_of_one_operator() -> None:
    refused(ClientPolicy(authority=OWN), TWO_SERVERS, two_servers(), "set server_keys")
    pinned = ClientPolicy(authority=OWN, server_keys=(OWN, HOSTILE))
    refused(pinned, TWO_SERVERS, two_servers(keys=(HOSTILE, OWN)), "not the two servers")
    refused(pinned, TWO_SERVERS, two_servers(keys=[OWN, HOSTILE]), "not the two servers")
    for keys in ((OWN, OWN), (OWN, bytes(32)), (OWN,), [OWN, HOSTILE], (OWN, "b" * 32)):
        with pytest.raises(InvalidParameters, match="2 different public keys"):
            ClientPolicy(server_keys=keys)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_client_with_a_pinned_authority_refuses_an_offer_without_one() -> None:
    """An offer in semi-honest mode names no authority, so there would be nothing to compare."""
    keeps = find("one-message").keeps
    refused(ClientPolicy(authority=OWN), keeps, iter([("suites", Suite.CLASSIC, "suite")]), "names no authority")


def test_a_pinned_party_that_a_protocol_does_not_have_is_refused() -> None:
    refused(ClientPolicy(server_keys=(OWN, HOSTILE)), PAIRWISE, pairwise(), "requires server_keys")


def test_the_default_policy_accepts_usual_offers() -> None:
    ClientPolicy().admit("the offer", PAIRWISE, pairwise())
    # This is compared once the number of advertising clients is known.
    ClientPolicy(assumed_corrupted=2).admit("the offer", PAIRWISE, pairwise())


@pytest.mark.parametrize(
    ("policy", "keeps", "offer"),
    [
        (ClientPolicy(privacy_bits=60, authority=OWN), ENCLAVE, enclave(authority=OWN)),
        (ClientPolicy(minimum_holders=5), PAIRWISE, pairwise()),
        (ClientPolicy(sealed_vectors_accepted=False), PAIRWISE, pairwise()),
        (ClientPolicy(topologies=frozenset({Topology.FULL}), authority=OWN), ENCLAVE, enclave(authority=OWN)),
    ],
    ids=["a limit", "another limit", "a refusal", "a choice"],
)
def test_a_stricter_value_that_a_protocol_cannot_meet_is_refused(
    policy: ClientPolicy, keeps: frozenset[str], offer: Iterator[Compared]
) -> None:
    refused(policy, keeps, offer, "which the offer cannot enforce")


def test_a_client_that_does_not_allow_something_accepts_only_offers_without_it() -> None:
    own, flag = ClientPolicy(authority=OWN, sealed_vectors_accepted=False), "sealed_vectors_accepted"
    for is_offered in (False, True):
        ClientPolicy(authority=OWN).admit("the offer", ENCLAVE, iter([(flag, is_offered, ""), *enclave(authority=OWN)]))
    own.admit("the offer", ENCLAVE, iter([(flag, False, "it sees the values"), *enclave(authority=OWN)]))
    refused(own, ENCLAVE, iter([(flag, True, "it sees the values")]), "it sees the values")


def test_a_refusal_names_the_accepted_choices_in_words() -> None:
    own = ClientPolicy(modes=frozenset({SecurityMode.ACTIVE}))
    refused(own, PAIRWISE, pairwise(modes=SecurityMode.SEMI_HONEST), "modes is semi_honest, and not active; change")


def test_a_looser_value_that_a_protocol_does_not_use_is_accepted() -> None:
    loose = ClientPolicy(
        authority=OWN, maximum_population=1 << 20, minimum_modulus_bits=1, sharings=frozenset(SharingMode)
    )
    loose.admit("the offer", ENCLAVE, enclave(authority=OWN))


def test_equal_members_of_two_enumerations_are_not_the_same() -> None:
    one, other = (int(each(1)) for each in (SharingMode, ReleaseForm))
    assert one == other
    own = ClientPolicy(authority=OWN)
    refused(own, ENCLAVE, enclave(form=SharingMode(1), authority=OWN), "releases histograms")
    refused(own, ENCLAVE, enclave(form=1, authority=OWN), "releases histograms")
    refused(own, ENCLAVE, enclave(form=ReleaseForm.HISTOGRAM, authority=OWN), "releases histograms")
    refused(own, ENCLAVE, enclave(accumulation=Accumulation.DIRECT, authority=OWN), "direct form")
    for wrong in ({SharingMode(1)}, frozenset({SharingMode(1)}), frozenset({1}), frozenset[Any](), "DECODED_SUM"):
        with pytest.raises(InvalidParameters, match="forms must be a frozenset of at least one ReleaseForm"):
            ClientPolicy(forms=wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("key", [b"", bytes(32), "k" * 32, (OWN,)])
def test_a_pinned_authority_must_be_one_public_key(key: object) -> None:
    with pytest.raises(InvalidParameters, match=r"^authority must be a public key of 32 bytes, not all zeros$"):
        ClientPolicy(authority=key)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("clients", [1, 1 << 32, 100.0, True])
def test_a_policy_for_a_number_of_clients_refuses_what_is_no_such_number(clients: Any) -> None:
    with pytest.raises(InvalidParameters, match=r"^clients must be"):
        ClientPolicy.among(clients)


def test_a_policy_that_no_cohort_can_meet_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="maximum_population is 19, below minimum_cohort 20"):
        ClientPolicy(maximum_population=19, minimum_cohort=20)
    assert ClientPolicy(maximum_population=20, minimum_cohort=20).minimum_cohort == 20


def test_a_certified_key_accepts_the_active_mode_unless_its_owner_chose_another() -> None:
    assert ClientPolicy().with_keys().modes == {SecurityMode.ACTIVE}
    trusting = ClientPolicy(modes=frozenset({SecurityMode.SEMI_HONEST}))
    assert trusting.with_keys().modes == {SecurityMode.SEMI_HONEST}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "60", 60.0, None, -1, b"\3"])
def test_a_limit_must_be_an_integer(name: str, value: object) -> None:
    given: Any = {name: value}
    with pytest.raises(InvalidParameters, match=f"^{name} must be an integer"):
        ClientPolicy(**given)
    with pytest.raises(InvalidParameters, match=f"^{name} must be an integer"):
        ClientPolicy().raised_by(given)


@pytest.mark.parametrize("value", [1, 0, None, "no", float("nan")])
def test_a_flag_must_be_a_bool(value: object) -> None:
    with pytest.raises(InvalidParameters, match="must be True or False"):
        ClientPolicy().raised_by({"sealed_vectors_accepted": value})


@pytest.mark.parametrize("name", LIMITS)
def test_an_operator_can_only_make_a_limit_stricter(name: str) -> None:
    rule, default = RULES[name], DEFAULTS[name]
    assert isinstance(rule, Limit)
    for value in (default + 1, default - 1):
        if not rule.minimum <= value <= (rule.maximum or value):
            continue
        is_stricter = rule.is_minimum == (value > default)
        assert getattr(ClientPolicy().raised_by({name: value}), name) == (value if is_stricter else default)


def test_an_operator_can_remove_choices_but_not_add_any() -> None:
    narrow = ClientPolicy().raised_by({"modes": frozenset({SecurityMode.ACTIVE}), "sharings": frozenset(SharingMode)})
    assert narrow.modes == {SecurityMode.ACTIVE}
    assert narrow.sharings == {SharingMode.CHECKED_POINT_FUNCTIONS}
    with pytest.raises(InvalidParameters, match="at least one SecurityMode"):
        narrow.raised_by({"modes": frozenset({SecurityMode.SEMI_HONEST})})
    assert (
        not replace(narrow, sealed_vectors_accepted=False)
        .raised_by({"sealed_vectors_accepted": True})
        .sealed_vectors_accepted
    )


def test_an_operator_who_pins_another_party_is_refused() -> None:
    assert ClientPolicy().raised_by({"authority": OWN}).authority == OWN
    assert ClientPolicy(authority=OWN).raised_by({"authority": OWN}).authority == OWN
    with pytest.raises(InvalidParameters, match="another party is already pinned"):
        ClientPolicy(authority=OWN).raised_by({"authority": HOSTILE})


def test_every_value_that_a_protocol_checks_is_in_the_policy() -> None:
    kept = {name: find(name).keeps for name in names()}
    assert all(keeps <= RULES.keys() for keeps in kept.values())
    assert frozenset[str]().union(*kept.values()) == RULES.keys(), "a value that no protocol checks has no effect"
    assert all({"suites", "modes", "minimum_cohort", "maximum_length"} <= keeps for keeps in kept.values())
    assert {name for name in names() if any(isinstance(RULES[each], Pinned) for each in kept[name])} == {
        *("enclave", "one-message", "two-servers")
    }


def test_a_comparison_that_a_protocol_does_not_declare_is_an_error() -> None:
    with pytest.raises(TypeError, match="minimum_holders is compared"):
        ClientPolicy().admit("the offer", PAIRWISE, pairwise(minimum_holders=9))


def test_a_policy_must_be_a_client_policy() -> None:
    require_policy(ClientPolicy())
    for wrong in (None, {"minimum_cohort": 3}, ClientPolicy):
        with pytest.raises(Misuse, match=f"must be a ClientPolicy; got {type(wrong).__name__}$"):
            require_policy(wrong)


def test_the_usual_numbers_of_corrupted_and_dropped_clients() -> None:
    assert [usual_corrupted(clients) for clients in (2, 3, 10, 11, 200)] == [1, 1, 1, 2, 20]
    assert [usual_dropped(clients) for clients in (3, 4, 20, 30, 100, 101, 200)] == [0, 1, 6, 10, 10, 10, 20]
