"""The same attacks on this library's pairwise masks, in one of its two modes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from attacks import Outcome, refused, report, succeeded
from mersenne import outputs_after
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract.decoder import capacity
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS, SecurityMode
from secagg.protocols.pairwise_mask import ServerState
from secagg.protocols.pairwise_mask.relay import PublishedRoster
from secagg.protocols.pairwise_mask.round0_advertise_keys import KeyAdvertisement
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import UnmaskingRequest
from secagg.session.ledger import Spent, SpentUpdates
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import Delivery, InsecurePairwiseSession, SessionSetup, same_sum

Attack = Callable[[SecurityMode], Outcome]


def session_of(mode: SecurityMode) -> InsecurePairwiseSession:
    return InsecurePairwiseSession(SessionSetup(mode=mode))


def stopped(call: Callable[[], object]) -> Outcome:
    """Expect one of the library's errors, and report its message."""
    try:
        call()
    except SecAggError as error:
        return refused(f"{type(error).__name__}: {error}")
    raise AssertionError("nothing was raised")


def honest(mode: SecurityMode) -> None:
    session = session_of(mode)
    assert same_sum(session.finish(), session.sum_of(session.client_ids))


def altered_request(session: InsecurePairwiseSession, victim: ClientId, contributors: range) -> bytes:
    """Change the clients reported as present in the server's request to one client."""
    request = UnmaskingRequest.decode(session.take(victim), session.server.roster)
    return replace(request, contributors=session.server.roster.set_of(contributors)).encode()


def at_rosters(mode: SecurityMode) -> tuple[InsecurePairwiseSession, dict[ClientId, KeyAdvertisement]]:
    """Run until the rosters are in transit; also return each client's advertisement."""
    session = session_of(mode)
    session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    kind, configuration = MessageKind.KEY_ADVERTISEMENT, session.server.configuration
    return session, {n: KeyAdvertisement.decode(session.sent_by(n, kind), configuration) for n in session.client_ids}


def show(session: InsecurePairwiseSession, victim: ClientId, listed: dict[ClientId, KeyAdvertisement]) -> object:
    """Send one client a roster of these clients."""
    published = PublishedRoster(session.server.configuration, session.server.roster.opening, listed)
    position = published.roster.position_of(victim)
    assert position is not None
    return session.clients[victim].answer(published.message_to(position).encode())


# --- The attacks ------------------------------------------------------------------------------------------------------


def inconsistent_dropouts(mode: SecurityMode) -> Outcome:
    session = session_of(mode)
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    victim = session.client_ids[0]
    first = next(outgoing.message for outgoing in session.pending if outgoing.receiver == victim)
    second = altered_request(session, victim, range(7))
    assert session.clients[victim].answer(first)
    return stopped(lambda: session.clients[victim].answer(second))


def cohort_of_one(mode: SecurityMode) -> Outcome:
    """Send a client a roster of itself and an accomplice; a roster of one has no encoding."""
    session, advertised = at_rosters(mode)
    victim, accomplice = session.client_ids[:2]
    return stopped(lambda: show(session, victim, {n: advertised[n] for n in (victim, accomplice)}))


def sum_below_a_floor(mode: SecurityMode) -> Outcome:
    session = session_of(mode)
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    victim = session.client_ids[0]
    message = altered_request(session, victim, range(2))
    return stopped(lambda: session.clients[victim].answer(message))


def the_round_again(mode: SecurityMode) -> Outcome:
    """Request rounds of one model under new numbers, more often than a client's attempts."""
    del mode
    ledger = SpentUpdates()

    def uploaded(number: int) -> None:
        ledger.charge(Spent(task=b"a task", number=number, model=bytes([1]) * 32))

    for number in range(ATTEMPTS):
        uploaded(number)
    return stopped(lambda: uploaded(ATTEMPTS))


def replayed_messages(mode: SecurityMode) -> Outcome:
    session = session_of(mode)
    session.finish()
    victim = session.client_ids[0]
    request = UnmaskingRequest.decode(session.sent_to(victim, MessageKind.UNMASKING_REQUEST), session.server.roster)
    again = session.clients[victim].answer(request.encode())
    assert again == session.sent_by(victim, MessageKind.UNMASKING_SHARES), "the same bytes, and nothing new"
    other = replace(request, contributors=session.server.roster.set_of(range(7))).encode()
    return stopped(lambda: session.clients[victim].answer(other))


def key_in_the_middle(mode: SecurityMode) -> Outcome:
    """Send a client the server's own keys in place of all other clients'."""
    session, advertised = at_rosters(mode)
    made_up = InsecurePairwiseSession(SessionSetup(mode=mode, seed=b"the server's own"))
    made_up.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
    kind, configuration = MessageKind.KEY_ADVERTISEMENT, made_up.server.configuration
    victim, *others = session.client_ids
    for other in others:
        own = KeyAdvertisement.decode(made_up.sent_by(other, kind), configuration)
        advertised[other] = replace(advertised[other], channel_key=own.channel_key, mask_key=own.mask_key)
    if mode is SecurityMode.ACTIVE:
        return stopped(lambda: show(session, victim, advertised))
    assert show(session, victim, advertised)
    return succeeded("a client shared its secrets under the server's keys, which this mode trusts, as documented")


def malformed_upload(mode: SecurityMode) -> Outcome:
    attacker = session_of(mode).client_ids[0]

    def cut(delivery: Delivery) -> tuple[Delivery, ...]:
        is_upload = delivery.sender == attacker and delivery.kind is MessageKind.MASKED_INPUT
        return (replace(delivery, message=delivery.message[:-1]) if is_upload else delivery,)

    session = InsecurePairwiseSession(SessionSetup(mode=mode), adversary=cut)
    total = session.finish()
    assert same_sum(total, session.sum_of(session.client_ids[1:]))
    assert {sender for sender, _ in session.refusals} == {attacker}
    return refused("the upload was excluded, and the sum of the other seven was exact")


def silent_overflow(mode: SecurityMode) -> Outcome:
    """Invite eight clients to a sum in a ring that holds four."""
    session = session_of(mode)
    client = session.enrol(session.client_ids[0], capacity=capacity(6, 8))
    codec = ScalarQuantization(shape=(4,), bits=8, modulus_bits=16, scales=(8.0 / 127,))
    assert codec.capacity < 1100, "and the codec says how many clients fit"
    return stopped(lambda: client.answer(session.server.invitation))


def predictable_masks(_: SecurityMode) -> Outcome:
    with Secret("mask key", bytes(range(32))) as key:
        drawn = [int(word) for word in expand(key, Ring(32), 1000)]
    assert outputs_after(drawn[:624], 376) != drawn[624:]
    return refused("624 words of a mask did not predict the next: they are AES-256 output under a 32-byte key")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    chosen = SecurityMode[sys.argv[1].upper()]
    attacks: dict[str, Attack] = {
        "inconsistent dropouts": inconsistent_dropouts,
        "cohort of one": cohort_of_one,
        "sum below a floor": sum_below_a_floor,
        "the round again": the_round_again,
        "replayed messages": replayed_messages,
        "key in the middle": key_in_the_middle,
        "malformed upload": malformed_upload,
        "silent overflow": silent_overflow,
        "predictable masks": predictable_masks,
    }
    report(
        "secagg",
        f"pairwise masks, `{sys.argv[1]}`",
        partial(honest, chosen),
        {name: partial(attack, chosen) for name, attack in attacks.items()},
    )
