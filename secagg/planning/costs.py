"""What every combination of a scheme and a protocol costs, computed from layouts and message lengths.

Bytes are those of one client. Down counts the messages of the protocol, and the scales and codebooks of the scheme; the
model itself comes to every client in any case. Work is that of the busiest machine for all clients of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Final

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_sizes
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.identifiers import CLIENT_ID_BYTES, AttemptContext, ClientId, ServerId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.protocols.enclave.trusted.messages import (
    EPOCH_BYTES,
    MOST_SEALED_INDICES,
    SEED_BYTES,
    UPLOAD_ID_BYTES,
    WEIGHT_BYTES,
    EnclaveOffer,
    ModelStamp,
    SealedUpload,
    UploadHeader,
)
from secagg.protocols.enclave.vector_digest import VECTOR_NONCE_BYTES
from secagg.protocols.two_servers.configuration import SERVERS, IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.less_protected import UNCHECKED_POINT_FUNCTIONS
from secagg.protocols.two_servers.message_sizes import batch_bytes, half_bytes, offers_bytes
from secagg.protocols.two_servers.one_hot.statement import DIGEST_BYTES
from secagg.protocols.two_servers.point_functions.correction_words import CorrectionWords
from secagg.protocols.two_servers.point_functions.explicit_share import ExplicitShare
from secagg.protocols.two_servers.server_messages import BATCH
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate

from .coded_mask_costs import CodedMaskCosts, coded_mask_costs
from .pairwise_costs import ONE_IN, PairwiseCosts, Work, mask_cipher_calls, pairwise_costs
from .planned_update import INDEXED, Learned, PlanRequest, Scheme

_HEADER_BYTES = 7
_FRAME_BYTES = _HEADER_BYTES + 2 * 4
"""Of the message in which both halves travel to server 0."""


class Protocol(StrEnum):
    """Who adds up."""

    PAIRWISE = "pairwise masks"
    ENCLAVE = "enclave"
    POINT_FUNCTIONS = "point functions"
    CODED_MASKS = "coded masks"


class Status(StrEnum):
    """Whether a combination can be used."""

    AVAILABLE = "available"
    PROTOCOL_ONLY = "protocol only"
    """There is no scheme that encodes so; a platform that brings one can use the protocol."""
    NOT_BUILT = "not built"


PROTOCOL_STATUS: Final[Mapping[Protocol, Status]] = {
    Protocol.PAIRWISE: Status.AVAILABLE,
    Protocol.ENCLAVE: Status.AVAILABLE,
    Protocol.POINT_FUNCTIONS: Status.AVAILABLE,
    Protocol.CODED_MASKS: Status.AVAILABLE,
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
    Protocol.CODED_MASKS: f"a server that follows the protocol; no more corrupted clients than one in {ONE_IN}",
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
    def is_checked(self) -> bool:
        """Whether a client cannot vote more than once, where it votes at all."""
        return self.protocol is not Protocol.POINT_FUNCTIONS or not self.variant or self.variant.endswith("checked")

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
        "pairwise masks": lambda: _masked(request, Protocol.PAIRWISE, pairwise_costs),
        "the enclave": lambda: _enclave(request),
        "point functions": lambda: _point_functions(request, UNCHECKED_POINT_FUNCTIONS),
        "checked point functions": lambda: _point_functions(request, SharingMode.CHECKED_POINT_FUNCTIONS),
        "peak codes of two servers": lambda: _peaks(request),
        "rings of two servers": lambda: _rings(request),
        "coded masks": lambda: _masked(request, Protocol.CODED_MASKS, coded_mask_costs),
    }
    for name, maker in makers.items():
        try:
            options += maker()
        except (InvalidParameters, CapacityExceeded) as error:
            left_out.append(f"{name}: {error}")
    options.sort(key=lambda option: (option.up_bytes, option.down_bytes, option.described, option.name))
    return Comparison(tuple(options), tuple(left_out))


# --- One server -------------------------------------------------------------------------------------------------------


def _masked(
    request: PlanRequest, protocol: Protocol, counted: Callable[[Layout, int, Suite], PairwiseCosts | CodedMaskCosts]
) -> Iterator[Option]:
    for scheme in Scheme:
        if scheme in INDEXED:
            continue
        layout = request.layout(scheme)
        costs = counted(layout, request.clients, request.suite)
        yield Option(
            scheme=scheme,
            protocol=protocol,
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
        has_one_seal = bool(indices) and not rings and index_bytes <= MOST_SEALED_INDICES
        secret = WEIGHT_BYTES + (index_bytes if has_one_seal else SEED_BYTES) + overhead
        beside = index_bytes + TAG_BYTES if indices and not has_one_seal else 0
        sealed = len(_empty_upload(secret).encode()) + beside
        # The host has the roster, and puts back what it knows.
        named = _HEADER_BYTES + CLIENT_ID_BYTES + UPLOAD_ID_BYTES + SIGNATURE_BYTES
        short = named + secret + beside + (VECTOR_NONCE_BYTES if rings else 0)
        counters = sum(segment.blocks * segment.codewords for segment in indices)
        calls = mask_cipher_calls(rings) + -(-index_bytes // TAG_BYTES)
        # In its default form the enclave touches every counter, so that no address depends on an index.
        operations = sum(segment.length for segment in rings) + counters
        yield Option(
            scheme=scheme,
            protocol=Protocol.ENCLAVE,
            described=request.describe(scheme),
            learned=request.learn if scheme in INDEXED else Learned.SUM,
            weights=request.weights,
            payload_bytes=layout.payload_bytes,
            up_bytes=short + layout.payload_bytes - index_bytes,
            down_bytes=len(offer.encode()) + request.public_bytes(scheme),
            between_bytes=sealed,
            work=Work(request.clients * calls, request.clients * operations),
        )


def _empty_upload(sealed: int) -> SealedUpload:
    """Return the enclave's part of an upload without indices beside the seal, of which only the length counts."""
    return SealedUpload(
        header=UploadHeader(
            epoch=bytes(EPOCH_BYTES),
            upload_id=bytes(UPLOAD_ID_BYTES),
            certificate=Certificate(ClientId(0), bytes(IDENTITY_KEY_BYTES), bytes(SIGNATURE_BYTES)),
            model=ModelStamp(version=0, digest=bytes(DIGEST_BYTES)),
            vector_digest=bytes(DIGEST_BYTES),
        ),
        sealed_seed=bytes(sealed),
        sealed_indices=b"",
    )


# --- Two servers ------------------------------------------------------------------------------------------------------


def _configured(
    request: PlanRequest, mode: SharingMode, depth: int | None = None, scheme: Scheme = Scheme.PRODUCT
) -> IndexingConfiguration:
    """Return the configuration of a round, with keys that nobody has."""
    keys = [bytes([number]) * IDENTITY_KEY_BYTES for number in range(1, 4)]
    return IndexingConfiguration(
        task=b"a plan",
        suite=request.suite,
        authority=keys[0],
        server_keys=(keys[1], keys[2]),
        layout=request.layout(scheme),
        mode=mode,
        depth=depth,
        minimum_cohort=LEAST_COHORT,
        maximum_cohort=request.clients,
        maximum_rejections=0,
        expiry=1,
    )


def _peaks(request: PlanRequest) -> Iterator[Option]:
    for mode in (SharingMode.UNCHECKED_POINT_FUNCTIONS, SharingMode.CHECKED_POINT_FUNCTIONS):
        yield from _point_functions(request, mode, Scheme.PEAK)


def _rings(request: PlanRequest) -> Iterator[Option]:
    """Yield the schemes without indices, of which nothing is shared but masked vectors, and nothing is checked."""
    for scheme in Scheme:
        if scheme not in INDEXED | SCHEMES_TO_BRING:
            yield from _point_functions(request, SharingMode.CHECKED_POINT_FUNCTIONS, scheme)


def _point_functions(request: PlanRequest, mode: SharingMode, scheme: Scheme = Scheme.PRODUCT) -> Iterator[Option]:
    """Yield the explicit shares of all blocks, and the cheapest trees where these are shorter."""
    for depth in (0, None):
        configuration = _configured(request, mode, depth, scheme)
        shapes = [(configuration.shape(segment), segment.blocks) for _, segment in configuration.index_segments]
        depths = {shape.depth for shape, _ in shapes}
        if depth is None and depths <= {0}:
            continue
        payload = sum(
            CorrectionWords.encoded_bytes(shape, blocks) if shape.depth else ExplicitShare.encoded_bytes(shape, blocks)
            for shape, blocks in shapes
        )
        operations = sum(shape.codewords * blocks for shape, blocks in shapes)
        if configuration.is_checked:
            # Two products of the whole share, with an element for each codeword and with one for each row.
            operations += sum(
                2 * configuration.check_shape(segment).field.degree * segment.codewords * segment.blocks
                for _, segment in configuration.index_segments
            )
        yield _two_servers(
            request,
            configuration,
            payload_bytes=payload,
            cipher_calls=sum((Fraction(shape.cipher_calls) * blocks for shape, blocks in shapes), Fraction(0)),
            word_operations=operations,
            scheme=scheme,
            variant=_variant(depths, configuration),
        )


def _variant(depths: set[int], configuration: IndexingConfiguration) -> str:
    if not depths:
        return ""
    least, greatest = min(depths), max(depths)
    depth = f"depth {least}" if least == greatest else f"depths {least} to {greatest}"
    return f"{depth}, checked" if configuration.is_checked else depth


def _two_servers(  # noqa: PLR0913 -- what the modes differ in
    request: PlanRequest,
    configuration: IndexingConfiguration,
    *,
    payload_bytes: int,
    cipher_calls: Fraction,
    word_operations: int,
    scheme: Scheme,
    variant: str,
) -> Option:
    """Add what is sent plain, which one server expands and the other one is sent; envelopes, proofs and signatures."""
    segments = configuration.ring_segments
    full, rest = divmod(request.clients, BATCH)
    between = full * batch_bytes(configuration, BATCH).total
    between += batch_bytes(configuration, rest).total if rest else 0
    operations = word_operations + sum(segment.length for segment in segments)
    return Option(
        scheme=scheme,
        protocol=Protocol.POINT_FUNCTIONS,
        described=request.describe(scheme),
        variant=variant,
        learned=Learned.HISTOGRAM if scheme in INDEXED else Learned.SUM,
        weights=request.weights,
        payload_bytes=payload_bytes + sum(segment.payload_bytes for segment in segments),
        up_bytes=_FRAME_BYTES + sum(half_bytes(configuration, ServerId(index)) for index in range(SERVERS)),
        down_bytes=offers_bytes(configuration) + request.public_bytes(scheme),
        # Server 0 is the one that clients reach, so server 1's half passes through it.
        between_bytes=round(between / request.clients) + half_bytes(configuration, ServerId(1)),
        work=Work(ceil(request.clients * (cipher_calls + mask_cipher_calls(segments))), request.clients * operations),
    )
