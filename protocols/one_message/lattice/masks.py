"""Masks a s + e of one upload.

A client's upload is round((a s + e + values) / 2^d): ``a`` is public and the same for all of an epoch, the secret ``s``
is one short polynomial, and every polynomial of the upload has its own block of ``a``. Blocks are numbered over the
whole layout: two blocks with one number and one s would differ by the difference of their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto import key_derivation
from secagg.crypto.labels import Label
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.protocols.one_message.parameters import SEED_BYTES, Parameters

from . import ring_products
from .coefficients import add_shifted, round_off
from .gaussian import Sampler, SmallVector
from .packing import Word, pack
from .planes import UploadPlanes
from .rounding import Rounding

POLYNOMIALS_AT_ONCE: Final = 16
"""Few enough that a block of transforms stays in a second-level cache."""
MOST_KEPT_BYTES: Final = 1 << 26
"""Transforms of public polynomials are kept up to so many bytes."""
_BLOCK_BYTES = 16
_HALF_WORD_BYTES = 4


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
    """The public polynomials of an epoch, and the masks that clients make with them."""

    def __init__(self, parameters: Parameters, seed: bytes) -> None:
        """Take the epoch's public seed of 32 bytes, to which every holder contributed."""
        if type(seed) is not bytes or len(seed) != SEED_BYTES:
            raise InvalidParameters(f"an epoch's seed is {SEED_BYTES} bytes; got {type(seed).__name__}")
        self.parameters = parameters
        self.seed = seed
        self._limbs = ring_products.limb_count(parameters.modulus_bits)
        self._limb_bits = ring_products.limb_bits(parameters.modulus_bits)
        self.sum_limb_bits = ring_products.sum_limb_bits(parameters.degree, parameters.modulus_bits)
        self._prepared: ring_products.Spectrum | None = None
        self._is_new = True

    def prepare(self) -> None:
        """Keep the transforms of all public polynomials, 8 bytes a limb of a coefficient, if they are not too long."""
        size = 8 * self._limbs * self.parameters.polynomials * self.parameters.degree
        if self._prepared is None and size <= MOST_KEPT_BYTES:
            self._prepared = np.concatenate([self._transform(*block) for block in self.blocks()])

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
        rounding = Rounding(parameters, self.seed)
        for first, count in self.blocks():
            start, end = self.range_of(first, count)
            part = [word[start:end] for word in words]
            with rounding.masking(words[0], start, end):
                self.add_product(part, first, count, [spectrum])
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

    # --- Also for opening ---------------------------------------------------------------------------------------------

    def blocks(self, first: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        """Return runs of the polynomials of some coefficients, from the first of one on: the first, and how many."""
        degree = self.parameters.degree
        last = -(-(self.parameters.coefficients if end is None else end) // degree)
        starts = range(first // degree, last, POLYNOMIALS_AT_ONCE)
        return [(start, min(POLYNOMIALS_AT_ONCE, last - start)) for start in starts]

    def range_of(self, first: int, count: int) -> tuple[int, int]:
        """Return which coefficients some polynomials hold."""
        degree = self.parameters.degree
        return first * degree, min((first + count) * degree, self.parameters.coefficients)

    def _transform(self, first: int, count: int) -> ring_products.Spectrum:
        """Return the transforms of the limbs of public polynomials: (count, limbs, n/2)."""
        degree = self.parameters.degree
        stream = bytearray(count * self._limbs * degree * _HALF_WORD_BYTES)
        counter = first * self._limbs * degree * _HALF_WORD_BYTES // _BLOCK_BYTES
        initial = modes.CTR(counter.to_bytes(_BLOCK_BYTES, "big"))
        Cipher(algorithms.AES(self.seed), initial).encryptor().update_into(bytes(len(stream)), stream)
        words = np.frombuffer(stream, "<i4").reshape(count, self._limbs, degree)
        return ring_products.spectra(words >> (32 - self._limb_bits))

    def add_product(self, words: list[Word], first: int, count: int, shorts: Sequence[ring_products.Spectrum]) -> None:
        """Add a s for some polynomials in place, s being cut into limbs; the last one may be used in part."""
        prepared = self._prepared
        public = self._transform(first, count) if prepared is None else prepared[first : first + count]
        is_whole = words[0].size == count * self.parameters.degree
        halves = [word.reshape(count, 2, -1) if is_whole else word for word in words]
        for index, short in enumerate(shorts):
            products = ring_products.products(public, short).view(np.uint64)
            for limb in range(self._limbs):
                values = products[:, limb] if is_whole else products[:, limb].reshape(-1)[: words[0].size]
                shift = limb * self._limb_bits + index * self.sum_limb_bits
                add_shifted(halves, values, shift, signed=True)


@lru_cache(maxsize=2)
def epoch_ring(parameters: Parameters, seed: bytes) -> EpochRing:
    """Return the public polynomials of an epoch, which everybody in this process may share."""
    return EpochRing(parameters, seed)
