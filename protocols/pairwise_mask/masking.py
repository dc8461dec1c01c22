"""The vectors of a session: how an input becomes a masked one, and a masked sum the sum of the inputs.

A client's vector has, for each segment of the layout, its values times the client's weight and then the segment's check
words; the last segment holds the weight alone. Each segment has a part of every mask's stream to itself.

Check words (``secagg.crypto.check_words``) are functions of what the sum reveals anyway. A wrong seed or a lost upload
makes them disagree. They do not stop a malicious client, which can compute the words of whatever it sends.

Values with fine bits are masked on their fine grid and then rounded. They count as the sent values less the mask,
so their check words are those of that difference, and are themselves exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate as running_sum

import numpy as np

from secagg.contract.layout import Payload, RingSegment
from secagg.crypto.check_words import CHECK_KEY_BYTES, check_words
from secagg.crypto.key_derivation import expand as expand_secret
from secagg.crypto.labels import Label
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import RingVector, add_into, low_bits, reduce_into
from secagg.crypto.secret import Secret
from secagg.errors import NOBODY, MalformedMessage, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, SessionContext

from .configuration import SessionConfiguration

SignedKey = tuple[bool, Secret]
"""Whether the mask of a key is to be added, and the key."""


def self_mask_key(
    seed: Secret, client: ClientId, context: SessionContext, configuration: SessionConfiguration
) -> Secret:
    """Return the key of a client's self mask.

    Implements: [BIK+17] Fig. 4, Round 2, PRG(b_u).
    """
    size = configuration.suite.mask_key_bytes
    return expand_secret("self_mask_key", size, seed, Label.SELF_MASK_KEY, context.digest, client.encode())


def pairwise_mask_key(
    seed: Secret, one: ClientId, other: ClientId, context: SessionContext, configuration: SessionConfiguration
) -> Secret:
    """Return the key of the mask that two clients share; the same for both orders.

    Implements: [BIK+17] Fig. 4, Round 2, PRG(s_{u,v}).
    """
    low, high = sorted((one, other))
    size, parts = configuration.suite.mask_key_bytes, (context.digest, low.encode(), high.encode())
    return expand_secret("pairwise_mask_key", size, seed, Label.PAIRWISE_MASK_KEY, *parts)


def adds_pairwise_mask(client: ClientId, neighbour: ClientId) -> bool:
    """Whether ``client`` adds the mask that it shares with ``neighbour``, who then subtracts it.

    Claim PM-1: of two neighbours one adds and the other subtracts, so that their mask leaves the sum.
    """
    return client > neighbour


class MaskedVector:
    """One vector for each segment of a session, with its check words: an input, an upload, or a sum."""

    __slots__ = ("_configuration", "_first_segments", "vectors")

    def __init__(self, configuration: SessionConfiguration, vectors: Sequence[RingVector] | None = None) -> None:
        """Start from zeros, or from vectors of the session's lengths."""
        self._configuration = configuration
        lengths = [_framed_length(configuration, segment) for segment in configuration.segments]
        if vectors is None:
            pairs = zip(configuration.segments, lengths, strict=True)
            vectors = [segment.ring.zeros(length) for segment, length in pairs]
        self.vectors = list(vectors)
        for segment, length, vector in zip(configuration.segments, lengths, self.vectors, strict=True):
            segment.ring.require_form(vector, length)
        used = [segment_count(s.ring, length) for s, length in zip(configuration.segments, lengths, strict=True)]
        self._first_segments = [0, *running_sum(used)][:-1]

    @classmethod
    def of_input(
        cls, configuration: SessionConfiguration, context: SessionContext, payload: Payload, weight: int
    ) -> MaskedVector:
        """Write down an input, each value as often as its weight says, with its check words; not yet masked."""
        payload.check()
        framed = cls(configuration)
        for segment, values, vector in zip(configuration.segments, payload.values, framed.vectors, strict=False):
            inputs = vector[: segment.length]
            inputs[:] = values
            if weight != 1:
                inputs *= segment.ring.word.type(weight & low_bits(segment.ring.modulus_bits))
                reduce_into(inputs, segment.ring.modulus_bits)
        framed.vectors[-1][0] = weight
        for index, (segment, vector) in enumerate(zip(configuration.segments, framed.vectors, strict=True)):
            vector[segment.length :] = _check_words(segment, vector, index, context)
        return framed

    def apply(self, add: Sequence[Secret], subtract: Sequence[Secret], *, threads: int = 1) -> None:
        """Add and subtract the masks of these keys."""
        for segment, vector, first in zip(
            self._configuration.segments, self.vectors, self._first_segments, strict=True
        ):
            accumulate(vector, segment.ring, add=add, subtract=subtract, first_segment=first, threads=threads)

    def round(self, context: SessionContext) -> None:
        """Round values masked on a fine grid; their check words become those of the sent values less the masks.

        They are linear: what rounding adds to the values, its words add to the check words under their masks.
        """
        for index, (segment, vector) in enumerate(zip(self._configuration.segments, self.vectors, strict=True)):
            if not segment.fine_bits:
                continue
            rounded = segment.rounded(vector[: segment.length])
            vector[: segment.length] = segment.ring.subtract(rounded, vector[: segment.length])
            words = _check_words(segment, vector, index, context)
            vector[: segment.length] = rounded
            vector[segment.length :] = segment.ring.add(
                vector[segment.length :], np.array(words, dtype=segment.ring.word)
            )

    def pack(self) -> tuple[bytes | memoryview, ...]:
        """Return each vector at exactly its bits for each element; together they are the upload.

        Where elements fill their words this is a view of the vector and not a copy.
        """
        packed = list[bytes | memoryview]()
        for segment, vector in zip(self._configuration.segments, self.vectors, strict=True):
            if segment.fine_bits:
                packed += [segment.pack_sent(vector[: segment.length]), segment.ring.pack(vector[segment.length :])]
            else:
                packed.append(segment.ring.pack_view(vector))
        return tuple(packed)

    def add_packed(self, packed: bytes | memoryview) -> None:
        """Add what another client packed; nothing is added unless all of it decodes.

        Raises:
            MalformedMessage: the bytes are not one vector for each segment.
        """
        data = memoryview(packed)
        if data.nbytes != self._configuration.masked_bytes:
            reason = Reason.TRUNCATED if data.nbytes < self._configuration.masked_bytes else Reason.TRAILING_BYTES
            raise MalformedMessage(
                f"a masked input has {self._configuration.masked_bytes} bytes; got {data.nbytes}", reason=reason
            )
        unpacked, position = list[RingVector](), 0
        for segment, vector in zip(self._configuration.segments, self.vectors, strict=True):
            end = position + self._configuration.sent_bytes(segment)
            unpacked.append(_unpacked(segment, data[position:end], vector.size))
            position = end
        for segment, vector, summand in zip(self._configuration.segments, self.vectors, unpacked, strict=True):
            add_into(vector, summand)
            reduce_into(vector, segment.ring.modulus_bits)

    def check(self, context: SessionContext) -> None:
        """Compare an unmasked sum with its check words.

        Raises:
            PeerMisbehaved: they disagree; ``culprits`` is empty, because the sum does not say whose part is wrong.
        """
        for index, (segment, vector) in enumerate(zip(self._configuration.segments, self.vectors, strict=True)):
            if _check_words(segment, vector, index, context) != vector[segment.length :].tolist():
                raise PeerMisbehaved(
                    "the sum does not agree with its check words: a client masked with other seeds than it announced, "
                    "or an upload was altered; discard the sum and start another attempt",
                    reason=Reason.CHECK_WORDS_MISMATCH,
                    culprits=NOBODY,
                )

    def inputs(self, contributors: int = 0) -> tuple[RingVector, ...]:
        """Return the values of the layout's segments, without check words and without what roundings add on average."""
        pairs = zip(self._configuration.layout.require_rings(), self.vectors, strict=False)
        return tuple(segment.unbiased(vector[: segment.length], contributors) for segment, vector in pairs)

    @property
    def weight(self) -> int:
        """The sum of the weights."""
        return int(self.vectors[-1][0])

    def wipe(self) -> None:
        """Overwrite the vectors with zeros."""
        for vector in self.vectors:
            vector[:] = 0


def _framed_length(configuration: SessionConfiguration, segment: RingSegment) -> int:
    return segment.length + configuration.check_words_of(segment)


def _unpacked(segment: RingSegment, data: memoryview, size: int) -> RingVector:
    if not segment.fine_bits:
        return segment.ring.unpack(data, size)
    values, words = data[: segment.payload_bytes], data[segment.payload_bytes :]
    return np.concatenate([segment.unpack_sent(values), segment.ring.unpack(words, size - segment.length)])


def _check_words(segment: RingSegment, vector: RingVector, index: int, context: SessionContext) -> list[int]:
    """Compute as many words as stand behind the segment, from the public vector of this session and segment."""
    # The context is public; a Secret is merely what a key is handed over in.
    with (
        Secret("session context", context.digest) as source,
        expand_secret("check_key", CHECK_KEY_BYTES, source, Label.CHECK_VECTOR, index.to_bytes(4, "big")) as key,
    ):
        return check_words(segment.ring, vector[: segment.length], vector.size - segment.length, key)
