"""Configuration of a task, shared by the clients and both servers; everything is bound to its digest (T0).

The noise that each server adds to its share of the sum suffices against the other server. Each adds variance V, so the
released sum has variance 2 V. Epsilon is computed from V, because the other server can subtract its own noise, or never
add any, unnoticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil, sqrt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from secagg.choices import SharingMode
from secagg.contract.layout import IndexSegment, Layout, Payload, RingSegment, RowSegment
from secagg.crypto.labels import Label, bind
from secagg.declared import (
    FLAG,
    MESSAGE_FORM,
    Field,
    Message,
    choice,
    encoded,
    fixed,
    listed,
    nested,
    numbered,
    optional,
    repeated,
    unsigned,
    variable,
)
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse
from secagg.identifiers import AttemptContext
from secagg.parameters import LEAST_COHORT, Suite, require_integer
from secagg.privacy.kinds import GREATEST_VARIANCE, NoiseKind, clip_into, require_variance
from secagg.privacy.rounding import room_for_noise
from secagg.session.certificates import IDENTITY_KEY_BYTES, NO_STANDING, Standing
from secagg.wire import FORMS, MessageKind

from .point_functions.lanes import MODULI, LaneField, LaneGroup, RingLanes
from .point_functions.one_hot_proof import CheckShape
from .point_functions.shape import MAXIMUM_BLOCKS, MAXIMUM_CODEWORDS, PointFunctionShape

if TYPE_CHECKING:
    from secagg.session.client_policy import Compared

SERVERS: Final = 2
MAXIMUM_COHORT: Final = (1 << 24) - 1
_MAXIMUM_TASK_BYTES: Final = 256
MAXIMUM_SEGMENTS: Final = 1 << 10
"""Limit for configurations from another party: more segments would take seconds to read before any policy check."""
_MAXIMUM_LAYOUT_BYTES: Final = 1 << 14
_LAST_SECOND: Final = 253402300799
"""Last second of the year 9999, the last that a datetime represents."""
_CHEAPEST: Final = 0xFF
_DEVIATIONS: Final = 6
"""Deviations of both servers' summed noise above the largest count; 10^7 lanes exceed it once in 50 rounds."""
_VARIANCES: Final = repeated(unsigned(12), MAXIMUM_SEGMENTS)
ENFORCED: Final = frozenset(
    (
        *("suites", "modes", "sharings", "authority", "server_keys", "minimum_cohort", "maximum_length"),
        *("minimum_form", "maximum_standing_age"),
    )
)
"""Names of the policy's limits that this protocol enforces; ``compared`` checks all but the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNoise:
    """Noise that each server adds to every segment; both servers and all clients agree on it."""

    kind: Annotated[NoiseKind, numbered(NoiseKind)]
    variances: Annotated[tuple[int, ...], _VARIANCES]
    """Variance of one server's noise, per segment of the layout."""
    l2_bounds: Annotated[tuple[int, ...], _VARIANCES]
    """Norm to which a client clips its values, per ring segment."""
    is_rotated: Annotated[bool, FLAG] = False
    """Whether ring segments hold rotated coordinates with stochastic rounding."""

    def check(self, layout: Layout, clients: int) -> None:
        """Refuse noise that the layout's rings or fields cannot hold, or that is for other segments."""
        rings = len(layout.ring_positions)
        if len(self.variances) != len(layout.segments) or len(self.l2_bounds) != rings:
            raise InvalidParameters(f"noise needs {len(layout.segments)} variances and {rings} bounds of rings")
        for variance in self.variances:
            require_variance(Fraction(variance), self.kind)
        for place, (variance, most) in enumerate(zip(self.variances, self.most(layout, clients), strict=True)):
            if variance > most:
                raise CapacityExceeded(
                    f"segment {place} can hold a variance of at most {most} for each server's noise with a sum of "
                    f"{clients} clients; you asked for {variance}. Use less noise or a wider ring"
                )

    def most(self, layout: Layout, clients: int) -> list[int]:
        """Return, per segment, the maximum variance of one server's noise if both servers add noise."""
        bounds = iter(self.l2_bounds)
        rings = (
            room_for_noise(segment, next(bounds), clients, is_rotated=self.is_rotated)
            if isinstance(segment, RingSegment)
            else (max(0, MODULI[-1] // 2 - clients) / Fraction(_DEVIATIONS)) ** 2
            for segment in layout.segments
        )
        return [min(int(room / 2), int(GREATEST_VARIANCE[self.kind])) for room in rings]

    def largest_count(self, layout: Layout, clients: int) -> int:
        """Return the largest value of a lane: counts with noise of either sign."""
        lanes = [v for s, v in zip(layout.segments, self.variances, strict=True) if isinstance(s, IndexSegment)]
        return 2 * (clients + ceil(_DEVIATIONS * sqrt(2 * max(lanes, default=0))))


def clipped(payload: Payload, noise: ServerNoise | None) -> Payload:
    """Return a client's values with each ring segment clipped to its bound, in integers; unchanged without noise."""
    if noise is None:
        return payload
    values, bounds = list[Any](), iter(noise.l2_bounds)
    for segment, vector in zip(payload.layout.segments, payload.values, strict=True):
        if isinstance(segment, RingSegment):
            own = vector.copy()
            clip_into(segment.ring, own, next(bounds))
            values.append(own)
        else:
            values.append(vector)
    return Payload(payload.layout, tuple(values))


_DEPTH: Final = Field(
    lambda writer, depth: writer.integer(_CHEAPEST if depth is None else depth, 1),
    lambda reader, _: None if (depth := reader.integer(1)) == _CHEAPEST else depth,
    "1: 255 the cheapest",
)


def require_keys(authority: bytes, server_keys: tuple[bytes, bytes]) -> None:
    """Check the keys of an authority and of both servers."""
    if type(server_keys) is not tuple or len(server_keys) != SERVERS:
        raise Misuse("server_keys must be the public keys of server 0 and server 1")
    for key in (authority, *server_keys):
        if type(key) is not bytes or len(key) != IDENTITY_KEY_BYTES:
            raise InvalidParameters(f"authority and server_keys must have {IDENTITY_KEY_BYTES} bytes each")


@dataclass(frozen=True, kw_only=True)
class IndexingConfiguration(Message):
    """Configuration of a task: everything that the clients and both servers agree on."""

    kind: ClassVar = MessageKind.INDEXING_CONFIGURATION
    message_form: Annotated[int, MESSAGE_FORM] = FORMS[0]
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    suite: Annotated[Suite, choice(tuple(Suite))]
    authority: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    """The public key of the authority that certifies clients; neither server holds its private key."""
    server_keys: Annotated[tuple[bytes, bytes], listed(fixed(IDENTITY_KEY_BYTES), lambda _: range(SERVERS), "32, 32")]
    layout: Annotated[Layout, encoded(Layout, _MAXIMUM_LAYOUT_BYTES)]
    mode: Annotated[SharingMode, numbered(SharingMode)] = SharingMode.CHECKED_POINT_FUNCTIONS
    depth: Annotated[int | None, _DEPTH] = None
    """Depth of all point functions (default: per segment, the depth with the shortest upload)."""
    minimum_cohort: Annotated[int, unsigned(4)]
    """Minimum number of clients in a released sum."""
    maximum_cohort: Annotated[int, unsigned(4)]
    maximum_rejections: Annotated[int, unsigned(4)]
    """Number of uploads that may fail the check before the servers abort the round."""
    expiry: Annotated[int, unsigned(8)]
    """When clients stop uploading, in seconds since 1970."""
    standing: Annotated[Standing, nested(Standing)] = NO_STANDING
    """The authority's revocations and their time; both servers judge certificates as of that time."""
    noise: Annotated[ServerNoise | None, optional(nested(ServerNoise))] = None
    context: AttemptContext = field(init=False, repr=False, compare=False)
    """The digest of this configuration (T0)."""

    def __post_init__(self) -> None:
        kinds = (type(self.suite), type(self.layout), type(self.mode), type(self.standing))
        if kinds != (Suite, Layout, SharingMode, Standing):
            raise Misuse("suite, layout, mode and standing must be a Suite, Layout, SharingMode and Standing")
        if type(self.task) is not bytes or not 1 <= len(self.task) <= _MAXIMUM_TASK_BYTES:
            raise InvalidParameters(f"task must be 1 to {_MAXIMUM_TASK_BYTES} bytes")
        self._check_keys()
        self._check_numbers()
        if self.noise is not None:
            if type(self.noise) is not ServerNoise:
                raise Misuse("noise must be a ServerNoise, or None")
            self.noise.check(self.layout, self.maximum_cohort)
        self._check_segments()
        digest = hashlib.sha256(bind(Label.INDEXING_CONFIGURATION, self.encode())).digest()
        object.__setattr__(self, "context", AttemptContext(digest))

    def _check_keys(self) -> None:
        require_keys(self.authority, self.server_keys)
        if len({self.authority, *self.server_keys}) != 1 + SERVERS:
            raise InvalidParameters(
                "the authority and the two servers need three different keys, held by different parties; a server that "
                "certifies clients, or one operator with both servers, protects nobody"
            )

    def _check_numbers(self) -> None:
        require_integer("minimum_cohort", self.minimum_cohort, LEAST_COHORT, MAXIMUM_COHORT)
        require_integer("maximum_cohort", self.maximum_cohort, self.minimum_cohort, MAXIMUM_COHORT)
        require_integer("maximum_rejections", self.maximum_rejections, 0, (1 << 32) - 1)
        require_integer("expiry", self.expiry, 1, _LAST_SECOND)

    def _check_segments(self) -> None:
        if len(self.layout.segments) > MAXIMUM_SEGMENTS:
            raise InvalidParameters(
                f"the layout has {len(self.layout.segments)} segments; two servers accept at most {MAXIMUM_SEGMENTS}"
            )
        self.layout.require_whole_steps()
        for number, segment in enumerate(self.layout.segments):
            if isinstance(segment, RingSegment):
                continue
            if isinstance(segment, RowSegment):
                raise InvalidParameters(f"segment {number} withholds rows, which two servers cannot do; use an enclave")
            if segment.codewords > MAXIMUM_CODEWORDS or segment.blocks > MAXIMUM_BLOCKS:
                raise InvalidParameters(
                    f"segment {number} has {segment.codewords} codewords and {segment.blocks} blocks; at most "
                    f"{MAXIMUM_CODEWORDS} and {MAXIMUM_BLOCKS} can be counted here"
                )
            # Build these once here, so that the configuration refuses what cannot be checked or counted.
            self.shape(segment)
            if self.is_checked:
                self.check_shape(segment)

    def compared(self) -> Iterator[Compared]:
        """Yield the values that a client's policy limits."""
        yield "minimum_form", self.message_form, "form {offered} of its messages is below {own}"
        yield "suites", self.suite, "suite {offered} is not accepted"
        yield "sharings", self.mode, "mode {offered.name} is not accepted"
        yield "authority", self.authority, "the clients' authority is not the pinned one"
        yield "server_keys", self.server_keys, "the two servers' keys are not the pinned ones"
        yield "minimum_cohort", self.minimum_cohort, "a cohort of {offered} is below {own}"
        length = sum(segment.length for segment in self.layout.segments)
        yield "maximum_length", length, "its vectors are longer than {own}"

    @property
    def is_checked(self) -> bool:
        return self.mode is SharingMode.CHECKED_POINT_FUNCTIONS

    @property
    def largest_count(self) -> int:
        """Largest value that a lane must hold: a count, or with noise twice its range."""
        noise, most = self.noise, self.maximum_cohort
        return most if noise is None else noise.largest_count(self.layout, most)

    @cached_property
    def group(self) -> LaneGroup:
        """Group of the lanes: a field if votes are checked, otherwise the smallest ring that holds all counts."""
        if self.is_checked and self.index_segments:
            return LaneField.for_count(self.largest_count)
        return RingLanes(self.largest_count.bit_length())

    def shape(self, segment: IndexSegment) -> PointFunctionShape:
        if self.depth is None:
            return PointFunctionShape.cheapest(segment.codewords, self.group)
        return PointFunctionShape(codewords=segment.codewords, group=self.group, depth=self.depth)

    def check_shape(self, segment: IndexSegment) -> CheckShape:
        return CheckShape.plan(largest_count=self.largest_count, codewords=segment.codewords, blocks=segment.blocks)

    @property
    def index_segments(self) -> tuple[tuple[int, IndexSegment], ...]:
        """Index segments, each with its number in the layout."""
        return tuple(
            (number, segment)
            for number, segment in enumerate(self.layout.segments)
            if isinstance(segment, IndexSegment)
        )

    @property
    def ring_segments(self) -> tuple[RingSegment, ...]:
        return tuple(segment for segment in self.layout.segments if isinstance(segment, RingSegment))
