"""Attacks on expiry and revocation: expired and revoked keys, old standings, and an equivocating authority."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest

from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import round0_advertise_keys
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.round0_advertise_keys import KeyAdvertisement, authenticate
from secagg.session.certificates import HOUR, NO_STANDING, Certificate, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.signing_keys import issue_certificate
from secagg.session.standings import Clock, SeenStandings, Standings, require_standing
from secagg.session.store import Store, decoded_standing
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import MADE, InsecurePairwiseSession, SessionSetup, insecure_signing_key

DAY = 24 * HOUR
AUTHORITY, OTHER = (insecure_signing_key(name, b"standings") for name in ("authority", "other"))
MINE = issue_certificate(AUTHORITY, ClientId(1), OTHER.public_key, number=7, until=MADE // HOUR + 24)


def shown(number: int, *revoked: int, digest: bytes = bytes(32)) -> Standing:
    return Standing(number=number, revoked=revoked, digest=digest).signed(AUTHORITY)


@dataclass(frozen=True)
class Bearer:
    """Values to compare a standing with."""

    certificate: Certificate
    policy: ClientPolicy
    clock: Clock
    standings: Standings


def takes(standing: Standing, *, now: float = MADE, memory: SeenStandings | Store | None = None) -> None:
    """Let a client with the default policy check an offer's standing."""
    policy = InsecurePairwiseSession().policy
    clock: Callable[[], datetime] = lambda: datetime.fromtimestamp(now, UTC)  # noqa: E731
    client = Bearer(MINE, policy, clock, SeenStandings() if memory is None else memory)
    require_standing(standing, client, AUTHORITY.public_key)


def refused(match: str, standing: Standing, **how: object) -> None:
    with pytest.raises(InvalidParameters, match=match) as caught:
        takes(standing, **how)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.BELOW_FLOOR


# --- What a server shows ----------------------------------------------------------------------------------------------


def test_a_server_that_shows_no_standing_or_a_forged_one_is_refused() -> None:
    takes(shown(MADE))
    refused("missing", NO_STANDING)
    refused("not signed", Standing(number=MADE).signed(OTHER))
    refused("not signed", replace(shown(MADE, 3), revoked=()))
    refused("not signed", replace(shown(MADE), number=MADE - 1))


def test_a_server_that_kept_an_old_standing_hides_a_revocation_for_a_day_at_most() -> None:
    takes(shown(MADE), now=MADE + DAY)
    refused("hours old", shown(MADE), now=MADE + DAY + 1)


@pytest.mark.parametrize("place", ["memory", "store"])
def test_a_replayed_standing_is_refused_by_who_has_seen_a_newer_one(tmp_path: Path, place: str) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    memory = SeenStandings() if place == "memory" else Store(tmp_path / "state")
    takes(shown(MADE, 3), memory=memory)
    if isinstance(memory, Store):  # After a restart too.
        memory.close()
        memory = Store(tmp_path / "state")
    refused("has seen one of", shown(MADE - 60), memory=memory)
    takes(shown(MADE, 3), memory=memory)
    takes(shown(MADE + 1), memory=memory)


@pytest.mark.parametrize("change", ["revoked", "digest"])
def test_two_standings_with_one_number_are_kept_as_evidence(tmp_path: Path, change: str) -> None:
    """An authority that shows a revocation to only some clients could choose the participants."""
    (tmp_path / "state").mkdir(mode=0o700)
    one = shown(MADE, 3)
    two = shown(MADE) if change == "revoked" else shown(MADE, 3, digest=b"\1" * 32)
    seen, store = SeenStandings(), Store(tmp_path / "state")
    for memory in (seen, store):
        takes(one, memory=memory)
        refused("signed both", two, memory=memory)
        refused("signed both", two, memory=memory)
        # Neither is evidence: a server that replays an old standing, or one that shows the same one again.
        refused("has seen one of", shown(MADE - 60), memory=memory)
        takes(one, memory=memory)
    assert seen.evidence[0] == (one, two)
    with store.transaction() as rows:
        kept = rows.execute("SELECT seen, shown FROM contradictions").fetchall()
    assert [(decoded_standing(first), decoded_standing(second)) for first, second in kept] == [(one, two)]
    for standing in (one, two):
        standing.verify(AUTHORITY.public_key)


def test_no_standing_shuts_clients_out_for_good() -> None:
    """A temporary holder of the authority's key could sign the largest number, which the authority cannot exceed."""
    memory = SeenStandings()
    for number in (1 << 63, (1 << 64) - 1, MADE + HOUR + 1):
        refused("future", shown(number), memory=memory)
    takes(shown(MADE), memory=memory)


# --- A client's own certificate ---------------------------------------------------------------------------------------


def test_a_client_whose_own_key_was_revoked_unasked_is_told() -> None:
    refused("revokes this client's own certificate.*warn the authority", shown(MADE, 3, 7))


def test_a_client_whose_own_key_has_expired_is_told() -> None:
    refused("ask for a new one", shown(MADE + 24 * HOUR), now=MADE + 24 * HOUR)


# --- Other clients ----------------------------------------------------------------------------------------------------


def joined(*, number: int, until: int, revoked: tuple[int, ...] = ()) -> tuple[KeyAdvertisement, SessionConfiguration]:
    """Return an advertisement under a certificate, in a session with a standing."""
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE))
    standing = Standing(number=MADE, revoked=revoked).signed(session.authority_key)
    configuration = replace(session.server.configuration, standing=standing)
    client = session.client_ids[0]
    key = session.signing_keys[client]
    named = issue_certificate(session.authority_key, client, key.public_key, number=number, until=until)
    member = session.member(client, certificate=named)
    # Unlike the library's client, it joins although its certificate has expired.
    with patch.object(round0_advertise_keys, "require_standing"):
        sent = member.join(session.setup.subject).answer(configuration.encode())
    return KeyAdvertisement.decode(sent, configuration), configuration


@pytest.mark.parametrize(
    ("until", "revoked", "is_valid"),
    [
        (MADE // HOUR + 1, (), True),
        (MADE // HOUR + 1, (4, 6), True),
        (MADE // HOUR + 1, (4, 5, 6), False),
        (MADE // HOUR, (), False),
        (0, (), False),
    ],
)
def test_a_revoked_or_expired_key_is_nobodys(until: int, revoked: tuple[int, ...], *, is_valid: bool) -> None:
    """The server and the neighbours judge it only by the standing, so they never disagree."""
    advertisement, configuration = joined(number=5, until=until, revoked=revoked)
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE))
    if is_valid:
        assert authenticate(advertisement, configuration, session.authority) is not None
        return
    with pytest.raises(AuthenticationFailed):
        authenticate(advertisement, configuration, session.authority)


def test_the_standing_is_in_the_digest_of_the_offer() -> None:
    """Otherwise a server could show some clients a standing with a revocation, and others one without."""
    configuration = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE)).server.configuration
    other = replace(configuration, standing=replace(configuration.standing, revoked=(9,)))
    assert other.context != configuration.context
    assert MessageKind.SESSION_OFFER is SessionConfiguration.kind


def test_a_client_joins_no_session_with_a_standing_that_it_refuses() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE))
    client = session.client_ids[0]
    for made in (MADE - DAY - 1, MADE + HOUR + 1):
        standing = Standing(number=made).signed(session.authority_key)
        offer = replace(session.server.configuration, standing=standing)
        with pytest.raises(InvalidParameters, match="the standing of the roster"):
            session.member(client).join(session.setup.subject).answer(offer.encode())


def test_a_client_takes_no_other_authority_for_its_own_and_is_told_how_to_follow_it() -> None:
    session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE))
    offer = replace(
        session.server.configuration, authority=OTHER.public_key, standing=Standing(number=MADE).signed(OTHER)
    )
    with pytest.raises(InvalidParameters, match=r"does not trust.*secagg keys follow"):
        session.member(session.client_ids[0]).join(session.setup.subject).answer(offer.encode())


def test_a_client_that_cannot_sign_remembers_no_standing() -> None:
    session, memory = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE)), SeenStandings()
    member = replace(session.member(session.client_ids[0]), standings=memory)
    assert member.signing_key is not None
    member.signing_key.wipe()
    with patch.object(memory, "see_standing") as remembered, pytest.raises(Misuse):
        member.join(session.setup.subject).answer(session.server.configuration.encode())
    assert not remembered.called
