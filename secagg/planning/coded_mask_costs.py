"""What coded masks cost a client, from the lengths of their messages; and the server, in operations on words."""

from __future__ import annotations

from dataclasses import dataclass

from secagg.contract import Layout
from secagg.crypto.hpke import sealing_sizes
from secagg.parameters import LEAST_COHORT, Suite
from secagg.protocols.coded_mask import DIGEST_BYTES, ELEMENT_BYTES, NONCE_BYTES, Configuration

from .pairwise_costs import ONE_IN, Work

_FRAME_BYTES = 7 + DIGEST_BYTES + 4
"""Of every message but the first: its header, T0, and a length or a number of entries."""
_ENTRY_BYTES = 8 + 4


@dataclass(frozen=True, slots=True)
class CodedMaskCosts:
    """One client's bytes, and the server's work."""

    sent: int
    received: int
    work: Work


def coded_mask_costs(layout: Layout, clients: int, suite: Suite) -> CodedMaskCosts:
    """Return the costs of a sum that is planned for as many corrupted clients and dropouts as pairwise masks are.

    Raises:
        InvalidParameters: there are too many clients, or too few.
    """
    rare = clients // ONE_IN
    configuration = Configuration(
        task=b"a plan",
        round_number=0,
        nonce=bytes(NONCE_BYTES),
        model_digest=bytes(DIGEST_BYTES),
        application_digest=bytes(DIGEST_BYTES),
        suite=suite,
        layout=layout,
        population=clients,
        privacy=max(1, rare),
        target=max(clients - rare, LEAST_COHORT + 1),
    )
    key, overhead = sealing_sizes(suite)
    vector, piece = ELEMENT_BYTES * configuration.length, ELEMENT_BYTES * configuration.piece_length
    pieces = _FRAME_BYTES + clients * (_ENTRY_BYTES + piece + overhead)
    roster = _FRAME_BYTES + clients * (_ENTRY_BYTES + key)
    return CodedMaskCosts(
        sent=_FRAME_BYTES + key + pieces + _FRAME_BYTES + vector + _FRAME_BYTES + piece,
        received=len(configuration.encode()) + roster + pieces + _FRAME_BYTES + clients * _ENTRY_BYTES,
        # The server adds all uploads, and takes the mask's rows from as many answers as must be there.
        work=Work(0, configuration.length * (clients + configuration.target)),
    )
