"""What one server holds in one round: exactly what its journal says, record after record.

Nothing here decides anything. A step of the server writes a record, which is applied at once; a server that starts
again applies the records that it finds. So what was taken is added once, however often a process ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import MalformedMessage, Misuse, Reason, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.wire import MessageKind

from .class_totals import ClassTotals
from .configuration import IndexingConfiguration, SharingMode
from .index_sharing.dealing_rules import DealingRules
from .index_sharing.dealt_batches import OpenedBatch
from .journal import Event, Journal, Record
from .one_hot.check import RoundChallenges
from .opened_upload import HalfOpener, OpenedUpload
from .release import Release
from .round_rules import RoundRules
from .server_messages import RoundStamp, decode_batch

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
        self._is_dealt = configuration.mode is SharingMode.SEMI_HONEST_INDEX_SHARING
        rules = DealingRules if self._is_dealt else RoundRules
        self.rules: RoundRules = rules(
            minimum_cohort=configuration.minimum_cohort,
            maximum_cohort=configuration.maximum_cohort,
            maximum_rejections=configuration.maximum_rejections,
            weights=configuration.weights,
        )
        self.totals = ClassTotals(configuration, stamp.server, threads=threads)
        self.pending = dict[bytes, OpenedUpload | OpenedBatch]()
        self.rejected = dict[ClientId, str]()
        self.concluded: tuple[bytes, bytes] | None = None
        """The digest of the answer that server 1 concluded from last, and its conclusion."""
        records = list(journal.records())
        with self._root(records, coins) as root:
            self.opener = HalfOpener(configuration, stamp.server, stamp.round_number, root, challenges, threads=threads)
        for event, fields in records[1:]:
            self._apply(event, fields)

    def write(self, event: Event, *fields: bytes) -> None:
        """Write a record down, and do what it says."""
        self._journal.append(event, *fields)
        self._apply(event, fields)

    def remember(self, message: bytes, opened: OpenedUpload) -> None:
        """Write a new upload down, which was opened from this message already."""
        self._journal.append(Event.RECEIVED, message)
        self._receive(opened)

    def deal(self, message: bytes) -> bytes:
        """Write a dealer's batch down, if it is new, and return its id; the same batch again changes nothing.

        Raises:
            UnexpectedMessage: the configuration names no dealer.
            PeerError: it is no batch for this round; nothing has changed.
        """
        if not isinstance(self.rules, DealingRules):
            raise UnexpectedMessage(expected="uploads alone: no dealer is named", received="a dealer's batch")
        dealt = self.opener.read_batch(message)
        batch_id = dealt.batch_id(self._configuration)
        if self.rules.require_new_batch(batch_id, dealt.header.clients):
            opened = self.opener.open_batch(dealt)
            self._journal.append(Event.DEALT, message)
            self._receive_batch(opened)
        return batch_id

    def conclude(self, answer: bytes, digest: bytes, conclusion: bytes) -> None:
        """Write down what server 1 concludes from an answer.

        In index sharing the answer itself as well: with what it says server 1 turns its shares of the votes.
        """
        self.write(Event.CONCLUDED, digest, conclusion, *([answer] if self._is_dealt else []))

    def wipe(self) -> None:
        """Overwrite sums, seeds and keys; the round is over, and nothing of it is released any more."""
        for pending in self.pending.values():
            pending.wipe()
        self.pending.clear()
        self.totals.wipe()
        self._release.wipe()
        self.opener.wipe()
        self.rules.fail()

    def _root(self, records: Sequence[Record], coins: Coins) -> Secret:
        """Return the root of the round's sealing key: what the journal holds, or a new one, written down."""
        if not records:
            root = Secret.random("sealing root", _ROOT_BYTES, coins)
            self._journal.append(Event.BEGUN, *self._stamp.parts(), bytes(root.expose()))
            return root
        begun, fields = records[0]
        if begun is not Event.BEGUN or fields[:-1] != self._stamp.parts():
            raise Misuse("the journal is of another round, configuration or server; name another file")
        return Secret("sealing root", fields[-1])

    def _receive(self, opened: OpenedUpload) -> None:
        self.rules.receive(opened.entry)
        self.pending[opened.entry.upload_id] = opened

    def _receive_batch(self, opened: OpenedBatch) -> None:
        if not isinstance(self.rules, DealingRules):
            raise Misuse("the journal is of another mode")
        batch = opened.exchange
        self.rules.receive_batch(opened.entry.upload_id, batch.header.clients)
        self.opener.correlations.add(batch)
        self.pending[opened.entry.upload_id] = opened

    def _apply(self, event: Event, fields: tuple[bytes, ...]) -> None:
        """Do what a record says; the state of a server is what its records make it."""
        match event, fields:
            case ((Event.SIGNED | Event.AGREED | Event.OPENED | Event.FAILED), (said,)):
                self._apply_to_release(event, said)
            case Event.RECEIVED, (message,):
                self._receive(self.opener.open(self.opener.read(message)))
            case Event.DEALT, (message,):
                self._receive_batch(self.opener.open_batch(self.opener.read_batch(message)))
            case Event.ASKED, (upload_id, heard, digest):
                self.rules.ask(upload_id)
                self.pending[upload_id].asked = (heard, digest)
            case Event.CONCLUDED, (digest, conclusion, *answers):
                self.concluded = (digest, conclusion)
                self._conclude(conclusion, answers)
            case Event.TAKEN, (upload_id,):
                self._take(upload_id)
            case Event.REJECTED, (upload_id, sentence):
                self.rules.reject(upload_id)
                self.rejected[self.rules.entry(upload_id).client] = sentence.decode()
                self.pending.pop(upload_id).wipe()
            case _:
                raise MalformedMessage(f"no server writes a record {event.name} like this", reason=Reason.NOT_CANONICAL)

    def _apply_to_release(self, event: Event, said: bytes) -> None:
        match event:
            case Event.SIGNED:
                self.rules.sign()
                self._release.signed_list = said
            case Event.AGREED:
                self.rules.agree()
                self._release.peer_list = said
            case Event.OPENED:
                self._release.peer_commitment = self._release.read_commitment(said)
            case _:
                self.wipe()

    def _conclude(self, conclusion: bytes, answers: Sequence[bytes]) -> None:
        peer_stamp = replace(self._stamp, server=ServerId(1 - self._stamp.server.index))
        heard = dict[bytes, bytes | None]()
        for answer in answers:
            heard.update(decode_batch(answer, MessageKind.INDEXING_ANSWER, peer_stamp))
        for upload_id, concluded in decode_batch(conclusion, MessageKind.INDEXING_CONCLUSION, self._stamp):
            if concluded is None:
                continue
            answered = heard.get(upload_id)
            if answered is not None:
                self.pending[upload_id].exchange.learn(answered)
            self._take(upload_id)

    def _take(self, upload_id: bytes) -> None:
        self.rules.require_asked(upload_id)
        self.pending[upload_id].add_to(self.totals)
        self.rules.take(upload_id)
        self.pending.pop(upload_id).wipe()

    def __repr__(self) -> str:
        return f"<ServerState {self.rules!r}>"
