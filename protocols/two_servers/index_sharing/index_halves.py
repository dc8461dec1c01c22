"""Index segments as shares of the indices themselves: semi-honest index sharing, the shortest upload there is.

A client shares each index a as a_0 + a_1 modulo k:

    body for server 0        nothing: a_0 is expanded from the seed that is sealed to it
    body for server 1        a_1, in exactly the bits that the number of codewords needs

Every pair (a_0, a_1) is some index, so whatever a client sends is one vote in every block. A dealer gave the servers
shares of a random index m and of the vector that is 1 at m. Server 1 says a_1 - m_1, server 0 answers a_0 - m_0, and
both turn their shares of the vector by a - m:

    server 1  proposes a_1 - m_1   ->   server 0  answers a_0 - m_0   ->   server 1  concludes with nothing

Security: private only while the dealer and both servers follow the protocol. A server that adds to the difference of a
chosen client moves its votes where it can tell them from the others'. Each correlation hides one index, once: it is
spent on one upload, which the journal says before the difference leaves, and burnt with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from secagg.contract import Payload
from secagg.contract.layout import IndexSegment
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.class_totals import ClassTotals
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.exchange import cut
from secagg.protocols.two_servers.lanes.fields import STREAM_KEY_BYTES
from secagg.protocols.two_servers.point_function_halves import body_bytes
from secagg.protocols.two_servers.round_rules import Entry

from .dealt_batches import Correlations, DealtBatch
from .index_shares import INDEX, Indices, add_indices, pack_indices, subtract_indices, uniform_indices, unpack_indices

_ROUND = "answer"


def index_body_bytes(configuration: IndexingConfiguration, server: ServerId) -> int:
    """Return how long the index segments' part of a server's body is, in the mode of the configuration."""
    if configuration.mode is not SharingMode.SEMI_HONEST_INDEX_SHARING:
        return body_bytes(configuration, server)
    return sum(_sizes(configuration)) if server.index else 0


def masked_indices(
    configuration: IndexingConfiguration, payload: Payload, seed: Secret, header_digest: bytes
) -> Iterator[bytes]:
    """Return what server 1 is sent, packed, segment after segment: each index less what server 0 expands its seed into.

    Security: a seed and a header are those of one upload.
    """
    for number, segment in configuration.index_segments:
        with _mask_key(seed, header_digest, number) as key:
            mask = uniform_indices(key, segment.codewords, 0, segment.blocks)
        shared = subtract_indices(payload.values[number].astype(INDEX), mask, segment.codewords)
        mask.fill(0)
        yield pack_indices(segment, shared)
        shared.fill(0)


class IndexSharingExchange(Confined):
    """One server's side of one upload of shared indices."""

    def __init__(  # noqa: PLR0913 -- what an upload is made of
        self,
        configuration: IndexingConfiguration,
        server: ServerId,
        entry: Entry,
        body: bytearray | memoryview,
        *,
        seed: Secret,
        header_digest: bytes,
        correlations: Correlations,
    ) -> None:
        """Read what this server was sent; the caller keeps the seed, and wipes it.

        Raises:
            MalformedMessage: it is nothing that an honest client sends, such as a share that is no index; ``culprits``
                names the client.
        """
        self._configuration = configuration
        self._server, self._peer = server, ServerId(1 - server.index)
        self._entry = entry
        self._correlations = correlations
        self._said: tuple[Indices, ...] | None = None
        self._heard: tuple[Indices, ...] | None = None
        self._mask_keys = list[Secret]()
        self._shares = list[Indices]()
        with blaming(entry.client):
            if server.index:
                self._shares = list(_unpacked(configuration, body))
                return
            _require_nothing(body)
        self._mask_keys = [_mask_key(seed, header_digest, number) for number, _ in configuration.index_segments]

    @property
    def is_ready(self) -> bool:
        """Whether the client has a correlation, and its batch was checked."""
        batch = self._correlations.of(self._entry.client)
        return batch is not None and batch.is_checked

    def propose(self) -> bytes:
        """Say how far server 1's shares of the indices are from those of the random indices."""
        return self._packed(self._own())

    def learn(self, heard: bytes) -> None:
        """Take the other server's differences: server 0 from a proposal, and server 1 from an answer.

        Raises:
            MalformedMessage: one is no index.
            PeerMisbehaved: the other server said something else before.
        """
        with blaming(self._peer):
            differences = tuple(_unpacked(self._configuration, heard))
        if self._heard is None:
            self._heard = differences
        if any((one != other).any() for one, other in zip(self._heard, differences, strict=True)):
            raise PeerMisbehaved(
                "a server says once how far a client's share is from what was dealt",
                reason=Reason.ALREADY_ANSWERED,
                culprits=[self._peer],
                round_name=_ROUND,
            )

    def answer(self, proposal: bytes) -> bytes:
        """Say how far server 0's shares are."""
        self.learn(proposal)
        return self._packed(self._own())

    def conclude(self, answer: bytes) -> bytes:
        """Take server 0's differences; every difference stands for some index, so there is nothing to refuse."""
        self.learn(answer)
        return b""

    def settle(self, conclusion: bytes) -> None:
        """Hear that server 1 has taken the upload."""
        with blaming(self._peer):
            _require_nothing(conclusion)

    def add_to(self, totals: ClassTotals) -> None:
        """Add this server's shares of the dealt votes, turned to where the client votes."""
        if self._heard is None:
            raise Misuse("shares are turned when both servers have said how far")
        batch, segments = self._batch(), self._configuration.index_segments
        for (number, segment), own, heard in zip(segments, self._own(), self._heard, strict=True):
            differences = add_indices(own, heard, segment.codewords)
            votes = batch.turned(self._entry.client, number, differences)
            totals.add_lanes(self._entry.weight, number, votes)
            votes.wipe()

    def wipe(self) -> None:
        """Overwrite the keys and shares."""
        for key in self._mask_keys:
            key.wipe()
        for share in self._shares:
            share.fill(0)

    def _own(self) -> tuple[Indices, ...]:
        """Return how far this server's shares of the indices are from its shares of the random ones."""
        if self._said is None:
            self._said = tuple(self._differences())
        return self._said

    def _differences(self) -> Iterator[Indices]:
        batch, segments = self._batch(), self._configuration.index_segments
        for place, (number, segment) in enumerate(segments):
            if self._server.index:
                share = self._shares[place]
            else:
                share = uniform_indices(self._mask_keys[place], segment.codewords, 0, segment.blocks)
            masks = batch.masks(self._entry.client, number)
            yield subtract_indices(share, masks, segment.codewords)
            masks.fill(0)

    def _batch(self) -> DealtBatch:
        """Return the batch of the client, whose correlation is spent on this upload from now on.

        Raises:
            Misuse: there is none that was checked, or it was spent on another upload.
        """
        batch = self._correlations.of(self._entry.client)
        if batch is None:
            raise Misuse("an upload is asked about when its client's correlations were dealt and checked")
        batch.use(self._entry.client, self._entry.upload_id)
        return batch

    def _packed(self, differences: tuple[Indices, ...]) -> bytes:
        segments = self._configuration.index_segments
        return b"".join(pack_indices(segment, one) for (_, segment), one in zip(segments, differences, strict=True))

    def __repr__(self) -> str:
        return f"<IndexSharingExchange of {self._entry.client} at {self._server}>"


def _sizes(configuration: IndexingConfiguration) -> list[int]:
    return [segment.payload_bytes for _, segment in configuration.index_segments]


def _unpacked(configuration: IndexingConfiguration, packed: bytes | bytearray | memoryview) -> Iterator[Indices]:
    segments: list[IndexSegment] = [segment for _, segment in configuration.index_segments]
    pieces = cut(packed, _sizes(configuration))
    return (unpack_indices(segment, piece) for segment, piece in zip(segments, pieces, strict=True))


def _require_nothing(blob: bytes | bytearray | memoryview) -> None:
    if len(blob):
        raise MalformedMessage(f"nothing is due and {len(blob)} bytes came", reason=Reason.TRAILING_BYTES)


def _mask_key(seed: Secret, header_digest: bytes, number: int) -> Secret:
    parts = (header_digest, number.to_bytes(4, "big"))
    return expand("index mask key", STREAM_KEY_BYTES, seed, Label.INDEXING_INDEX_MASK, *parts)
