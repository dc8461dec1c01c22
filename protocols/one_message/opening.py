"""Add masked uploads in pieces of whole polynomials, and open the sum once the sum of secrets is known.

``LocalSum`` adds in this process; ``secagg.scale`` adds on many machines, and stores a sum across restarts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from secagg.crypto.ring import Ring, RingVector, add_into
from secagg.errors import (
    NOBODY,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    PeerMisbehaved,
    Reason,
    SecAggError,
)
from secagg.identifiers import ClientId

from . import lattice
from .decoding import SumOfSecrets
from .lattice import SIGMA
from .masks import (
    BYTE_BITS,
    WORD_BITS,
    EpochRing,
    Plane,
    Word,
    add_shifted,
    center,
    check_words_of,
    epoch_ring,
    field_of,
    fields,
    low_bits,
    lowest_bit,
    parts_of,
    spans,
    subtract_wide,
    word_count,
)
from .parameters import DEVIATIONS, MOST_NOISE_ENERGY, Parameters, least_guard_bits, pieces_of

if TYPE_CHECKING:
    from .configuration import Agreement
    from .messages import Upload


_NOISE_BITS: Final = 62
_LEAST_NOISE_ENERGY: Final = 1.5
"""Limit on the noise's energy with many coefficients, as a multiple of its mean."""
_FAILURE_BITS: Final = 40
_WIDE_PLANE: Final = 32
_SUM_OF_NARROW_PLANES: Final = 1 << 16
"""Number of 16-bit values that can be added in 32 bits."""


class Accumulator:
    """Sum of masked uploads, or of one piece of them, plane by plane; carries are resolved when it is opened."""

    def __init__(self, parameters: Parameters, piece: int | None = None, sums: list[Plane] | None = None) -> None:
        """Start at zero, or continue existing sums of these parameters."""
        self.parameters = parameters
        self.runs = tuple(run for run in parameters.runs if piece in (None, run.piece))
        """Runs of coefficients that it sums."""
        self._due = sum(run.sent_bytes for run in self.runs)
        self._planes = [(run, bits) for run in self.runs for bits in run.plane_bits]
        self.sums = [np.zeros(run.size, self._word(bits)) for run, bits in self._planes] if sums is None else sums

    def add(self, upload: bytes | bytearray | memoryview) -> None:
        """Add one upload, in any order; an upload that does not decode adds nothing."""
        planes = self._read(memoryview(upload))
        for (_, bits), plane, total in zip(self._planes, planes, self.sums, strict=True):
            if bits >= BYTE_BITS:
                add_into(total, plane)
            else:
                for part, shift in parts_of(total, plane.size, bits):
                    add_into(part, (plane >> np.uint8(shift))[: part.size] & np.uint8((1 << bits) - 1))

    def check(self, upload: bytes | memoryview) -> None:
        """Refuse an upload of the wrong length, or with a padding bit set."""
        self._read(memoryview(upload))

    def coefficients(self) -> list[Word]:
        """Return the sum of rounded values, shifted back to where they were, modulo 2^(64 words)."""
        first = self.runs[0].first
        size = self.runs[-1].end - first
        words = [np.zeros(size, np.uint64) for _ in range(word_count(self.parameters.modulus_bits))]
        sums = iter(self.sums)
        for run in self.runs:
            offset, part = run.dropped, [word[run.first - first : run.end - first] for word in words]
            for bits in run.plane_bits:
                add_shifted(part, next(sums).astype(np.uint64), offset)
                offset += bits
        return words

    def _read(self, upload: memoryview) -> list[Plane]:
        due = self._due
        if upload.nbytes != due:
            reason = Reason.TRUNCATED if upload.nbytes < due else Reason.TRAILING_BYTES
            raise MalformedMessage(f"a masked upload must have {due} bytes; got {upload.nbytes}", reason=reason)
        planes, start = list[Plane](), 0
        for run, bits in self._planes:
            size = -(-run.size * bits // BYTE_BITS)
            plane = np.frombuffer(upload[start : start + size], f"<u{max(1, bits // 8)}")
            start += size
            if bits < BYTE_BITS and not _is_filled_with_zeros(plane, run.size, bits):
                raise MalformedMessage("the padding bits of a plane must be zero", reason=Reason.NOT_CANONICAL)
            planes.append(plane)
        return planes

    def _word(self, bits: int) -> npt.DTypeLike:
        return np.uint64 if bits == _WIDE_PLANE or self.parameters.capacity > _SUM_OF_NARROW_PLANES else np.uint32


def _is_filled_with_zeros(plane: Plane, count: int, bits: int) -> bool:
    filled = np.zeros(plane.size, np.uint8)
    for part, shift in parts_of(np.empty(count, np.uint8), plane.size, bits):
        filled[: part.size] |= np.uint8(((1 << bits) - 1) << shift)
    return not (plane[-BYTE_BITS:] & ~filled[-BYTE_BITS:]).any()


class WrongSecret(PeerMisbehaved):
    """A sum of secrets does not open these uploads; nothing is released, and the evidence names nobody."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the sum of secrets does not match these uploads: {what}; ask more holders",
            reason=Reason.COMMITMENT_MISMATCH,
            culprits=NOBODY,
        )


def largest_entry(count: int) -> float:
    """Return the bound on each entry of a sum of ``count`` honest secrets."""
    return DEVIATIONS * SIGMA * math.sqrt(count)


def split_sum(total: npt.NDArray[np.int32], bits: int) -> list[npt.NDArray[np.int64]]:
    """Split the entries of a sum of secrets into limbs in [-2^(bits-1), 2^(bits-1)), lowest first."""
    limbs = list[npt.NDArray[np.int64]]()
    rest = total.astype(np.int64)
    half = 1 << (bits - 1)
    while rest.any() or not limbs:
        limb = ((rest + half) & ((1 << bits) - 1)) - half
        limbs.append(limb)
        rest = (rest - limb) >> bits
    return limbs


class Opening:
    """Removal of masks from a sum, given the sum of secrets."""

    def __init__(self, ring: EpochRing) -> None:
        self._ring, self._parameters = ring, ring.parameters

    def unmasked(self, total: Accumulator, sum_secret: SumOfSecrets) -> list[Word]:
        """Return the coefficients of a sum, or of one piece, minus the masks derived from a sum of secrets."""
        words, offset = total.coefficients(), total.runs[0].first
        limbs = split_sum(sum_secret, self._ring.sum_limb_bits)
        spectra = [lattice.spectra(limb) for limb in limbs]
        for first, count in self._ring.blocks(offset, total.runs[-1].end):
            start, end = (min(place, total.runs[-1].end) - offset for place in self._ring.range_of(first, count))
            part = [word[start:end] for word in words]
            mask = [np.zeros(end - start, np.uint64) for _ in part]
            self._ring.add_product(mask, first, count, spectra)
            subtract_wide(part, mask)
        return words

    def opened(self, pieces: Iterable[list[Word]], count: int) -> OpenedSum:
        """Return the sum of ``count`` uploads from all unmasked coefficients, if it passes the checks."""
        opened = OpenedSum(self._parameters, count)
        for words in pieces:
            opened.read(words)
        opened.require_honest(self._ring.seed)
        return opened

    def require_plausible(self, sum_secret: SumOfSecrets, count: int) -> None:
        """Refuse a sum of secrets whose largest entry or norm exceeds the bound for honest secrets."""
        if int(np.abs(sum_secret.astype(np.int64)).max()) > largest_entry(count):
            raise WrongSecret("an entry is too large")
        squared = float(np.square(sum_secret, dtype=np.float64).sum())
        if squared > lattice.NORM_FACTOR * self._parameters.degree * count * SIGMA**2:
            raise WrongSecret("it is too long")


class OpenedSum:
    """Sum of values over a list, read piece by piece from unmasked coefficients."""

    def __init__(self, parameters: Parameters, count: int) -> None:
        if not 1 <= count <= parameters.capacity:
            raise InvalidParameters(f"the number of uploads must be 1 to {parameters.capacity}; got {count}")
        self._parameters, self._count, self._read, self._energy = parameters, count, 0, 0
        self._vectors = [np.empty(segment.length, Ring(segment.ring_bits).word) for segment in parameters.segments]

    def vector(self, index: int) -> RingVector:
        """Return the sum of one segment modulo 2^ring_bits."""
        return self._vectors[index]

    def read(self, words: list[Word]) -> None:
        """Read the next coefficients; in exact segments remove the bias of rounding and centre the noise."""
        parameters, start = self._parameters, self._read
        self._read += words[0].size
        for index, low, high in spans(parameters, start, self._read):
            segment, lowest = parameters.segments[index], lowest_bit(parameters, index)
            part = [word[low - start : high - start] for word in words]
            if not segment.fine_bits:
                center(part, lowest, self._count // 2 if parameters.dropped_bits else 0)
                self._energy += noise_energy(
                    part, lowest, least_guard_bits(parameters.capacity, parameters.dropped_bits)
                )
            bits = segment.field_bits(parameters.capacity)
            shifted_by = 0 if segment.bounds is None else segment.bounds[0] * self._count & low_bits(WORD_BITS)
            for field in fields(parameters, index, self._vectors[index], low, high):
                values = field_of([word[: field.size] for word in part], lowest, bits)
                field[:] = (values + np.uint64(shifted_by)) & np.uint64(low_bits(segment.ring_bits))
                lowest += bits

    def require_honest(self, seed: bytes) -> None:
        """Refuse too much noise and rounded sums that do not match their check words; subtract their half steps."""
        parameters, checked = self._parameters, dict(self._parameters.checked)
        if self._read != parameters.coefficients:
            raise InternalError(f"a sum has {parameters.coefficients} coefficients, but {self._read} were read")
        exact = parameters.coefficients - sum(parameters.starts[fine + 1] - parameters.starts[fine] for fine in checked)
        # The number of zeros assumes at most this much noise, however few coefficients there are.
        most = min(energy_factor(exact), MOST_NOISE_ENERGY)
        if self._energy > most * exact * self._count * parameters.noise_variance:
            raise WrongSecret("it leaves more noise than honest uploads have")
        for fine, check in checked.items():
            rounded = self._vectors[fine]
            if (check_words_of(parameters, seed, fine, rounded) != self._vectors[check]).any():
                raise WrongSecret("the unmasked values do not match their check words")
            rounded -= rounded.dtype.type(self._count // 2 & low_bits(8 * rounded.itemsize))
            rounded &= rounded.dtype.type(low_bits(parameters.segments[fine].ring_bits))


def energy_factor(coefficients: int) -> float:
    """Return the limit on the noise's energy as a multiple of its mean: 1.5, or more if there are few coefficients.

    The squares of m sub-Gaussian values exceed f times their mean with probability below exp(-m (f - 1 - ln f) / 2).
    """
    due = 2 * _FAILURE_BITS * math.log(2) / coefficients
    factor = _LEAST_NOISE_ENERGY
    while factor - 1 - math.log(factor) < due:
        factor *= 1.05
    return factor


def noise_energy(words: list[Word], lowest: int, bits: int) -> int:
    """Return the sum of the squares of noise below bit ``lowest``, to which half of its range was added.

    Raises:
        WrongSecret: some noise exceeds its lowest ``bits`` bits, which hold the noise of honest uploads.
    """
    low = field_of(words, 0, bits).astype(np.int64)
    if bits == lowest:
        low -= 1 << (bits - 1)
    else:
        # Above those bits noise is all zeros or all ones, except for the half that was added.
        is_negative = (low >> (bits - 1)).astype(bool)
        for start in range(bits, lowest, _NOISE_BITS):
            size = min(_NOISE_BITS, lowest - start)
            half = 1 << (size - 1) if start + size == lowest else 0
            due = np.where(is_negative, np.uint64(low_bits(size) ^ half), np.uint64(half))
            if (field_of(words, start, size) != due).any():
                raise WrongSecret("it leaves more noise than honest uploads have")
        low -= is_negative.astype(np.int64) << bits
    return int(np.dot(low, low))


Sums = list[RingVector]
"""The sums of one piece, as words that wrap: adding two of them word by word adds their sums."""


@dataclass(frozen=True, slots=True)
class OneMessageCut:
    """Pieces of the vectors of one epoch; holds only public values until it is given the sum of the secrets."""

    context: bytes
    """T0."""
    parameters: Parameters
    seed: bytes

    @classmethod
    def of(cls, agreement: Agreement) -> OneMessageCut:
        return cls(agreement.t0, agreement.parameters, agreement.epoch.seed)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each piece in bytes."""
        return self.parameters.piece_bytes

    def zeros(self, number: int) -> Sums:
        """Return zero planes of a piece."""
        return Accumulator(self.parameters, number).sums

    def check(self, number: int, piece: bytes | memoryview) -> None:
        """Refuse a piece that does not decode."""
        Accumulator(self.parameters, number, []).check(piece)

    def add(self, total: Sums, number: int, piece: bytes | memoryview) -> None:
        """Add one client's planes; planes that do not decode add nothing."""
        Accumulator(self.parameters, number, total).add(piece)

    def open(self, total: Sums, number: int, secret: SumOfSecrets) -> Sums:
        """Return the coefficients of a piece, less ``a S``; the caller must still check the whole vector."""
        summed = Accumulator(self.parameters, number, total)
        ring = epoch_ring(self.parameters, self.seed)
        return [*Opening(ring).unmasked(summed, secret.astype(np.int32))]


class Adder(Protocol):
    """Adds a server's uploads; may continue the partial sum of an earlier process (default: none).

    Raises ``ConnectionError`` if it cannot store something.
    """

    def uploads(self) -> Collection[Upload]:
        """Return the uploads that an earlier process kept, without their vectors, in order of arrival."""
        return ()

    def listed(self) -> bytes | None:
        """Return the list that an earlier process fixed, if any."""
        return None

    def keep(self, upload: Upload) -> bytes:
        """Store an upload whose pieces were checked; return the input of ``add``."""
        ...

    def add(self, client: ClientId, kept: bytes) -> None:
        """Add stored uploads, now or later."""

    def settle(self) -> Mapping[ClientId, SecAggError]:
        """Finish the sum; return the clients whose pieces were lost, each with an error that names no culprit."""
        return {}

    def fix(self, upload_list: bytes) -> None:
        """Store the one list of this sum before a holder receives it."""

    def open(self, secret: SumOfSecrets) -> Iterable[Sums]:
        """Return the coefficients of the sum, less a S, piece by piece."""
        ...

    def over(self) -> None:
        """Record that the sum is about to be released, so that no later process releases it again."""

    def end(self) -> None:
        """Discard the added sums."""


class LocalSum(Adder):
    """Adder in this process; stores nothing."""

    def __init__(self, cut: OneMessageCut) -> None:
        self._cut = cut
        self._totals = [cut.zeros(number) for number in range(len(cut.lengths))]

    def keep(self, upload: Upload) -> bytes:
        return bytes(upload.vector)

    def add(self, client: ClientId, kept: bytes) -> None:
        del client
        for number, piece in enumerate(pieces_of(kept, self._cut.lengths)):
            self._cut.add(self._totals[number], number, piece)

    def open(self, secret: SumOfSecrets) -> Iterable[Sums]:
        return (self._cut.open(total, number, secret) for number, total in enumerate(self._totals))

    def fix(self, upload_list: bytes) -> None:
        """Do nothing: this adder stores nothing."""

    def over(self) -> None:
        """Do nothing: this adder stores nothing."""

    def end(self) -> None:
        for total in self._totals:
            for vector in total:
                vector[:] = 0
