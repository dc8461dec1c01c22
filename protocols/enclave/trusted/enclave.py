"""The trusted part: it opens and adds uploads, and releases one sum of many clients per buffer.

Evidence measures this module and its imports. They use no network, files or clock, and no configuration except the one
at the start. Keys exist only in memory: a restart is a new epoch with new keys, and nobody can open uploads that were
sealed to an earlier one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.blame import Evidence, culprits, from_server, unverified
from secagg.choices import ReleaseForm
from secagg.contract.codewords import CodewordTable, Tables, sum_of_codewords
from secagg.contract.decoder import Aggregate, Histogram
from secagg.contract.layout import IndexSegment, RingSegment, RowSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_pair
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import Ring, RingVector, add_into, reduce_into, subtract_into
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite
from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, PeerError, PeerMisbehaved, Reason, blaming
from secagg.privacy.noise import sample
from secagg.session.certificates import Authority, SigningKey
from secagg.wire import owned_bytes

from .bounded import BoundedSum, packed_bytes
from .buffer import BufferState, Entry, ReleaseRules
from .configuration import EnclaveConfiguration, squared_norms
from .histogram import HistogramAccumulator
from .messages import (
    EPOCH_BYTES,
    PROOF_BYTES,
    BufferRelease,
    EnclaveOffer,
    Packed,
    Receipt,
    SealedUpload,
    Seed,
    bounded_segments,
    has_one_seal,
    mask_key,
    open_indices,
    proof_of,
    sealing_info,
    secret_bytes,
    uploads_digest,
)

DEFAULT_MEMORY_BYTES: Final = 1 << 32
_ROWS: Final = 1 << 14
"""Blocks that are decoded at a time."""

Combine = Callable[[Any, Any], object]
Slot = tuple[Combine, Callable[[], RingVector | Histogram]]
"""A segment of a release: the function that combines it with noise, and the one that computes it without noise."""
Quote = Callable[[bytes], Any]
"""Produces evidence for 64 bytes: the hardware's driver, or a simulation."""


class Enclave(Confined):
    """One epoch of the trusted part: one configuration, one set of keys, one open buffer at a time.

    Security: the host chooses the calls and their arguments, and sees every answer. Errors say what is wrong with a
        malformed upload; they reveal nothing about the values of a well-formed one.
    """

    def __init__(
        self,
        configuration: EnclaveConfiguration,
        *,
        coins: Coins,
        quote: Quote,
        threads: int = 1,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        """Draw the keys of an epoch and obtain evidence for them.

        Args:
            coins: ``SystemCoins()`` inside the enclave.
            quote: produces evidence for the binding of keys, epoch and configuration.
            memory_bytes: memory limit of an epoch; a configuration that needs more is refused before allocation.
        """
        if type(configuration) is not EnclaveConfiguration:
            raise Misuse(f"configuration must be an EnclaveConfiguration; got {type(configuration).__name__}")
        if configuration.memory_bytes > memory_bytes:
            raise InvalidParameters(
                f"this configuration needs {configuration.memory_bytes} bytes of memory; the enclave may use "
                f"{memory_bytes}: use fewer or smaller segments, or raise --memory"
            )
        self.configuration = configuration
        self._coins = coins
        self._threads = threads
        self._lock = RLock()
        self._rules = ReleaseRules(configuration)
        epoch = bytes(draw_exactly(EPOCH_BYTES, coins))
        with Secret.random("sealing_root", 32, coins) as root, Secret.random("receipt_seed", 32, coins) as receipt_seed:
            self._pair = sealing_pair(configuration.suite, root, configuration.context)
            self._receipt_key = SigningKey(receipt_seed)
        self.offer = EnclaveOffer(
            context=configuration.context,
            epoch=epoch,
            sealing_key=self._pair.public_key.encoded,
            receipt_key=self._receipt_key.public_key,
        )
        try:
            self.evidence = quote(self.offer.binding)
        except BaseException:
            self._pair.wipe()
            self._receipt_key.wipe()
            raise
        self._mask_keys = list[Secret]()
        """Mask keys of the uploads in the open buffer."""
        self._histograms = list[HistogramAccumulator]()
        self._sums = list[BoundedSum]()
        """Sums of the ring segments that this enclave scales and adds itself."""
        self._releases = 0
        self._last_release = b""

    @property
    def state(self) -> BufferState:
        return self._rules.state

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates for a model; the previous release can no longer be fetched."""
        with self._lock:
            # Allocated before the buffer opens: if allocation fails, no buffer without counters stays open.
            histograms = [
                HistogramAccumulator(segment, self.configuration.maximum_cohort, self.configuration.accumulation)
                for segment in self.configuration.index_segments
            ]
            sums = list(_sums_of(self.configuration))
            self._rules.open(version, model_digest)
            self._last_release = b""
            self._histograms, self._sums = histograms, sums

    def announce_model(self, version: int, model_digest: bytes) -> None:
        with self._lock:
            self._rules.announce(version, model_digest)

    def receive(self, message: bytes) -> None:
        """Check an upload and add it to the open buffer.

        Raises:
            PeerError: the upload is refused and nothing has changed; ``culprits`` names who may have caused it.
            Misuse: no buffer is open.
        """
        with self._lock, blaming(*from_server()):
            self._rules.require_open()
            upload = SealedUpload.decode(owned_bytes(message), self.configuration)
            header = upload.header
            client = header.certificate.client
            entry = Entry(client, upload.upload_id, header.model.version, header.model.digest)
            if header.epoch != self.offer.epoch:
                raise PeerMisbehaved(
                    f"the upload of {client} was sealed to another epoch, whose keys no longer exist",
                    reason=Reason.WRONG_SESSION,
                    culprits=unverified(client),
                )
            with self._opened(upload) as secret:
                self._rules.admit(entry)
                kind = Packed if has_one_seal(self.configuration) else Seed
                with self._giving_up(), kind("upload_body", secret.expose()[PROOF_BYTES:]) as body:
                    self._add(upload, body)
                    self._rules.enter(entry)

    @contextmanager
    def _giving_up(self) -> Generator[None]:
        """Discard the buffer if an addition fails halfway, so that no sum with part of an upload is released."""
        try:
            yield
        except PeerError:
            raise
        except BaseException:
            self.give_up_buffer()
            raise

    def release(self) -> bytes:
        """Release the open buffer once; further calls return the same bytes."""
        with self._lock:
            if self._last_release:
                return self._last_release
            buffer = self._rules.require_open()
            self._rules.require_releasable()
            try:
                count = buffer.contributors
                aggregate = Aggregate(self.configuration.released, tuple(self._vectors()), count).encode()
            finally:
                self._rules.close()
                self._forget()
            self._releases += 1
            receipt = Receipt(
                context=self.offer.context,
                epoch=self.offer.epoch,
                buffer=buffer.version,
                uploads_digest=uploads_digest(buffer.upload_ids),
                contributors=buffer.contributors,
                releases=self._releases,
                released_digest=hashlib.sha256(aggregate).digest(),
            )
            signed = receipt.signed_with(self._receipt_key)
            self._last_release = BufferRelease(receipt=signed, aggregate=aggregate).encode()
            return self._last_release

    def give_up_buffer(self) -> None:
        """Discard the open buffer; its uploads are never accepted again."""
        with self._lock:
            self._rules.give_up()
            self._forget()

    def destroy(self) -> None:
        """End the epoch: wipe the keys and overwrite the buffer."""
        with self._lock:
            self._rules.destroy()
            self._forget()
            self._last_release = b""
            self._pair.wipe()
            self._receipt_key.wipe()

    # --- One upload ---------------------------------------------------------------------------------------------------

    def _opened(self, upload: SealedUpload) -> Secret:
        """Verify the certificate and the proof of an upload and open its seal; without an authority, accept any key."""
        certificate, length = upload.header.certificate, secret_bytes(self.configuration)
        suspects = unverified(certificate.client)
        authority = self.configuration.authority if self.configuration.has_authority else certificate.public_key
        key = Authority(authority).verify(certificate, culprits=suspects).public_key
        self.configuration.standing.require_valid(certificate, culprits=suspects)
        refused = culprits(Evidence.UNOPENED_UPLOAD, sender=certificate.client)
        digest = upload.header.digest(self.offer.context)
        secret = self._pair.open("upload_secret", upload.sealed_seed, length, sealing_info(digest), culprits=refused)
        with proof_of(self._receipt_key, key, digest, culprits=refused) as proof:
            if hmac.compare_digest(secret.expose()[:PROOF_BYTES], proof.expose()):
                return secret
        secret.wipe()
        raise AuthenticationFailed(culprits=refused)

    def _add(self, upload: SealedUpload, body: Seed | Packed) -> None:
        """Check and count the indices, then add the values or keep the key of their mask."""
        header, client, context = upload.header, upload.header.certificate.client, self.offer.context
        if isinstance(body, Packed):
            with blaming(*self._rules.signer(client)):
                self._take(memoryview(body.expose()))
            return
        if len(upload.sealed_indices):
            # The seal does not cover these indices, which the host could alter; their own tag does.
            suspects = culprits(Evidence.UNOPENED_UPLOAD, sender=client)
            opened = open_indices(body, header.digest(context), upload.sealed_indices, culprits=suspects)
            try:
                with blaming(*self._rules.signer(client)):
                    self._take(memoryview(opened))
            finally:
                overwrite(opened)
        if self.configuration.masked_segments:
            place = header.epoch, client, header.model.version
            self._mask_keys.append(mask_key(body, self.configuration.suite, context, *place))

    def _take(self, packed: memoryview) -> None:
        """Check and count the indices; then add the values, which are scaled but never refused."""
        start = sum(segment.payload_bytes for segment in self.configuration.index_segments)
        self._count(packed[:start])
        for total, segment in zip(self._sums, bounded_segments(self.configuration), strict=True):
            stop = start + packed_bytes(segment)
            total.add(total.measure(packed[start:stop]))
            start = stop

    def _count(self, packed: memoryview) -> None:
        parts, start = list[memoryview](), 0
        for segment, histogram in zip(self.configuration.index_segments, self._histograms, strict=True):
            parts.append(packed[start : start + segment.payload_bytes])
            start += segment.payload_bytes
            histogram.check(parts[-1])
        configuration = self.configuration
        if not configuration.codeword_bound:
            for histogram, part in zip(self._histograms, parts, strict=True):
                histogram.add(part, is_checked=True)
            return
        bounded = bounded_choices(
            parts, configuration.index_segments, configuration.tables, configuration.codeword_bound
        )
        try:
            for histogram, own in zip(self._histograms, bounded, strict=True):
                histogram.add(memoryview(own))
        finally:
            for own in bounded:
                overwrite(own)

    # --- One release --------------------------------------------------------------------------------------------------

    def _vectors(self) -> Iterator[RingVector | Histogram]:
        noise = self.configuration.noise
        released = enumerate(self.configuration.released.segments)
        for (position, segment), (combine, exact) in zip(released, self._slots(), strict=True):
            vector = exact()
            if noise is not None:
                drawn = sample(noise.kind, noise.variances[position], segment.length, self._coins)
                # The cast keeps the low bits, which represent the same ring element even for negative noise.
                reduced = drawn.astype(segment.ring.word)
                combine(vector, reduced)
                reduce_into(vector, segment.ring.modulus_bits)
                drawn[:], reduced[:] = 0, 0
            yield vector

    def _slots(self) -> list[Slot]:
        """List the segments to release, in the order of the released layout."""
        configuration, slots, first_segment = self.configuration, list[Slot](), 0
        histograms, tables, sums = iter(self._histograms), iter(configuration.tables), iter(self._sums)
        segments, forms = configuration.layout.segments, configuration.released.segments
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            if isinstance(segment, RowSegment):
                continue  # Released with its ring segment.
            if isinstance(segment, RingSegment) and configuration.max_norms:
                contributors = self._rules.require_open().contributors
                slots.append((add_into, partial(next(sums).released, contributors)))
            elif isinstance(segment, RingSegment):
                # The host subtracts the released masks from its sum, so subtracting noise here adds it to that sum.
                masks = partial(self._mask_sum, segment, first_segment)
                first_segment += segment_count(segment.ring, segment.length)
                if not isinstance(following, RowSegment):
                    slots.append((subtract_into, masks))
                    continue
                is_released = _released_rows(next(histograms), following, forms[len(slots) + 1].ring)
                slots.append((subtract_into, partial(_withheld, masks, is_released)))
                slots.append((add_into, is_released.view))
            elif configuration.form is ReleaseForm.HISTOGRAM:
                slots.append((add_into, partial(_counted, next(histograms), segment.blocks, forms[len(slots)])))
            else:
                histogram, start = next(histograms), 0
                for table in next(tables):
                    slots.append((add_into, partial(_decoded, histogram, table, start, forms[len(slots)].ring)))
                    start += table.blocks
        return slots

    def _mask_sum(self, segment: RingSegment, first_segment: int) -> RingVector:
        """Return the sum of the masks of all uploads in the buffer."""
        total, ring = segment.ring.zeros(segment.length), segment.ring
        accumulate(total, ring, add=self._mask_keys, subtract=[], first_segment=first_segment, threads=self._threads)
        return total

    def _forget(self) -> None:
        for key in self._mask_keys:
            key.wipe()
        self._mask_keys.clear()
        for total in self._sums:
            total.wipe()
        self._sums = []
        for histogram in self._histograms:
            histogram.wipe()
        self._histograms = []

    def __repr__(self) -> str:
        return f"<Enclave {self.offer.epoch.hex()[:8]}, {self.state}>"


def _sums_of(configuration: EnclaveConfiguration) -> Iterator[BoundedSum]:
    bounded = bounded_segments(configuration)
    zeros = configuration.zero_points or (0,) * len(bounded)
    for segment, norm, zero in zip(bounded, configuration.max_norms, zeros, strict=False):
        yield BoundedSum(segment, norm, zero, configuration.maximum_cohort)


def _released_rows(histogram: HistogramAccumulator, rows: RowSegment, ring: Ring) -> RingVector:
    """Return 1 for each row that enough clients touched, and 0 for the others."""
    counts = histogram.histogram(0, rows.blocks)
    is_released: RingVector = (counts[:, 1] >= rows.least).astype(ring.word)
    counts[:] = 0
    return is_released


def _withheld(masks: Callable[[], RingVector], is_released: RingVector) -> RingVector:
    """Return the masks with zeros for the withheld rows, whose sums then stay masked at the host."""
    total = masks()
    total.reshape(len(is_released), -1)[is_released == 0] = 0
    return total


def _counted(histogram: HistogramAccumulator, blocks: int, form: object) -> RingVector | Histogram:
    counts = histogram.histogram(0, blocks)
    if not isinstance(form, RingSegment):
        return counts
    reduced: RingVector = counts.reshape(-1).astype(form.ring.word)
    counts[:] = 0
    return reduced


def _decoded(histogram: HistogramAccumulator, table: CodewordTable, start: int, ring: Ring) -> RingVector:
    total = ring.zeros(table.blocks * table.width)
    for first in range(0, table.blocks, _ROWS):
        last = min(first + _ROWS, table.blocks)
        counts = histogram.histogram(start + first, start + last)
        sums = sum_of_codewords(counts, table)
        total[first * table.width : last * table.width] = sums.astype(ring.word)
        counts[:], sums[:] = 0, 0
    reduce_into(total, ring.modulus_bits)
    return total


# --- Choices with a too large norm, replaced by the smallest codewords ------------------------------------------------
# This is silent: a refusal would reveal to the host on which side of the bound a client's norm is, and a sequence of
# bounds would reveal the norm. The smallest codeword of each block moves the sum the least. Every upload takes the same
# work, and no address depends on an index.


def bounded_choices(
    parts: Sequence[memoryview], segments: Sequence[IndexSegment], tables: Tables, bound: int
) -> list[bytearray]:
    """Return the packed indices of each segment, or those of the smallest codewords if the norm exceeds the bound.

    Security: the result is as secret as the indices; the caller overwrites it.
    """
    chosen = [segment.ring.unpack(part, segment.blocks) for part, segment in zip(parts, segments, strict=True)]
    squared = sum(_chosen_squared(indices, some) for indices, some in zip(chosen, tables, strict=True))
    is_over = int(squared > bound**2)
    packed = list[bytearray]()
    for indices, segment, some in zip(chosen, segments, tables, strict=True):
        least = np.concatenate([np.full(table.blocks, squared_norms(table).argmin(), indices.dtype) for table in some])
        # Compute both and select one by arithmetic, without a branch.
        taken = indices * indices.dtype.type(1 - is_over) + least * least.dtype.type(is_over)
        packed.append(bytearray(segment.ring.pack(taken)))
        indices[:], taken[:] = 0, 0
    return packed


def _chosen_squared(indices: npt.NDArray[np.unsignedinteger], tables: Sequence[CodewordTable]) -> int:
    total, first = 0, 0
    for table in tables:
        run = indices[first : first + table.blocks]
        for number, square in enumerate(squared_norms(table).tolist()):
            total += square * int(np.count_nonzero(run == number))
        first += table.blocks
    return total
