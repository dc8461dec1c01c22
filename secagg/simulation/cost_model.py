"""What every combination of a scheme and a protocol costs, computed from layouts and message lengths.

Bytes are those of one client. Down counts the messages of the protocol, and the scales and codebooks of the scheme; the
model itself comes to every client in any case. Work is that of the busiest machine for all clients of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Final

from secagg.aead import TAG_BYTES
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.hpke import sealing_sizes
from secagg.identifiers import AttemptContext, ClientId
from secagg.identity import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate
from secagg.layout import IndexSegment, RingSegment
from secagg.protocols.dpf_indexing.correction_words import CorrectionWords
from secagg.protocols.dpf_indexing.explicit_share import ExplicitShare
from secagg.protocols.dpf_indexing.lane_field import LaneField
from secagg.protocols.dpf_indexing.lane_grid import require_blocks
from secagg.protocols.dpf_indexing.lane_group import FieldLanes, LaneGroup, RingLanes
from secagg.protocols.dpf_indexing.one_hot_statement import DIGEST_BYTES, NONCE_BYTES, SEED_BYTES, CheckShape
from secagg.protocols.dpf_indexing.shape import PointFunctionShape
from secagg.protocols.enclave.messages import (
    EPOCH_BYTES,
    SEALED_SECRET_BYTES,
    UPLOAD_ID_BYTES,
    EnclaveOffer,
    ModelStamp,
    SealedUpload,
    UploadHeader,
)
from secagg.simulation.pairwise_costs import ONE_IN, Work, mask_cipher_calls, pairwise_costs
from secagg.simulation.planned_update import Learned, PlanRequest, Scheme

_HEADER_BYTES = 7
_LENGTH_BYTES = 8


class Protocol(StrEnum):
    """Who adds up."""

    PAIRWISE = "pairwise masks"
    ENCLAVE = "enclave"
    POINT_FUNCTIONS = "point functions"
    INDEX_SHARING = "shared indices"


class Status(StrEnum):
    """Whether a combination can be used."""

    AVAILABLE = "available"
    PROTOCOL_ONLY = "protocol only"
    """There is no scheme that encodes so; a platform that brings one can use the protocol."""
    KERNELS_ONLY = "kernels only"
    """The mathematics is there, and no protocol around it."""
    NOT_BUILT = "not built"


PROTOCOL_STATUS: Final[Mapping[Protocol, Status]] = {
    Protocol.PAIRWISE: Status.AVAILABLE,
    Protocol.ENCLAVE: Status.AVAILABLE,
    Protocol.POINT_FUNCTIONS: Status.KERNELS_ONLY,
    Protocol.INDEX_SHARING: Status.NOT_BUILT,
}
"""The one place that says which protocols there are."""
SCHEMES_TO_BRING: Final = frozenset({Scheme.DECODED_CODEWORDS, Scheme.ONE_HOT})
"""What nothing in ``secagg.compression`` encodes."""

TRUST: Final[Mapping[Protocol, str]] = {
    Protocol.PAIRWISE: "an authority apart from the server; no more corrupted clients than planned for (one in "
    f"{ONE_IN}); the server may be active",
    Protocol.ENCLAVE: "the enclave's hardware and its attestation; an authority apart from the host",
    Protocol.POINT_FUNCTIONS: "two servers that do not collude, of which one may be active; a client that is not "
    "checked can vote as often as it likes",
    Protocol.INDEX_SHARING: "two servers and a dealer that do not collude, all of them semi-honest: an active one "
    "reads the indices that it chooses",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One combination, and what it costs."""

    scheme: Scheme
    protocol: Protocol
    described: str
    """The scheme with its parameters."""
    variant: str = ""
    """Which of several forms of the protocol."""
    learned: Learned
    weights: int
    payload_bytes: int
    """The values alone, packed."""
    up_bytes: int
    down_bytes: int
    between_bytes: int
    """What passes between servers, or from the host to the enclave, for one client."""
    work: Work

    @property
    def bits_per_weight(self) -> float:
        """The upload, divided among all values of the model."""
        return 8 * self.up_bytes / self.weights

    @property
    def status(self) -> Status:
        """Whether it can be used."""
        status = PROTOCOL_STATUS[self.protocol]
        is_missing = self.scheme in SCHEMES_TO_BRING and status is Status.AVAILABLE
        return Status.PROTOCOL_ONLY if is_missing else status

    @property
    def name(self) -> str:
        """The protocol, with the form of it."""
        return f"{self.protocol}, {self.variant}" if self.variant else self.protocol.value


@dataclass(frozen=True, slots=True)
class Comparison:
    """All combinations, the shortest upload first, and why some that one could look for are not there."""

    options: tuple[Option, ...]
    left_out: tuple[str, ...]

    def shortest(self, protocol: Protocol, *schemes: Scheme) -> Option | None:
        """Return the first option of a protocol, of some schemes or of all of them."""
        found = (option for option in self.options if option.protocol is protocol)
        return next((option for option in found if not schemes or option.scheme in schemes), None)

    def giving(self, learned: Learned) -> list[Option]:
        """Return the options from which this can be computed: a histogram gives the sum as well."""
        return [option for option in self.options if learned in (option.learned, Learned.SUM)]


def compare(request: PlanRequest) -> Comparison:
    """Cost every combination; what cannot be done is left out, with what the library says of it."""
    options, left_out = list[Option](), list[str]()
    makers: dict[str, Callable[[], Iterator[Option]]] = {
        "pairwise masks": lambda: _pairwise(request),
        "the enclave": lambda: _enclave(request),
        "point functions": lambda: _point_functions(request, RingLanes(request.count_bits)),
        "checked point functions": lambda: _point_functions(request, _checked_lanes(request)),
        "shared indices": lambda: _index_sharing(request),
    }
    for name, maker in makers.items():
        try:
            options += maker()
        except (InvalidParameters, CapacityExceeded) as error:
            left_out.append(f"{name}: {error}")
    options.sort(key=lambda option: (option.up_bytes, option.down_bytes, option.described, option.name))
    return Comparison(tuple(options), tuple(left_out))


# --- One server -------------------------------------------------------------------------------------------------------


def _pairwise(request: PlanRequest) -> Iterator[Option]:
    for scheme in Scheme:
        if scheme is Scheme.PRODUCT:
            continue
        layout = request.layout(scheme)
        costs = pairwise_costs(layout, request.clients, request.suite)
        yield Option(
            scheme=scheme,
            protocol=Protocol.PAIRWISE,
            described=request.describe(scheme),
            learned=Learned.HISTOGRAM if scheme is Scheme.ONE_HOT else Learned.SUM,
            weights=request.weights,
            payload_bytes=layout.payload_bytes,
            up_bytes=costs.sent,
            down_bytes=costs.received + request.public_bytes(scheme),
            between_bytes=0,
            work=costs.work,
        )


def _enclave(request: PlanRequest) -> Iterator[Option]:
    sealing_key_bytes, overhead = sealing_sizes(request.suite)
    offer = EnclaveOffer(
        context=AttemptContext(bytes(DIGEST_BYTES)),
        epoch=bytes(EPOCH_BYTES),
        sealing_key=bytes(sealing_key_bytes),
        receipt_key=bytes(IDENTITY_KEY_BYTES),
    )
    for scheme in Scheme:
        if scheme in SCHEMES_TO_BRING:
            continue
        layout = request.layout(scheme)
        rings = tuple(segment for segment in layout.segments if isinstance(segment, RingSegment))
        indices = [segment for segment in layout.segments if isinstance(segment, IndexSegment)]
        index_bytes = sum(segment.payload_bytes for segment in indices)
        sealed = len(_empty_upload(overhead).encode()) + (index_bytes + TAG_BYTES if indices else 0)
        counters = sum(segment.blocks * segment.codewords for segment in indices)
        calls = mask_cipher_calls(rings) + -(-index_bytes // TAG_BYTES)
        # In its default form the enclave touches every counter, so that no address depends on an index.
        operations = sum(segment.length for segment in rings) + counters
        yield Option(
            scheme=scheme,
            protocol=Protocol.ENCLAVE,
            described=request.describe(scheme),
            learned=request.learn if scheme is Scheme.PRODUCT else Learned.SUM,
            weights=request.weights,
            payload_bytes=layout.payload_bytes,
            up_bytes=_HEADER_BYTES + _LENGTH_BYTES + sealed + layout.payload_bytes - index_bytes,
            down_bytes=len(offer.encode()) + request.public_bytes(scheme),
            between_bytes=sealed,
            work=Work(request.clients * calls, request.clients * operations),
        )


def _empty_upload(overhead: int) -> SealedUpload:
    """Return the sealed part of an upload without indices, of which only the length counts."""
    return SealedUpload(
        header=UploadHeader(
            epoch=bytes(EPOCH_BYTES),
            upload_id=bytes(UPLOAD_ID_BYTES),
            certificate=Certificate(ClientId(0), bytes(IDENTITY_KEY_BYTES), bytes(SIGNATURE_BYTES)),
            model=ModelStamp(version=0, digest=bytes(DIGEST_BYTES)),
            vector_digest=bytes(DIGEST_BYTES),
        ),
        sealed_seed=bytes(SEALED_SECRET_BYTES + overhead),
        sealed_indices=b"",
    )


# --- Two servers ------------------------------------------------------------------------------------------------------


def _checked_lanes(request: PlanRequest) -> FieldLanes:
    """Return the lanes in which clients can be checked; there may be no field for so many."""
    return FieldLanes(LaneField.for_total_weight(request.clients).modulus)


@dataclass(slots=True)
class _Share:
    """What the point functions of one client come to, tensor by tensor."""

    payload_bytes: int = 0
    overhead_bytes: int = 0
    """Seeds, nonces and proofs."""
    between_bytes: int = 0
    cipher_calls: Fraction = Fraction(0)
    word_operations: int = 0
    depths: set[int] = field(default_factory=set[int])

    def add(self, shape: PointFunctionShape, blocks: int) -> None:
        """Add one tensor's; one server relays the correction words to the other."""
        require_blocks(blocks)
        self.depths.add(shape.depth)
        if shape.depth:
            relayed = CorrectionWords.encoded_bytes(shape, blocks)
            self.payload_bytes += relayed
            self.overhead_bytes += 2 * SEED_BYTES + NONCE_BYTES
            self.between_bytes += relayed
        else:
            self.payload_bytes += ExplicitShare.encoded_bytes(shape, blocks)
            self.overhead_bytes += SEED_BYTES + NONCE_BYTES
        self.cipher_calls += Fraction(shape.cipher_calls) * blocks
        self.word_operations += shape.codewords * blocks

    def check(self, codewords: int, blocks: int, clients: int) -> None:
        """Add the proof that each block holds one vote, and what the servers open for it."""
        shape = CheckShape.plan(total_weight=clients, codewords=codewords, blocks=blocks)
        proof = _HEADER_BYTES + 1 + SEED_BYTES + DIGEST_BYTES
        self.overhead_bytes += 2 * proof + shape.field.packed_bytes(shape.proof_points)
        commitment = _HEADER_BYTES + 1 + 2 * DIGEST_BYTES
        opened = shape.field.packed_bytes(shape.rows) + 2 * shape.field.packed_bytes(1)
        self.between_bytes += 2 * (2 * commitment + opened)
        # Two products of the whole share, with an element for each codeword and with one for each row.
        self.word_operations += 2 * shape.field.degree * codewords * blocks


def _point_functions(request: PlanRequest, lanes: LaneGroup) -> Iterator[Option]:
    """Yield the explicit shares of all tensors, and the cheapest trees where these are shorter."""
    explicit, cheapest = _Share(), _Share()
    for cut in request.tensors:
        flat = PointFunctionShape(codewords=cut.codewords, group=lanes, depth=0, derives_last_lane=True)
        for share, shape in ((explicit, flat), (cheapest, PointFunctionShape.cheapest(cut.codewords, lanes))):
            share.add(shape, cut.blocks)
            if isinstance(lanes, FieldLanes):
                share.check(cut.codewords, cut.blocks, request.clients)
    for share in (explicit, cheapest) if cheapest.depths != {0} else (explicit,):
        yield _two_servers(request, Protocol.POINT_FUNCTIONS, share, _variant(share.depths, lanes))


def _variant(depths: set[int], lanes: LaneGroup) -> str:
    least, greatest = min(depths), max(depths)
    depth = f"depth {least}" if least == greatest else f"depths {least} to {greatest}"
    return f"{depth}, checked" if isinstance(lanes, FieldLanes) else depth


def _index_sharing(request: PlanRequest) -> Iterator[Option]:
    """Yield the mode in which the servers turn shares of an index into shares of its vector, with what a dealer dealt.

    One server gets a seed for its shares of the indices, the other one the differences. Each publishes its index less
    that of a random vector, of which the dealer sent one server a seed and the other one an explicit share.
    """
    lanes, share = RingLanes(request.count_bits), _Share()
    for cut in request.tensors:
        require_blocks(cut.blocks)
        dealt = PointFunctionShape(codewords=cut.codewords, group=lanes, depth=0, derives_last_lane=True)
        packed = IndexSegment(cut.codewords, cut.blocks).payload_bytes
        share.payload_bytes += packed
        share.overhead_bytes += SEED_BYTES + NONCE_BYTES
        share.between_bytes += 2 * packed + ExplicitShare.encoded_bytes(dealt, cut.blocks) + SEED_BYTES
        share.cipher_calls += Fraction(dealt.cipher_calls) * cut.blocks
        share.word_operations += cut.codewords * cut.blocks
    yield _two_servers(request, Protocol.INDEX_SHARING, share, "")


def _two_servers(request: PlanRequest, protocol: Protocol, share: _Share, variant: str) -> Option:
    """Add what is sent plain, a seed for one server and the difference for the other, without any envelopes."""
    plain = request.plain
    segments = plain.require_rings() if plain else ()
    plain_bytes = sum(segment.payload_bytes for segment in segments)
    calls = share.cipher_calls + mask_cipher_calls(segments)
    operations = share.word_operations + sum(segment.length for segment in segments)
    return Option(
        scheme=Scheme.PRODUCT,
        protocol=protocol,
        described=request.describe(Scheme.PRODUCT),
        variant=variant,
        learned=Learned.HISTOGRAM,
        weights=request.weights,
        payload_bytes=share.payload_bytes + plain_bytes,
        up_bytes=share.payload_bytes + share.overhead_bytes + plain_bytes + (SEED_BYTES if plain else 0),
        down_bytes=request.public_bytes(Scheme.PRODUCT),
        between_bytes=share.between_bytes,
        work=Work(ceil(request.clients * calls), request.clients * operations),
    )
