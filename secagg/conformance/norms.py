"""The law of the largest norm: no single update that can be decoded is longer than its scheme says."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from secagg.contract import IndexSegment, LinearDecoder, Payload
from secagg.errors import ContractViolation, InvalidParameters

from .candidate import Update
from .trees import leaves
from .trial import Decoder, Trial, decode_alone, draw_seed, encode


def largest_norm(trial: Trial) -> None:
    """Decode what honest clients send, and then indices that nobody would; a scheme without a bound promises none."""
    candidate = trial.candidate
    if not hasattr(candidate.make(), "largest_norm"):
        return
    bound, other = _bound(candidate.make()), _bound(candidate.make())
    if bound != other:
        raise ContractViolation(f"two objects with the same public parameters bound norms by {bound} and by {other}")
    allowed = bound * (1 + candidate.ulps * float(np.finfo(np.float32).eps))

    def require(decoder: Decoder, payload: Payload, what: str) -> None:
        found = norm(decode_alone(decoder, payload))
        if not found <= allowed:
            raise ContractViolation(f"{what} decodes to a norm of {found}, and largest_norm is {bound}")

    for update in candidate.extremes:
        require(candidate.make(), encode(candidate.make(), update), "an extreme update")
    worst = _longest_codewords(candidate.make())
    if worst is not None:
        require(candidate.make(), worst, "the longest codeword of every block")

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        payload = encode(decoder, trial.update(data), draw_seed(data))
        require(decoder, payload, "an update")
        seed = data.draw(st.binary(min_size=1, max_size=4), label="indices")
        require(decoder, with_any_indices(payload, seed), "a client that chooses any codewords")

    trial.search(holds, "largest_norm")


def slack(decoder: LinearDecoder[Any], payloads: Sequence[Payload]) -> float:
    """Return how many times the largest norm exceeds the root mean square of the norms of honest clients.

    From about 1.1 on, a check of norms besides that of one codeword a block would hold a dishonest client to less.

    Raises:
        InvalidParameters: the scheme bounds no norms, or there are no payloads.
    """
    if not hasattr(decoder, "largest_norm") or not payloads:
        raise InvalidParameters("the slack of a bound is that of a scheme with largest_norm, over honest payloads")
    squares = [norm(decode_alone(decoder, payload)) ** 2 for payload in payloads]
    return _bound(decoder) / math.sqrt(sum(squares) / len(squares))


def norm(update: Update) -> float:
    """Return the length of an update, all its arrays together."""
    return math.sqrt(sum(float(np.square(leaf, dtype=np.float64).sum()) for leaf in leaves(update).values()))


def with_any_indices(payload: Payload, seed: bytes) -> Payload:
    """Return the payload with indices drawn anew, because few updates choose every codeword for every block."""
    values = list(payload.values)
    for position, segment in enumerate(payload.layout.segments):
        if isinstance(segment, IndexSegment):
            drawn = hashlib.shake_256(seed + bytes([position % 256])).digest(4 * segment.blocks)
            values[position] = (np.frombuffer(drawn, dtype="<u4") % segment.codewords).astype(segment.ring.word)
    return Payload(payload.layout, tuple(values))


def _bound(decoder: Any) -> float:  # noqa: ANN401 -- whatever a scheme says
    bound = decoder.largest_norm
    if type(bound) is not float or not 0 < bound < math.inf:
        raise ContractViolation(f"largest_norm is a positive float; got {bound!r}")
    return bound


def _longest_codewords(decoder: Any) -> Payload | None:  # noqa: ANN401 -- a decoder that may have tables
    """Return the payload of a client that chooses the longest codeword everywhere, where all is chosen from tables."""
    segments, kind = decoder.layout.segments, cast("type[object]", type(decoder))
    if not hasattr(kind, "tables") or not all(isinstance(segment, IndexSegment) for segment in segments):
        return None
    values = list[Any]()
    for segment, tables in zip(segments, decoder.tables, strict=True):
        longest = [
            np.full(table.blocks, np.einsum("jd,jd->j", table.entries, table.entries).argmax()) for table in tables
        ]
        values.append(np.concatenate(longest).astype(segment.ring.word))
    return Payload(decoder.layout, tuple(values))
