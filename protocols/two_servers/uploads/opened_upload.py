"""One server's half of an upload, from the bytes that came to shares that can be checked and added."""

from __future__ import annotations

from dataclasses import dataclass, field

from secagg.crypto.hpke import sealing_pair
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Confined, Secret, overwrite
from secagg.errors import PeerMisbehaved, Reason, blaming
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.exchange import Exchange
from secagg.protocols.two_servers.one_hot.check import RoundChallenges
from secagg.protocols.two_servers.round_rules import Entry
from secagg.session.certificates import Authority

from .class_totals import ClassTotals
from .envelope import SEED_BYTES, open_body, ring_mask_key, sealing_info
from .point_function_halves import PointFunctionExchange, index_body_bytes, public_bytes
from .ring_halves import ring_bytes, unpack_rings
from .upload import Upload


@dataclass(slots=True, eq=False)
class OpenedUpload:
    """An upload that is neither taken nor rejected yet."""

    entry: Entry
    exchange: Exchange
    mask_key: Secret | None = field(repr=False)
    """What server 0 expands into its share of the ring segments."""
    vectors: list[RingVector] = field(repr=False)
    """What server 1 was sent of them."""
    asked: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """What the other server said when it was asked about first, and the digest of what this one said."""
    is_live: bool = False
    """Whether the exchange stands where ``asked`` says; not so after a restart, until it is needed."""

    def add_to(self, totals: ClassTotals) -> None:
        """Add this server's share to the sums: the one place where anything is."""
        weight = self.entry.weight
        if self.mask_key is not None and self.asked is not None:
            self.exchange.learn(self.asked[0])
        self.exchange.add_to(totals)
        if self.mask_key is None:
            totals.add_vectors(weight, self.vectors)
        else:
            totals.add_masks(weight, self.mask_key)

    def wipe(self) -> None:
        """Overwrite the seeds."""
        self.exchange.wipe()
        if self.mask_key is not None:
            self.mask_key.wipe()


class HalfOpener(Confined):
    """Reads and opens the halves of one server and round; it remembers none of them."""

    def __init__(  # noqa: PLR0913 -- the round, and its keys
        self,
        configuration: IndexingConfiguration,
        server: ServerId,
        round_number: int,
        root: Secret,
        challenges: RoundChallenges,
        *,
        threads: int = 1,
    ) -> None:
        """Derive the key pair of the round; the caller keeps the root and wipes it."""
        self._configuration = configuration
        self._server = server
        self._round_number = round_number
        self._pair = sealing_pair(configuration.suite, root, configuration.context)
        self.sealing_key = self._pair.public_key.encoded
        self._challenges = challenges
        self._threads = threads

    def read(self, message: bytes) -> Upload:
        """Read a half, and check who made it and for what; nothing is opened yet.

        Raises:
            AuthenticationFailed: the authority does not vouch for the client, or the client did not sign.
            MalformedMessage, UnexpectedMessage, PeerMisbehaved: it is no half for this server and round.
        """
        configuration, is_one = self._configuration, self._server.index == 1
        upload = Upload.decode(
            message,
            configuration,
            self._server,
            index_body_bytes(configuration, self._server) + (ring_bytes(configuration) if is_one else 0),
            public_bytes(configuration) if is_one else 0,
        )
        header = upload.header
        Authority(configuration.authority).verify(header.certificate, culprits={header.client})
        upload.verify(configuration)
        if header.round_number != self._round_number:
            raise PeerMisbehaved(
                f"an upload is for round {header.round_number}, and this is round {self._round_number}",
                reason=Reason.WRONG_SESSION,
                culprits=[header.client],
                round_name="upload",
            )
        return upload

    def open(self, upload: Upload) -> OpenedUpload:
        """Open a half that was read.

        Raises:
            AuthenticationFailed: it was sealed to another key, or altered.
            MalformedMessage, PeerMisbehaved: it holds nothing that an honest client sends.
        """
        configuration, server, header = self._configuration, self._server, upload.header
        digest, culprits = header.digest(configuration), {header.client}
        entry = Entry(header.client, upload.upload_id(configuration), header.weight)
        sealed, info = upload.sealed_seeds[server.index], sealing_info(server, digest)
        with self._pair.open("upload seed", sealed, SEED_BYTES, info, culprits=culprits) as seed:
            body = open_body(seed, server, digest, upload.body, culprits=culprits)
            try:
                mask_key = None if server.index else ring_mask_key(seed, configuration.suite, digest)
                index_bytes = index_body_bytes(configuration, server)
                exchange = self._exchange(upload, entry, memoryview(body)[:index_bytes])
                with blaming(header.client):
                    vectors = unpack_rings(configuration, memoryview(body)[index_bytes:]) if server.index else []
            finally:
                overwrite(body)
        return OpenedUpload(entry, exchange, mask_key, vectors)

    def _exchange(self, upload: Upload, entry: Entry, body: memoryview) -> Exchange:  # noqa: ARG002 -- see the model
        """Return this server's side of the upload; the model checker puts an ideal check in its place."""
        return PointFunctionExchange(
            self._configuration,
            self._server,
            upload.header,
            body,
            upload.public_part,
            self._challenges,
            threads=self._threads,
        )

    def wipe(self) -> None:
        """Overwrite the keys of the round: nothing can be opened any more."""
        self._challenges.wipe()
        self._pair.wipe()
