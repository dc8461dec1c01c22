"""Masks a s + e of one upload, and what is left of a sum when the sum of the secrets is known.

A client's upload is round((a s + e + values) / 2^d): ``a`` is public and the same for all of an epoch, the secret ``s``
is one short polynomial, and every polynomial of the upload has its own block of ``a``. Blocks are numbered over the
whole layout: two blocks with one number and one s would differ by the difference of their values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import key_derivation
from secagg.crypto.labels import Label
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Confined, Secret
from secagg.errors import NOBODY, InvalidParameters, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.protocols.one_message.parameters import DEVIATIONS, SEED_BYTES, Parameters

from . import ring_products
from .coefficients import add_shifted, center, field_of, round_off, subtract_wide
from .estimator import SIGMA
from .gaussian import Sampler, SmallVector
from .packing import Word, lowest_bit, pack, unpack
from .planes import Accumulator, UploadPlanes
from .rounding import Rounding, agrees, remove_bias

POLYNOMIALS_AT_ONCE: Final = 16
"""Few enough that a block of transforms stays in a second-level cache."""
MOST_KEPT_BYTES: Final = 1 << 26
"""Transforms of public polynomials are kept up to so many bytes."""
LEAST_ENERGY: Final = 1.5
_FAILURE_BITS = 40
_BLOCK_BYTES = 16
_HALF_WORD_BYTES = 4

SumOfSecrets = npt.NDArray[np.int32]


class WrongSecret(PeerMisbehaved):
    """A sum of secrets that does not open these uploads; nothing was released, and the evidence names nobody."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the sum of secrets does not belong to these uploads: {what}; ask more holders",
            reason=Reason.COMMITMENT_MISMATCH,
            culprits=NOBODY,
        )


def largest_entry(count: int) -> float:
    """Return what no entry of a sum of so many honest secrets exceeds."""
    return DEVIATIONS * SIGMA * math.sqrt(count)


class RingSecret(Confined):
    """The short polynomial of one upload, until it is shared."""

    def __init__(self, coefficients: SmallVector) -> None:
        self._coefficients = coefficients
        self._wiped = False

    def expose(self) -> SmallVector:
        """Return the coefficients for the one call that needs them; they read as zeros after ``wipe``.

        Raises:
            Misuse: they were wiped.
        """
        if self._wiped:
            raise Misuse("the secret of an upload was wiped; mask again", reason=Reason.ALREADY_SPENT)
        return self._coefficients

    def wipe(self) -> None:
        """Overwrite the coefficients."""
        self._coefficients[:] = 0
        self._wiped = True

    def __repr__(self) -> str:
        return f"<RingSecret, degree {self._coefficients.size}{', wiped' if self._wiped else ''}>"


class EpochRing:
    """The public polynomials of an epoch, and what clients and the server do with them."""

    def __init__(self, parameters: Parameters, seed: bytes) -> None:
        """Take the epoch's public seed of 32 bytes, to which every holder contributed."""
        if type(seed) is not bytes or len(seed) != SEED_BYTES:
            raise InvalidParameters(f"an epoch's seed is {SEED_BYTES} bytes; got {type(seed).__name__}")
        self.parameters = parameters
        self._seed = seed
        self._limbs = ring_products.limb_count(parameters.modulus_bits)
        self._limb_bits = ring_products.limb_bits(parameters.modulus_bits)
        self._sum_limb_bits = ring_products.sum_limb_bits(parameters.degree, parameters.modulus_bits)
        self._prepared: ring_products.Spectrum | None = None
        self._is_new = True

    def prepare(self) -> None:
        """Keep the transforms of all public polynomials, 8 bytes a limb of a coefficient, if they are not too long."""
        size = 8 * self._limbs * self.parameters.polynomials * self.parameters.degree
        if self._prepared is None and size <= MOST_KEPT_BYTES:
            self._prepared = np.concatenate([self._transform(*block) for block in self._blocks()])

    def accumulator(self) -> Accumulator:
        """Return an empty sum."""
        return Accumulator(self.parameters)

    # --- A client ----------------------------------------------------------------------------------------------------

    def mask(self, vectors: Sequence[RingVector], coins_seed: Secret, weight: int = 1) -> tuple[bytes, RingSecret]:
        """Return the masked upload of ring vectors, one a segment, and the secret that is to be shared.

        Every value is multiplied by ``weight``. The seed is wiped.

        Raises:
            Misuse: the vectors are not of the layout, or the weight is not a positive integer.
            CapacityExceeded: a value leaves its segment's bounds, or the weight the capacity.
        Security: a seed masks one upload; what was made from it is sent once or identically again.
        """
        if len(coins_seed) != SEED_BYTES:
            raise InvalidParameters(f"the seed of an upload is {SEED_BYTES} bytes; got {len(coins_seed)}")
        # An epoch has many rounds: who masks a second time will do so again.
        if not self._is_new:
            self.prepare()
        self._is_new = False
        words = pack(self.parameters, vectors, weight)
        try:
            with (
                key_derivation.expand("secret's key", SEED_BYTES, coins_seed, Label.ONE_MESSAGE_SECRET) as secret_key,
                key_derivation.expand("noise key", SEED_BYTES, coins_seed, Label.ONE_MESSAGE_NOISE) as noise_key,
            ):
                secret = RingSecret(Sampler(secret_key).draw(self.parameters.degree))
                ring_products.require_short(secret.expose())
                upload = self._masked(words, secret.expose(), Sampler(noise_key))
        finally:
            coins_seed.wipe()
            for word in words:
                word[:] = 0
        return upload, secret

    def _masked(self, words: list[Word], secret: SmallVector, noise: Sampler) -> bytes:
        """Mask, round and write coefficients in place; check words wait for what rounding makes of their values."""
        parameters, planes = self.parameters, UploadPlanes(self.parameters)
        spectrum = ring_products.spectra(secret)
        rounding = Rounding(parameters, self._seed, words[0])
        for first, count in self._blocks():
            start, end = self._range(first, count)
            part = [word[start:end] for word in words]
            self._add_product(part, first, count, [spectrum])
            rounding.keep_products(words[0], start, end)
            drawn = noise.draw(end - start)
            add_shifted(part, drawn.astype(np.int64).view(np.uint64), 0, signed=True)
            drawn[:] = 0
            self._write(words, start, min(end, rounding.end), planes)
        spectrum[:] = 0
        rounding.add_check_words(words)
        self._write(words, rounding.end, parameters.coefficients, planes)
        return planes.encode()

    def _write(self, words: Sequence[Word], start: int, end: int, planes: UploadPlanes) -> None:
        """Round coefficients and write them into the planes of their runs."""
        for number, run in enumerate(self.parameters.runs):
            low, high = max(start, run.first), min(end, run.end)
            if low < high:
                part = [word[low:high] for word in words]
                planes.write(number, round_off(part, run.dropped), low - run.first, run.plane_bits)

    # --- The server --------------------------------------------------------------------------------------------------

    def open(self, total: Accumulator, sum_secret: SumOfSecrets) -> OpenedSum:
        """Return the sum that a sum of secrets opens, after three tests of whether it belongs to these uploads.

        Raises:
            WrongSecret: its largest entry, its norm or the noise that it leaves is not what honest secrets give.
            ThresholdNotMet: there is no upload in the sum.
            Misuse: the uploads or the secret are of other parameters.
        """
        if total.parameters != self.parameters or sum_secret.shape != (self.parameters.degree,):
            raise Misuse("the uploads and the sum of secrets are of one epoch's parameters")
        if not total.count:
            raise ThresholdNotMet(needed=1, present=0, what="uploads")
        self.require_plausible(sum_secret, total.count)
        return self.opened(self.unmasked(total, sum_secret), total.count)

    def unmasked(self, total: Accumulator, sum_secret: SumOfSecrets) -> list[Word]:
        """Return the coefficients of a sum, or of one piece of it, less the masks that a sum of secrets gives."""
        words, offset = total.coefficients(), total.runs[0].first
        limbs = ring_products.split_sum(sum_secret, self._sum_limb_bits)
        spectra = [ring_products.spectra(limb) for limb in limbs]
        for first, count in self._blocks(offset, total.runs[-1].end):
            start, end = (min(place, total.runs[-1].end) - offset for place in self._range(first, count))
            part = [word[start:end] for word in words]
            mask = [np.zeros(end - start, np.uint64) for _ in part]
            self._add_product(mask, first, count, spectra)
            subtract_wide(part, mask)
        return words

    def opened(self, words: list[Word], count: int) -> OpenedSum:
        """Return the sum that is in all coefficients of so many uploads without their masks, if it looks like one.

        Raises:
            WrongSecret: the noise, or the check words, are not what honest secrets leave.
        """
        self._center(words, count)
        if not agrees(self.parameters, self._seed, words):
            raise WrongSecret("what it unmasks does not agree with its check words")
        remove_bias(self.parameters, words, count)
        return OpenedSum(self.parameters, words)

    def require_plausible(self, sum_secret: SumOfSecrets, count: int) -> None:
        """Refuse a sum of secrets whose largest entry or norm honest secrets do not give.

        Raises:
            WrongSecret: it is too large, or too long.
        """
        if int(np.abs(sum_secret.astype(np.int64)).max()) > largest_entry(count):
            raise WrongSecret("an entry is too large")
        squared = float(np.square(sum_secret, dtype=np.float64).sum())
        if squared > ring_products.NORM_FACTOR * self.parameters.degree * count * SIGMA**2:
            raise WrongSecret("it is too long")

    def _center(self, words: list[Word], count: int) -> None:
        """Remove the bias of rounding, centre the noise of each exact segment and refuse too much of it."""
        energy, coefficients = 0.0, 0
        bias = count // 2 if self.parameters.dropped_bits else 0
        for index, segment in enumerate(self.parameters.segments):
            if segment.fine_bits:
                continue
            first, end = self.parameters.starts[index : index + 2]
            part, lowest = [word[first:end] for word in words], lowest_bit(self.parameters, index)
            center(part, lowest, bias)
            coefficients += end - first
            # Of a segment with many spare bits the lowest 62 tell as much as all.
            bits = min(lowest, 62)
            noise = field_of(part, lowest - bits, bits).astype(np.float64) - 2.0 ** (bits - 1)
            energy += float(np.square(noise * 2.0 ** (lowest - bits)).sum())
        expected = coefficients * count * self.parameters.noise_variance
        if energy > energy_factor(coefficients) * expected:
            raise WrongSecret("it leaves more noise than honest uploads have")

    # --- Both --------------------------------------------------------------------------------------------------------

    def _blocks(self, first: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        """Return runs of the polynomials of some coefficients, from the first of one on: the first, and how many."""
        degree = self.parameters.degree
        last = -(-(self.parameters.coefficients if end is None else end) // degree)
        starts = range(first // degree, last, POLYNOMIALS_AT_ONCE)
        return [(start, min(POLYNOMIALS_AT_ONCE, last - start)) for start in starts]

    def _range(self, first: int, count: int) -> tuple[int, int]:
        degree = self.parameters.degree
        return first * degree, min((first + count) * degree, self.parameters.coefficients)

    def _transform(self, first: int, count: int) -> ring_products.Spectrum:
        """Return the transforms of the limbs of public polynomials: (count, limbs, n/2)."""
        degree = self.parameters.degree
        stream = bytearray(count * self._limbs * degree * _HALF_WORD_BYTES)
        counter = first * self._limbs * degree * _HALF_WORD_BYTES // _BLOCK_BYTES
        initial = modes.CTR(counter.to_bytes(_BLOCK_BYTES, "big"))
        Cipher(algorithms.AES(self._seed), initial).encryptor().update_into(bytes(len(stream)), stream)
        words = np.frombuffer(stream, "<i4").reshape(count, self._limbs, degree)
        return ring_products.spectra(words >> (32 - self._limb_bits))

    def _add_product(self, words: list[Word], first: int, count: int, shorts: Sequence[ring_products.Spectrum]) -> None:
        """Add a s for some polynomials in place, s being cut into limbs; the last one may be used in part."""
        prepared = self._prepared
        public = self._transform(first, count) if prepared is None else prepared[first : first + count]
        is_whole = words[0].size == count * self.parameters.degree
        halves = [word.reshape(count, 2, -1) if is_whole else word for word in words]
        for index, short in enumerate(shorts):
            products = ring_products.products(public, short).view(np.uint64)
            for limb in range(self._limbs):
                values = products[:, limb] if is_whole else products[:, limb].reshape(-1)[: words[0].size]
                shift = limb * self._limb_bits + index * self._sum_limb_bits
                add_shifted(halves, values, shift, signed=True)


class OpenedSum:
    """The sum of values over a list, still as coefficients."""

    def __init__(self, parameters: Parameters, words: list[Word]) -> None:
        self._parameters = parameters
        self._words = words

    def vector(self, index: int, total_weight: int) -> RingVector:
        """Return the sum of one segment modulo 2^ring_bits; a segment without bounds does not look at the weight."""
        segment = self._parameters.segments[index]
        if segment.bounds is not None and not 1 <= total_weight <= self._parameters.capacity_weight:
            raise InvalidParameters(
                f"a total weight is in 1..{self._parameters.capacity_weight}, what the fields hold; got {total_weight}"
            )
        return unpack(self._parameters, self._words, index, total_weight)

    def vectors(self, total_weight: int) -> list[RingVector]:
        """Return the sums of all inputs; the total weight is the number of uploads where nobody weighs."""
        return [self.vector(index, total_weight) for index in range(self._parameters.inputs)]


def energy_factor(coefficients: int) -> float:
    """Return how many times its mean the noise's energy may reach: 1.5, more where few coefficients vary more.

    The squares of m sub-Gaussian values exceed f times their mean with a chance below exp(-m (f - 1 - ln f) / 2).
    """
    due = 2 * _FAILURE_BITS * math.log(2) / coefficients
    factor = LEAST_ENERGY
    while factor - 1 - math.log(factor) < due:
        factor *= 1.05
    return factor
