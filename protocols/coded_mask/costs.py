"""Bytes that a client of coded masks sends and receives, and its work, from the configuration alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from secagg.contract import Layout
from secagg.crypto.hpke import sealing_sizes
from secagg.parameters import Suite
from secagg.session.costs import ONE_IN, Costs, Work
from secagg.session.roles import Subject

from .configuration import NONCE_BYTES
from .field import ELEMENT_BYTES
from .session import CodedMaskSettings

_HEADER, _COUNT, _ENTRY = 7 + 32, 4, 8 + 4
"""Bytes of a message: its kind and T0, a count or a length, and of an entry the client with a length."""
_PASSES: Final = 8
"""Passes over an element besides its code: drawn, added, taken modulo, written, sent and read."""


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Count for one client in twenty that is curious with the server, and as many that drop out.

    Raises:
        InvalidParameters: there are too few or too many clients.
    """
    rare = clients // ONE_IN
    settings = CodedMaskSettings(suite=suite, corrupted=rare, dropped=rare)
    subject = Subject(task=b"a plan", round_number=1, layout=layout, capacity=clients)
    configuration = settings.plan(subject, clients, bytes(NONCE_BYTES))
    key, overhead = sealing_sizes(suite)
    piece, masked = ELEMENT_BYTES * configuration.piece_length, ELEMENT_BYTES * configuration.length
    pieces = _entries(clients, piece + overhead)
    coded = configuration.target * configuration.piece_length
    yield Costs(
        plan=f"a curious server, {suite.value}, {configuration.privacy} clients that tell it what they know; "
        f"{configuration.target} must stay to the end",
        payload_bytes=layout.payload_bytes,
        up_bytes=3 * (_HEADER + _COUNT) + key + pieces + masked + piece,
        down_bytes=len(configuration.encode()) + _entries(clients, key) + pieces + _entries(clients, 0),
        client=Work(
            word_operations=clients * (coded + configuration.piece_length) + _PASSES * configuration.length,
            steps=clients,
        ),
        server=Work(
            word_operations=(clients + configuration.target) * configuration.length + clients * pieces // ELEMENT_BYTES,
            steps=clients * clients,
        ),
    )


def _entries(count: int, length: int) -> int:
    """Return the bytes of a message with so many entries of one length."""
    return _HEADER + _COUNT + count * (_ENTRY + length)
