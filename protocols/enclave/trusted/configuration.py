"""Configuration that an enclave and its clients share; every key, ciphertext and receipt is bound to its digest (T0).

An enclave loads it once, and it applies as long as the enclave's keys exist. It fixes everything that a host could
otherwise vary to learn more than one sum of many clients. A client computes the digest from a configuration that it
checked itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, gcd, isqrt
from typing import Annotated, ClassVar, Final

import numpy as np
import numpy.typing as npt

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract.codewords import CodewordTable, Tables, require_tables, summed_layout, tables_digest
from secagg.contract.layout import IndexSegment, Layout, RingSegment, RowSegment, Segment
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring
from secagg.declared import (
    MESSAGE_FORM,
    At,
    Field,
    Message,
    MessageIn,
    choice,
    encoded,
    fixed,
    nested,
    numbered,
    optional,
    repeated,
    unsigned,
    variable,
)
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.identifiers import AttemptContext
from secagg.parameters import LEAST_COHORT, Suite, require_integer
from secagg.privacy.kinds import NoiseKind, require_variance
from secagg.session.certificates import IDENTITY_KEY_BYTES, NO_STANDING, Standing
from secagg.wire import FORM, FORMS, MessageKind, Reader

from .bounded import packed_bytes

NO_AUTHORITY: Final = bytes(IDENTITY_KEY_BYTES)
_MAXIMUM_TASK_BYTES: Final = 256
_MAXIMUM_LAYOUT_BYTES: Final = 1 << 21
MAXIMUM_TABLE_BYTES: Final = 1 << 28
_DIGEST_BYTES: Final = 32
_ENTRY_BYTES: Final = 4
_MOST_BOUNDED_BITS: Final = 32
"""Widest ring whose norms ``bounded.squared`` computes exactly."""
_ZERO_OFFSET: Final = 1 << 32
_MOST_SEALED_BYTES: Final = (1 << 31) - 1 - 16
"""Limit of one AES-GCM call, without the tag; checked here, before a client charges an update that it cannot seal."""
_MOST_RINGS: Final = (1 << 16) - 1
_MAXIMUM_OLDEST: Final = (1 << 10) - 1
_MAXIMUM_TABLES: Final = 1 << 16
"""Limit on tables of all segments, and on variances and bounds: bounds the memory that decoding a message takes."""
MAXIMUM_CONFIGURATION_BYTES: Final = 1 << 26
"""Largest configuration, with its tables."""
MAXIMUM_START_BYTES: Final = MAXIMUM_CONFIGURATION_BYTES + (1 << 21)
"""Includes room for the counts, lengths and dimensions of the tables."""
_BYTES_FOR_AN_ELEMENT: Final = 32
"""Memory per released element: mask, sum, noise and encoding, 8 bytes each."""
_TAIL_DEVIATIONS: Final = 10
"""Standard deviations of noise that a noised histogram can hold in addition to the counts."""
_LAST_SECOND: Final = 253402300799
"""Last second of the year 9999, the maximum of a datetime."""


def _read_variance(reader: Reader, _: object) -> Fraction:
    numerator, denominator = reader.integer(16), reader.integer(16)
    if gcd(numerator, denominator) != 1 or not denominator:
        raise MalformedMessage("a variance must be a fraction in lowest terms", reason=Reason.NOT_CANONICAL)
    return Fraction(numerator, denominator)


def _read_tables(reader: Reader, at: At) -> Tables:
    digest = reader.fixed(_DIGEST_BYTES)
    # A configuration that releases histograms has no tables, even if the reader has some.
    tables: Tables = at.place if digest != tables_digest(()) else ()
    if tables_digest(tables) != digest:
        raise MalformedMessage("the configuration is for different codebooks", reason=Reason.NOT_CANONICAL)
    return tables


_VARIANCE: Final = Field(
    lambda writer, value: writer.integer(value.numerator, 16).integer(value.denominator, 16),
    _read_variance,
    "16, 16: numerator and denominator",
)
_TABLES: Final = Field(
    lambda writer, tables: writer.fixed(tables_digest(tables), _DIGEST_BYTES), _read_tables, "32: their digest"
)
_ZERO: Final = Field(
    lambda writer, zero: writer.integer(zero + _ZERO_OFFSET, 5),
    lambda reader, _: reader.integer(5) - _ZERO_OFFSET,
    "5, plus the offset",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Noise that the enclave adds to each release, and the limit on releases that include one client."""

    kind: Annotated[NoiseKind, numbered(NoiseKind)]
    releases_per_client: Annotated[int, unsigned(4)]
    variances: Annotated[tuple[Fraction, ...], repeated(_VARIANCE, _MAXIMUM_TABLES)]
    """One for each released segment, in squared integer steps."""
    l2_bounds: Annotated[tuple[int, ...], repeated(unsigned(5), _MAXIMUM_TABLES)]
    """The maximum norm of a client's values in each ring segment, which the client enforces itself."""

    def __post_init__(self) -> None:
        if type(self.kind) is not NoiseKind or type(self.variances) is not tuple or type(self.l2_bounds) is not tuple:
            raise Misuse("Noise takes a NoiseKind and tuples of variances and bounds")
        for variance in self.variances:
            require_variance(variance, self.kind)
        for bound in self.l2_bounds:
            require_integer("an L2 bound", bound, 1, (1 << 40) - 1)
        require_integer("releases_per_client", self.releases_per_client, 1, (1 << 32) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveConfiguration(MessageIn[Tables]):
    """All parameters of an enclave's epoch, as its clients check them."""

    kind: ClassVar = MessageKind.ENCLAVE_CONFIGURATION
    message_form: Annotated[int, MESSAGE_FORM] = FORMS[0]
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    suite: Annotated[Suite, choice(tuple(Suite))]
    authority: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    """Public key of the authority that certifies clients; zeros for none, which requires noise."""
    standing: Annotated[Standing, nested(Standing)] = NO_STANDING
    """The authority's revocations and their time; the enclave checks certificates at that time."""
    layout: Annotated[Layout, encoded(Layout, _MAXIMUM_LAYOUT_BYTES)]
    form: Annotated[ReleaseForm, numbered(ReleaseForm)] = ReleaseForm.DECODED_SUM
    accumulation: Annotated[Accumulation, numbered(Accumulation)] = Accumulation.OBLIVIOUS
    tables: Annotated[Tables, _TABLES] = ()
    """The codebooks of each index segment; empty if histograms are released."""
    minimum_cohort: Annotated[int, unsigned(4)]
    maximum_cohort: Annotated[int, unsigned(4)]
    oldest: Annotated[int, unsigned(2)] = 0
    """Maximum staleness of an upload's model, in versions behind the buffer's model; older ones are refused."""
    max_norms: Annotated[tuple[int, ...], repeated(unsigned(5), _MOST_RINGS, size=2)] = ()
    """The maximum norm of one client's values in each ring segment, in steps; 0 for no limit. Longer values are scaled
    down. If any norm is set, clients seal their vectors to the enclave, which adds them itself.
    """
    zero_points: Annotated[tuple[int, ...], repeated(_ZERO, _MOST_RINGS, size=2)] = ()
    """The element that represents 0 in each ring segment, about which norms are measured; empty if all are 0."""
    codeword_bound: Annotated[int, unsigned(5)] = 0
    """The maximum norm of the codewords that one client chooses, in steps of the tables; 0 for no limit. The smallest
    codewords replace choices above it.
    """
    expiry: Annotated[int, unsigned(5)]
    """When clients stop sealing to the keys, in seconds since 1970."""
    noise: Annotated[Noise | None, optional(nested(Noise))] = None
    context: AttemptContext = field(init=False, repr=False, compare=False)
    released: Layout = field(init=False, repr=False, compare=False)
    """The layout of the aggregate."""

    def __post_init__(self) -> None:
        kinds = (type(self.suite), type(self.layout), type(self.form), type(self.accumulation), type(self.standing))
        if kinds != (Suite, Layout, ReleaseForm, Accumulation, Standing):
            raise Misuse("suite, layout, form, accumulation or standing has a wrong type")
        if type(self.task) is not bytes or not 1 <= len(self.task) <= _MAXIMUM_TASK_BYTES:
            raise InvalidParameters(f"task, the name of what is trained, must have 1 to {_MAXIMUM_TASK_BYTES} bytes")
        if type(self.tables) is not tuple or any(type(tables) is not tuple for tables in self.tables):
            raise Misuse("tables must be a tuple with one tuple of CodewordTable per index segment")
        if type(self.authority) is not bytes or len(self.authority) != IDENTITY_KEY_BYTES:
            raise InvalidParameters(f"authority must be a public key of {IDENTITY_KEY_BYTES} bytes, or zeros for none")
        require_integer("minimum_cohort", self.minimum_cohort, LEAST_COHORT, (1 << 32) - 1)
        require_integer("maximum_cohort", self.maximum_cohort, self.minimum_cohort, (1 << 32) - 1)
        require_integer("oldest", self.oldest, 0, _MAXIMUM_OLDEST)
        require_integer("expiry", self.expiry, 1, _LAST_SECOND)
        self._check_norms()
        self._check_seal()
        self._check_noise()
        self._check_rows()
        object.__setattr__(self, "released", self._released())
        self._check_codewords()
        encoded, entries = self.encode(), sum(table.entries.size for some in self.tables for table in some)
        if len(encoded) + _ENTRY_BYTES * entries > MAXIMUM_CONFIGURATION_BYTES:
            raise InvalidParameters(
                f"the configuration and its tables have {len(encoded) + _ENTRY_BYTES * entries} bytes; the limit is "
                f"{MAXIMUM_CONFIGURATION_BYTES}: use smaller codebooks"
            )
        digest = hashlib.sha256(bind(Label.ENCLAVE_CONFIGURATION, encoded)).digest()
        object.__setattr__(self, "context", AttemptContext(digest))

    def _check_norms(self) -> None:
        if type(self.max_norms) is not tuple or type(self.zero_points) is not tuple:
            raise Misuse("max_norms and zero_points must be tuples")
        for norm in self.max_norms:
            require_integer("a max_norm", norm, 0, (1 << 40) - 1)
        if not self.max_norms and not self.zero_points:
            return
        if len(self.max_norms) != len(self.ring_segments) or not any(self.max_norms):
            raise InvalidParameters(
                f"{len(self.ring_segments)} ring segments need one max_norm each, at least one of them above 0; leave "
                "out max_norms and zero_points if no norm is to be bounded"
            )
        self.layout.require_whole_steps()
        rings = [segment.ring for segment in self.ring_segments]
        is_narrow = any(ring.greatest < self.maximum_cohort for ring in rings)
        if self.has_rows or is_narrow or max(ring.modulus_bits for ring in rings) > _MOST_BOUNDED_BITS:
            raise InvalidParameters(
                f"max_norms require rings of at most {_MOST_BOUNDED_BITS} bits that hold the maximum cohort, and no "
                "row segments; use other rings, or leave out max_norms"
            )
        if not self.zero_points:
            return
        if len(self.zero_points) != len(rings) or not any(self.zero_points):
            raise InvalidParameters(f"{len(rings)} ring segments need one zero point each, or none if all are 0")
        for ring, zero in zip(rings, self.zero_points, strict=True):
            least, greatest = -(-ring.least // self.maximum_cohort), ring.greatest // self.maximum_cohort
            require_integer("a zero point of the largest cohort", zero, least, greatest)

    def _check_seal(self) -> None:
        if self.packed_bytes > _MOST_SEALED_BYTES:
            raise InvalidParameters(
                f"each client seals {self.packed_bytes} bytes of indices and bounded values; one seal holds at most "
                f"{_MOST_SEALED_BYTES}: use fewer values or narrower rings"
            )

    def _check_noise(self) -> None:
        if self.noise is None:
            if self.authority == NO_AUTHORITY:
                raise InvalidParameters(
                    "without an authority the host can invent all clients but one, whom only noise protects; set an "
                    "authority that the host does not control, or configure noise"
                )
            return
        if len(self.noise.l2_bounds) != len(self.ring_segments):
            raise InvalidParameters(f"{len(self.ring_segments)} ring segments need one L2 bound each")
        if self.max_norms not in ((), self.noise.l2_bounds):
            raise InvalidParameters("with noise, max_norms must equal the L2 bounds; the noise was chosen for these")
        counted = sum(map(len, self.tables)) if self.form is ReleaseForm.DECODED_SUM else len(self.index_segments)
        if len(self.noise.variances) != len(self.ring_segments) + counted:
            raise InvalidParameters(
                f"{len(self.ring_segments) + counted} segments are released, but there are {len(self.noise.variances)} "
                "variances; give one for each ring segment and each codebook or histogram"
            )

    def _check_rows(self) -> None:
        if not self.has_rows:
            return
        if any(type(segment) is IndexSegment for segment in self.layout.segments):
            raise InvalidParameters("row segments can only be combined with ring segments; leave out index segments")
        if self.noise is not None:
            raise InvalidParameters(
                "row segments cannot be combined with noise, because the release reveals exactly which rows are "
                "withheld; leave out the noise or the rows"
            )
        rings = (None, *self.layout.segments)
        for ring, rows in zip(rings, self.layout.segments, strict=False):
            if isinstance(rows, RowSegment) and not (isinstance(ring, RingSegment) and not ring.length % rows.blocks):
                raise InvalidParameters(f"{rows.blocks} rows must follow a ring segment that they divide evenly")

    def _check_codewords(self) -> None:
        require_integer("codeword_bound", self.codeword_bound, 0, (1 << 40) - 1)
        if not self.codeword_bound:
            return
        if not self.tables:
            raise InvalidParameters(
                "codeword_bound only applies to decoded sums: set form = decoded_sum, or leave out codeword_bound"
            )
        least = least_squared(self.tables)
        if self.codeword_bound**2 < least:
            raise InvalidParameters(
                f"codeword_bound is {self.codeword_bound}, but the smallest codewords of all blocks have a norm of "
                f"{isqrt(least - 1) + 1} steps; raise it to that or more"
            )

    def _released(self) -> Layout:
        if self.has_rows or not self.index_segments:
            if self.tables:
                raise InvalidParameters("the layout has no index segment; leave tables empty")
            # One bit says whether a row is released; the number of clients that touched it would reveal more.
            rings = (RingSegment(1, s.blocks) if isinstance(s, RowSegment) else s for s in self.layout.segments)
            return Layout(tuple(rings), self.layout.version)
        if self.form is ReleaseForm.DECODED_SUM:
            require_tables(self.layout, self.tables)
            return summed_layout(self.layout, self.tables, self.maximum_cohort + self._room_for_noise())
        if self.tables:
            raise InvalidParameters("histograms are released without decoding; leave tables empty")
        if self.noise is None:
            return self.layout
        # Noised counts may be negative and do not add up to the number of clients, so they become ring elements.
        segments: tuple[Segment, ...] = tuple(
            RingSegment((self.maximum_cohort + _tail(variance)).bit_length() + 1, segment.blocks * segment.codewords)
            if isinstance(segment, IndexSegment)
            else segment
            for segment, variance in zip(self.layout.segments, self.noise.variances, strict=True)
        )
        return Layout(segments, self.layout.version)

    def _room_for_noise(self) -> int:
        """Return the number of clients whose codewords could add up to as much as the noise can."""
        if self.noise is None:
            return 0
        room, variances, tables = 0, iter(self.noise.variances), iter(self.tables)
        for segment in self.layout.segments:
            if isinstance(segment, RingSegment):
                next(variances)
                continue
            for table in next(tables):
                room = max(room, -(-_tail(next(variances)) // max(1, table.largest)))
        return room

    @property
    def packed_bytes(self) -> int:
        """Bytes of one client's indices and, with ``max_norms``, of its values."""
        bounded = sum(packed_bytes(segment) for segment in self.ring_segments if self.max_norms)
        return bounded + sum(segment.payload_bytes for segment in self.index_segments)

    @property
    def memory_bytes(self) -> int:
        """Memory of one open buffer; each upload adds a few hundred bytes."""
        counter = Ring(self.maximum_cohort.bit_length()).word.itemsize
        counters = counter * sum(segment.blocks * segment.codewords for segment in self.index_segments)
        return counters + _BYTES_FOR_AN_ELEMENT * self.released_elements + 2 * self.layout.payload_bytes

    @property
    def released_elements(self) -> int:
        """Number of values of the aggregate."""
        return sum(
            segment.blocks * segment.codewords if isinstance(segment, IndexSegment) else segment.length
            for segment in self.released.segments
        )

    @property
    def has_authority(self) -> bool:
        return self.authority != NO_AUTHORITY

    @property
    def has_rows(self) -> bool:
        """Whether rows that few clients touched are withheld."""
        return any(isinstance(segment, RowSegment) for segment in self.layout.segments)

    @property
    def ring_segments(self) -> tuple[RingSegment, ...]:
        """Ring segments, which the host sums under masks, or the enclave if ``max_norms`` is set."""
        return tuple(segment for segment in self.layout.segments if isinstance(segment, RingSegment))

    @property
    def masked_segments(self) -> tuple[RingSegment, ...]:
        """Ring segments whose values are masked, so that the enclave does not see them."""
        return () if self.max_norms else self.ring_segments

    @property
    def index_segments(self) -> tuple[IndexSegment, ...]:
        """Index segments, which are sealed to the enclave and counted by it."""
        return tuple(segment for segment in self.layout.segments if isinstance(segment, IndexSegment))


def _tail(variance: Fraction) -> int:
    """Return a bound that noise exceeds with a probability of about 10^-22."""
    return _TAIL_DEVIATIONS * (isqrt(ceil(variance)) + 1)


def _read_form(reader: Reader, _: object) -> int:
    if (form := reader.integer(1)) != FORM:
        raise MalformedMessage(
            f"the host has form {form} of secagg's messages, and this enclave form {FORM}; run one version at both",
            reason=Reason.WRONG_VERSION,
        )
    return form


_OWN_FORM: Final = Field(lambda writer, value: writer.integer(value, 1), _read_form, "1: 3")
"""The newest form of the host's version, which is the enclave's own."""


@dataclass(frozen=True, slots=True)
class Start(Message):
    """The request that starts an epoch: the configuration and its tables."""

    kind: ClassVar = MessageKind.START_ENCLAVE
    form: Annotated[int, _OWN_FORM] = field(default=FORM, kw_only=True)
    body: Annotated[bytes, variable(MAXIMUM_CONFIGURATION_BYTES)]
    tables: Annotated[
        Tables, repeated(repeated(encoded(CodewordTable, MAXIMUM_TABLE_BYTES), _MAXIMUM_TABLES), _MAXIMUM_TABLES)
    ]

    def __post_init__(self) -> None:
        if sum(map(len, self.tables)) > _MAXIMUM_TABLES:
            raise InvalidParameters(f"a configuration has at most {_MAXIMUM_TABLES} tables")

    def configuration(self) -> EnclaveConfiguration:
        configuration = EnclaveConfiguration.decode(self.body, self.tables)
        if configuration.tables != self.tables:
            raise MalformedMessage(
                "the request has tables that its configuration does not use", reason=Reason.NOT_CANONICAL
            )
        return configuration


def least_squared(tables: Tables) -> int:
    """Return the square of the smallest norm that a client can choose."""
    return sum(table.blocks * int(squared_norms(table).min()) for some in tables for table in some)


def squared_norms(table: CodewordTable) -> npt.NDArray[np.object_]:
    """Return the squared norm of each codeword as Python integers."""
    squares: npt.NDArray[np.object_] = np.square(table.entries.astype(np.object_)).sum(axis=1)
    return squares
