"""The parties that evidence names: every row of the table."""

from __future__ import annotations

import copy
import pickle

import pytest

from secagg.blame import (
    Evidence,
    answered_twice,
    between_servers,
    culprits,
    disputed,
    from_server,
    said_by,
    signed_by,
    unverified,
)
from secagg.errors import NOBODY, UNDECIDED, MalformedMessage, Misuse, Party, PeerError, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode

ALICE, BOB, SERVERS = ClientId(1), ClientId(2), {ServerId(0), ServerId(1)}

TABLE: dict[Evidence, frozenset[Party] | set[Party]] = {
    Evidence.UNVERIFIED_BYTES: {ALICE, ServerId()},
    Evidence.VERIFIED_CONTENT: {ALICE},
    Evidence.REFUSED_HALF: {ALICE, *SERVERS},
    Evidence.SECOND_ANSWER: NOBODY,
    Evidence.DIFFERENT_LISTS: {*SERVERS},
    Evidence.BETWEEN_SERVERS: {*SERVERS},
    Evidence.REFUSED_REQUEST: {ServerId()},
    Evidence.UNOPENED_UPLOAD: {ALICE, ServerId()},
    Evidence.CIRCUMSTANCE: NOBODY,
}


@pytest.mark.parametrize("evidence", Evidence)
def test_evidence_names_the_parties_of_its_row(evidence: Evidence) -> None:
    found = culprits(evidence, sender=ALICE)
    assert found == TABLE[evidence]
    assert (found is NOBODY) == (not TABLE[evidence])


def test_evidence_that_names_an_unknown_party_is_a_misuse() -> None:
    with pytest.raises(Misuse, match="REFUSED_HALF names its sender"):
        culprits(Evidence.REFUSED_HALF)


def test_signed_evidence_names_only_the_signer() -> None:
    assert said_by(ALICE, SecurityMode.ACTIVE) == signed_by(ALICE) == {ALICE}
    assert said_by(ALICE, SecurityMode.SEMI_HONEST) == unverified(ALICE) == {ALICE, ServerId()}


def test_two_answers_of_one_client_blame_the_network_too() -> None:
    assert answered_twice(ALICE, is_signed=True) is NOBODY
    assert answered_twice(ALICE, is_signed=False) == unverified(ALICE)


def test_the_server_answers_for_the_network_and_two_servers_for_their_link() -> None:
    assert from_server() == {ServerId()}
    assert between_servers() == SERVERS
    assert disputed(signed_by(ALICE), unverified(BOB)) == {ALICE, BOB, ServerId()}
    assert not disputed()


def test_no_culprits_stays_empty_when_undecided_culprits_are_filled_in() -> None:
    def raised(error: PeerError) -> PeerError:
        with pytest.raises(PeerError) as caught, blaming(BOB), blaming(ALICE):
            raise error
        return caught.value

    assert raised(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=NOBODY)).culprits is NOBODY
    assert raised(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=())).culprits is NOBODY
    assert raised(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=UNDECIDED)).culprits == {ALICE}
    assert raised(MalformedMessage("", reason=Reason.TRUNCATED)).culprits == {ALICE}


@pytest.mark.parametrize("value", [NOBODY, UNDECIDED], ids=["nobody", "undecided"])
def test_an_error_without_culprits_has_none_in_another_process_either(value: frozenset[Party]) -> None:
    error = PeerMisbehaved("", reason=Reason.REPLAYED, culprits=value)
    assert pickle.loads(pickle.dumps(error)).culprits is copy.deepcopy(error).culprits is value  # noqa: S301
