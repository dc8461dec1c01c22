"""An upload that comes a second time: the same bytes change nothing, and any others are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from secagg.conformance.sessions.rehearsal import Rehearsal
from secagg.errors import PeerError
from secagg.identifiers import ServerId
from secagg.wire import HEADER_BYTES
from tests.harness.session_worlds import SETTINGS, candidate_of

NAMES = [
    name for name in SETTINGS if name.startswith(("pairwise", "enclave", "two servers", "plain", "one message, a"))
]
"""Other servers say themselves what is wrong with an upload before they look whether it came before."""
MOST_FLIPS = 400
"""Of a short message every byte is altered."""


def altered(message: bytes) -> Iterator[bytes]:
    """Alter a message behind its header: each byte of it, or each so many."""
    for at in range(HEADER_BYTES, len(message), 1 + len(message) // MOST_FLIPS):
        yield message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
    yield from (message[:-1], message + b"\0", message[:HEADER_BYTES])


@pytest.mark.parametrize("name", NAMES)
def test_a_second_upload_is_refused_whichever_byte_of_it_is_another(name: str) -> None:
    candidate = candidate_of(name)
    rehearsal = Rehearsal.begin(candidate)
    server = rehearsal.server
    while server.stage is not None and not server.stage.takes_update:
        rehearsal.step()
    answers = rehearsal.all_answers()
    rehearsal.deliver(answers)
    first, other = candidate.clients[:2]
    before = server.turnout, server.awaited
    for second in (*altered(answers[first]), answers[other]):
        try:
            server.receive(first, second)
        except PeerError as error:
            assert first in error.culprits <= {first, ServerId()}  # noqa: PT017
    server.receive(first, answers[first])
    assert (server.turnout, server.awaited) == before
    rehearsal.require_exact(rehearsal.finish(), candidate.clients)
    rehearsal.world.close()
