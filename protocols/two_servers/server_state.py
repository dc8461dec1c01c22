"""What one server holds in one round: exactly what its journal says, record after record.

Nothing here decides anything. A step of the server writes a record, which is applied at once; a server that starts
again applies the records that it finds. So what was taken is added once, however often a process ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.errors import MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.wire import MessageKind

from .configuration import IndexingConfiguration
from .journal import Event, Journal, Record
from .one_hot.check import RoundChallenges
from .release import Release
from .round_rules import RoundRules
from .server_messages import RoundStamp, decode_batch
from .uploads.class_totals import ClassTotals
from .uploads.opened_upload import HalfOpener, OpenedUpload

_ROOT_BYTES: Final = 32


class ServerState(Confined):
    """The state of one server in one round."""

    def __init__(  # noqa: PLR0913 -- what a state is made of
        self,
        configuration: IndexingConfiguration,
        stamp: RoundStamp,
        *,
        challenges: RoundChallenges,
        release: Release,
        journal: Journal,
        coins: Coins,
        threads: int = 1,
    ) -> None:
        """Begin with nothing but the round's keys, or with what the journal says.

        Raises:
            Misuse: the journal is of another round, configuration or server.
        """
        self._configuration = configuration
        self._stamp = stamp
        self._journal = journal
        self._release = release
        self.rules = RoundRules(
            minimum_cohort=configuration.minimum_cohort,
            maximum_cohort=configuration.maximum_cohort,
            maximum_rejections=configuration.maximum_rejections,
            weights=configuration.weights,
        )
        self.totals = ClassTotals(configuration, stamp.server, threads=threads)
        self.pending = dict[bytes, OpenedUpload]()
        self.rejected = dict[ClientId, str]()
        self.concluded: tuple[bytes, bytes] | None = None
        """The digest of the answer that server 1 concluded from last, and its conclusion."""
        records = journal.records()
        with self._begin(records, coins) as root:
            self._nonce_key = expand("nonce key", _ROOT_BYTES, root, Label.INDEXING_NONCE)
            self.opener = HalfOpener(configuration, stamp.server, stamp.round_number, root, challenges, threads=threads)
        for event, fields in records:
            self._apply(event, fields)

    def write(self, event: Event, *fields: bytes) -> None:
        """Write a record down, and do what it says."""
        self._journal.append(event, *fields)
        self._apply(event, fields)

    def remember(self, message: bytes, opened: OpenedUpload) -> None:
        """Write a new upload down, which was opened from this message already."""
        self._journal.append(Event.RECEIVED, message)
        self._receive(opened)

    def agree(self, peer_list: bytes) -> None:
        """Write the other server's list down, which is the same, with this server's commitment."""
        share = self._release.encode_share(self._nonce_key, self.totals, self.rules.counted)
        self._journal.append(Event.AGREED, peer_list, self._release.commitment(share))
        self._agree(peer_list, share)

    def wipe(self) -> None:
        """Overwrite sums, seeds and keys; the round is over, and nothing of it is released any more."""
        for pending in self.pending.values():
            pending.wipe()
        self.pending.clear()
        self.totals.wipe()
        self._release.wipe()
        self.opener.wipe()
        self._nonce_key.wipe()
        self.rules.fail()

    def _begin(self, records: Iterator[Record], coins: Coins) -> Secret:
        """Return the root of the round's sealing key: what the journal holds, or a new one, written down."""
        first = next(records, None)
        if first is None:
            root = Secret.random("sealing root", _ROOT_BYTES, coins)
            self._journal.append(Event.BEGUN, *self._stamp.parts(), bytes(root.expose()))
            return root
        begun, fields = first
        if begun is not Event.BEGUN or fields[:-1] != self._stamp.parts():
            raise Misuse("the journal is of another round, configuration or server; name another file")
        return Secret("sealing root", fields[-1])

    def _receive(self, opened: OpenedUpload) -> None:
        self.rules.receive(opened.entry)
        self.pending[opened.entry.upload_id] = opened

    def _apply(self, event: Event, fields: tuple[bytes, ...]) -> None:
        """Do what a record says; the state of a server is what its records make it."""
        match event, fields:
            case Event.RECEIVED, (message,):
                self._receive(self.opener.open(self.opener.read(message)))
            case Event.ASKED, (upload_id, heard, digest):
                self.rules.ask(upload_id)
                self.pending[upload_id].asked = (heard, digest)
            case Event.CONCLUDED, (digest, conclusion):
                self.concluded = (digest, conclusion)
                for upload_id, concluded in decode_batch(conclusion, MessageKind.INDEXING_CONCLUSION, self._stamp):
                    if concluded is not None:
                        self._take(upload_id)
            case Event.TAKEN, (upload_id,):
                self._take(upload_id)
            case Event.REJECTED, (upload_id, sentence):
                self.rules.reject(upload_id)
                self.rejected[self.rules.entry(upload_id).client] = sentence.decode()
                self.pending.pop(upload_id).wipe()
            case _:
                self._apply_to_release(event, fields)

    def _apply_to_release(self, event: Event, fields: tuple[bytes, ...]) -> None:
        match event, fields:
            case Event.SIGNED, (own_list,):
                self._sign(own_list)
            case Event.AGREED, (peer_list, commitment):
                share = self._release.encode_share(self._nonce_key, self.totals, self.rules.counted)
                if self._release.commitment(share) != commitment:
                    raise _contradiction("it has committed to another share than that of the uploads it has taken")
                self._agree(peer_list, share)
            case Event.OPENED, (commitment,):
                self._release.peer_commitment = self._release.read_commitment(commitment)
            case Event.FAILED, (_,):
                self.wipe()
            case _:
                raise MalformedMessage(f"no server writes a record {event.name} like this", reason=Reason.NOT_CANONICAL)

    def _sign(self, own_list: bytes) -> None:
        """Close the round with a signed list, which has to be that of the uploads that the records say were taken."""
        if not self._release.is_list_of(own_list, self.rules.list_to_sign()):
            raise _contradiction("it has signed another list than that of the uploads it has taken")
        self._release.signed_list = own_list
        self.rules.sign()

    def _agree(self, peer_list: bytes, share: bytes) -> None:
        self.rules.agree()
        self._release.peer_list, self._release.share = peer_list, share

    def _take(self, upload_id: bytes) -> None:
        self.rules.require_asked(upload_id)
        self.pending[upload_id].add_to(self.totals)
        self.rules.take(upload_id)
        self.pending.pop(upload_id).wipe()

    def __repr__(self) -> str:
        return f"<ServerState {self.rules!r}>"


def _contradiction(sentence: str) -> MalformedMessage:
    return MalformedMessage(
        f"the journal contradicts itself: {sentence}, with this pair key; give the round up",
        reason=Reason.NOT_CANONICAL,
    )
