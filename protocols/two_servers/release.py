"""End of a round at one server: noise, one list, one commitment, one share, and the sum of both shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN
from fractions import Fraction
from math import ceil, sqrt
from typing import Final

import numpy as np

from secagg.blame import Evidence, between_servers, culprits
from secagg.contract import Aggregate, Layout, RingSegment
from secagg.contract.codewords import Tables, summed_layout
from secagg.contract.layout import IndexSegment
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.ring import RingVector, add_into, reduce_into
from secagg.crypto.secret import Confined, Secret
from secagg.errors import NOBODY, CapacityExceeded, InvalidParameters, Misuse, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ClientId
from secagg.privacy.accounting import ReleasePart, epsilon, of_histogram, of_vector
from secagg.privacy.client_noise import NoiseSettings
from secagg.privacy.noise_table import SeededCoins, add_noise_into, pieces
from secagg.privacy.rounding import rounded_root
from secagg.session.certificates import SigningKey

from .configuration import IndexingConfiguration, ServerNoise
from .offers import Due, Entry, RoundStamp
from .opened_upload import RoundTotals
from .point_functions.lanes import LaneGroup, Lanes
from .server_messages import NONCE_BYTES, AcceptedList, OutputCommitment, OutputShare

_COUNT_BITS: Final = 32


def server_noise(settings: NoiseSettings, layout: Layout) -> ServerNoise | None:
    """Return the noise of the settings, or None if they have none."""
    multiplier = settings.noise_multiplier
    if multiplier is None:
        return None
    squared = squared_sensitivities(settings, layout)
    if multiplier <= 0:
        raise InvalidParameters(f"noise_multiplier must be positive; got {multiplier}")
    variances = tuple(ceil(multiplier**2 * len(squared) * one) for one in squared)
    return ServerNoise(
        kind=settings.noise_kind, variances=variances, l2_bounds=settings.l2_bounds, is_rotated=settings.is_rotated
    )


def add_noise(
    noise: ServerNoise, values: Sequence[Lanes | RingVector], layout: Layout, group: LaneGroup, seed: Secret
) -> None:
    """Add this server's noise to its share of the sum, in place."""
    coins = SeededCoins(seed)
    for segment, vector, variance in zip(layout.segments, values, noise.variances, strict=True):
        if isinstance(segment, RingSegment):
            add_noise_into(vector, segment.ring, noise.kind, Fraction(variance), coins)
            continue
        position = 0
        for piece in pieces(noise.kind, Fraction(variance), vector.size, coins):
            part = vector[position : position + piece.size]
            group.add_into(part, np.mod(piece.astype(np.int64), group.order).astype(group.word))
            group.reduce_into(part)
            position += piece.size


@dataclass(frozen=True, slots=True)
class ReleasedNoise:
    """Noise of one round, as reported to a platform."""

    noise: ServerNoise
    settings: NoiseSettings
    layout: Layout
    tables: Tables

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviation of each released segment; for a table, that of its widest coordinate."""
        found, remaining = list[float](), iter(self.tables)
        for segment, variance in zip(self.layout.segments, self.noise.variances, strict=True):
            if isinstance(segment, RingSegment):
                found.append(sqrt(2 * variance))
                continue
            for table in next(remaining):
                widest = float((table.entries.astype(np.float64) ** 2).sum(axis=0).max())
                found.append(sqrt(2 * variance * widest))
        return tuple(found)

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Return the epsilon against one server, whose own noise hides nothing from itself."""
        parts = [
            ReleasePart(l2_squared=squared, l1=None, variance=Fraction(variance))
            for squared, variance in zip(
                squared_sensitivities(self.settings, self.layout), self.noise.variances, strict=True
            )
        ]
        return epsilon(self.noise.kind, parts, releases, delta)


def require_held(settings: NoiseSettings, layout: Layout, clients: int) -> ServerNoise | None:
    """Return the noise of the settings.

    Raises:
        CapacityExceeded: rings and fields cannot hold it; the error names the maximum multiplier.
    """
    noise = server_noise(settings, layout)
    if noise is None or settings.noise_multiplier is None:
        return None
    squared = squared_sensitivities(settings, layout)
    most = min(
        Fraction(variance, len(squared) * max(1, one))
        for variance, one in zip(noise.most(layout, clients), squared, strict=True)
    )
    if settings.noise_multiplier**2 > most:
        held = rounded_root(most, ROUND_DOWN)
        raise CapacityExceeded(
            f"rings and fields cannot hold sums of {clients} clients with the noise of both servers: "
            + (f"use noise_multiplier = {held:f} at most, or wider rings" if held else "use wider rings, or no noise")
        )
    return noise


def squared_sensitivities(settings: NoiseSettings, layout: Layout) -> list[int]:
    """Return the squared sensitivity of each segment to one client."""
    rings = sum(isinstance(segment, RingSegment) for segment in layout.segments)
    if len(settings.l2_bounds) != rings:
        raise InvalidParameters(f"l2_bounds must be {rings}, one per ring segment; got {len(settings.l2_bounds)}")
    bounds = iter(settings.l2_bounds)
    return [
        of_vector(next(bounds), settings.adjacency)
        if isinstance(segment, RingSegment)
        else of_histogram(segment.blocks, settings.adjacency)
        for segment in layout.segments
    ]


def counts_layout(layout: Layout) -> Layout:
    """Return the layout of counts with noise, which replaces histograms."""
    segments = tuple(
        segment if isinstance(segment, RingSegment) else RingSegment(_COUNT_BITS, segment.blocks * segment.codewords)
        for segment in layout.segments
    )
    return Layout(segments, layout.version)


def centred(lanes: Lanes, order: int) -> RingVector:
    """Return counts with noise as elements of a ring; the upper half of a lane's values are negative."""
    signed = lanes.astype(np.int64)
    signed[signed > order // 2] -= order
    return RingSegment(_COUNT_BITS, 1).ring.from_integers(signed)


def sums_of_counts(noised: Aggregate, layout: Layout, tables: Tables) -> Aggregate:
    """Return sums of codewords, weighted by counts with noise."""
    counts = [
        None
        if isinstance(segment, RingSegment)
        else noised_segment.ring.lift(vector).astype(np.int64).reshape(segment.blocks, segment.codewords)
        for segment, noised_segment, vector in zip(
            layout.segments, noised.layout.require_rings(), noised.values, strict=True
        )
    ]
    most = max((int(np.abs(one).sum(axis=1).max()) for one in counts if one is not None), default=0)
    summed = summed_layout(layout, tables, max(noised.contributors, most))
    values, released, remaining = list[RingVector](), iter(summed.require_rings()), iter(tables)
    for one, vector in zip(counts, noised.values, strict=True):
        if one is None:
            next(released)
            values.append(vector)
            continue
        first = 0
        for table in next(remaining):
            total = one[first : first + table.blocks] @ table.entries
            values.append(next(released).ring.from_integers(total.reshape(-1)))
            first += table.blocks
    return Aggregate(summed, tuple(values), noised.contributors)


NOISE_SEED_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Result of a round."""

    aggregate: Aggregate
    counted: tuple[ClientId, ...]
    rejected: dict[ClientId, str]


class Release(Confined):
    """Both servers' signatures at the end of a round; ``RoundRules`` decides which steps are allowed."""

    def __init__(
        self, configuration: IndexingConfiguration, stamp: RoundStamp, peer_stamp: RoundStamp, signing_key: SigningKey
    ) -> None:
        self._configuration = configuration
        self._stamp, self._peer_stamp = stamp, peer_stamp
        self._signing_key = signing_key
        self.signed_list: bytes | None = None
        self.peer_commitment: OutputCommitment | None = None
        self.share: bytes | None = None
        """This server's share of the sum with its nonce, once both servers agree on a list."""

    def sign(self, entries: Sequence[Entry]) -> bytes:
        return AcceptedList.signed(self._stamp, entries, self._signing_key).encode()

    def require_same_list(self, peer_list: bytes) -> None:
        theirs = AcceptedList.verified(peer_list, self._configuration, self._peer_stamp)
        ours = self._own_list()
        if (theirs.entries_digest, theirs.contributors) != (ours.entries_digest, ours.contributors):
            raise PeerMisbehaved(
                f"{self._peer_stamp.server} signed a different list, with {theirs.contributors} uploads instead of "
                f"{ours.contributors}; nothing of this round is released",
                reason=Reason.SERVERS_DISAGREE,
                culprits=culprits(Evidence.DIFFERENT_LISTS),
            )

    def encode_share(self, nonce_key: Secret, totals: RoundTotals) -> bytes:
        """Return this server's share of the sum, with a nonce that hides it in the commitment until the opening.

        Security: the nonce is derived from a key of the round and from the list, so no two lists share a nonce.
        """
        digest = self._own_list().entries_digest
        with expand("commitment nonce", NONCE_BYTES, nonce_key, Label.INDEXING_NONCE, digest) as fresh:
            nonce = bytes(fresh.expose())
        values = totals.sums()
        configuration = self._configuration
        if configuration.noise is not None:
            # Derived from the round's root, which no other server has.
            with expand("noise seed", NOISE_SEED_BYTES, nonce_key, Label.INDEXING_NOISE, digest) as seed:
                add_noise(configuration.noise, values, configuration.layout, configuration.group, seed)
        return OutputShare.of(configuration, self._stamp, nonce, values).encode()

    def commitment(self) -> bytes:
        return OutputCommitment.to(self._stamp, self._own_list().entries_digest, self.own_share()).encode()

    def own_share(self) -> bytes:
        if self.share is None:
            raise Misuse("a server must agree on a list before it commits to its share")
        return self.share

    def read_commitment(self, message: bytes) -> OutputCommitment:
        with blaming(*between_servers()):
            theirs = OutputCommitment.decode(message, self._peer_stamp)
        if self.peer_commitment not in (None, theirs):
            raise PeerMisbehaved(
                f"{self._peer_stamp.server} already committed to a different share",
                reason=Reason.ALREADY_ANSWERED,
                culprits=between_servers(),
            )
        return theirs

    def combined(self, peer_share: bytes) -> Aggregate:
        """Add the other server's share, which must match its commitment, and return the sum."""
        peer = self._peer_stamp.server
        if self.peer_commitment is None:
            raise Misuse("a server must open its share first, against the other server's commitment")
        digest = self._own_list().entries_digest
        if OutputCommitment.to(self._peer_stamp, digest, peer_share) != self.peer_commitment:
            raise PeerMisbehaved(
                f"the share of {peer} does not match its commitment",
                reason=Reason.COMMITMENT_MISMATCH,
                culprits=between_servers(),
            )
        with blaming(*between_servers()):
            theirs = self._values(peer_share, self._peer_stamp)
        try:
            return self._aggregate(self._values(self.own_share(), self._stamp), theirs)
        except CapacityExceeded as error:
            raise PeerMisbehaved(
                f"the two shares do not add up to a valid sum: {error}", reason=Reason.SERVERS_DISAGREE, culprits=NOBODY
            ) from None

    def wipe(self) -> None:
        self.share = None

    def _own_list(self) -> AcceptedList:
        if self.signed_list is None:
            raise Misuse("a server must sign its own list first")
        return AcceptedList.verified(self.signed_list, self._configuration, self._stamp)

    def _values(self, share: bytes, stamp: RoundStamp) -> tuple[Lanes | RingVector, ...]:
        return OutputShare.decode(share, Due(stamp, self._configuration)).values(self._configuration)

    def _aggregate(self, own: tuple[Lanes | RingVector, ...], theirs: tuple[Lanes | RingVector, ...]) -> Aggregate:
        configuration, group = self._configuration, self._configuration.group
        sums = list[RingVector]()
        for segment, value, other in zip(configuration.layout.segments, own, theirs, strict=True):
            if isinstance(segment, IndexSegment):
                group.add_into(value, other)
                group.reduce_into(value)
                if configuration.noise is not None:
                    sums.append(centred(value, group.order))
                    continue
                sums.append(value.reshape(segment.blocks, segment.codewords).astype(np.uint64))
            else:
                sums.append(reduce_into(add_into(value, other), segment.modulus_bits))
        count = self._own_list().contributors
        layout = configuration.layout if configuration.noise is None else counts_layout(configuration.layout)
        return Aggregate(layout, tuple(sums), count)
