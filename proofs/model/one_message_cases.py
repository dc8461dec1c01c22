"""What each case of one message a client lets happen, and the defects that are planted, so that each is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

import ideal
import one_message_clients
import one_message_files
import one_message_holders
from defects import Replacement, nothing, planted
from one_message_cast import PATCHES, Cast, MemoryJournal, Setting, remembered_decoding
from report import Report
from secagg.crypto.labels import Label
from secagg.errors import UNDECIDED, PeerMisbehaved, Reason
from secagg.protocols.one_message import configuration, holder, journal, parameters
from secagg.protocols.one_message.client import Ledger
from secagg.protocols.one_message.configuration import Agreement
from secagg.protocols.one_message.holder import HeldShare, Holder, Placements
from secagg.protocols.one_message.journal import Event, FileJournal, JournalHead
from secagg.protocols.one_message.parameters import CHECK_WORDS, ThresholdRule
from secagg.protocols.one_message.requests import CertifiedList, ListSignature, UploadList

ONE_ANSWER, CERTIFIED = ThresholdRule.ONE_ANSWER, ThresholdRule.CERTIFIED
TWO_SUMS = ((1, (0, 1)), (2, (0, 1)), (3, (0, 1)))
FOUR_CLIENTS = ((1, (0,)), (2, (0,)), (3, (0,)), (4, (0,)))
THREE = Setting(3, 0, ONE_ANSWER)
THREE_SUMS = Setting(
    5,
    1,
    ONE_ANSWER,
    uploads=((1, (0,)), (2, (0,)), (3, (1,)), (4, (1,)), (5, (2,)), (6, (2,)), (7, (0,))),
    asked=((0, (1, 2)), (0, (1, 2, 7)), (1, (3, 4)), (1, (3, 4, 7)), (2, (5, 6)), (2, (5, 6, 7))),
    at_once=True,
)
"""One client is put beside the two of each sum, for one holder at a time."""
ONE_ROUND = Setting(4, 1, CERTIFIED, uploads=FOUR_CLIENTS, sums=2)
TWO_ROUNDS = Setting(3, 1, CERTIFIED, uploads=TWO_SUMS, at_once=True)
PACKED = Setting(5, 1, CERTIFIED, packing=2)
BAD_CLIENTS = Setting(
    5,
    1,
    CERTIFIED,
    uploads=((1, (0,)), (2, (0,)), (3, (0,)), (8, (0,)), (9, (0,))),
    bad_clients=(8, 9),
    forged=((2, 0), (3, 0)),
    at_once=True,
)
Search = Setting | Callable[[], Report]


@dataclass(frozen=True, slots=True)
class Case:
    """A search, and what is planted."""

    name: str
    search: Search
    """Holders and the uploads that they are sent, or something else to explore."""
    defects: tuple[Replacement, ...] = ()
    journal: type[MemoryJournal] = MemoryJournal
    attacked: bool = False
    every: bool = False
    """Whether every honest holder is searched, and not one for all."""

    def explore(self) -> Report:
        """Run it, with ideal cryptography."""
        with ideal.installed(), planted(*PATCHES, *self.defects), remembered_decoding(), ExitStack() as stack:
            configuration._verified_epoch.cache_clear()  # noqa: SLF001 -- what it remembers was verified in another case
            stack.callback(configuration._verified_epoch.cache_clear)  # noqa: SLF001
            if isinstance(self.search, Setting):
                every = self.every or bool(self.search.bad_clients)
                return one_message_holders.explore(Cast(self.search), self.journal, every=every)
            return self.search()


def cases() -> tuple[Case, ...]:
    """Return every case: holders and clients as they are, then with each defect, then beyond the bounds."""
    shipped = (
        Case("one message: a client, two epochs", one_message_clients.explore),
        Case("one message: one answer, 4 holders, two sums", Setting(4, 1, ONE_ANSWER, uploads=TWO_SUMS)),
        Case("one message: one answer, 5 holders", Setting(5, 1, ONE_ANSWER), every=True),
        Case("one message: one answer, 5 holders, packed", Setting(5, 0, ONE_ANSWER, packing=2), every=True),
        Case("one message: one answer, 5 holders, three sums", THREE_SUMS),
        Case("one message: certified, 4 holders, two sums", ONE_ROUND),
        Case("one message: certified, 3 holders, two rounds", TWO_ROUNDS),
        Case("one message: certified, 5 holders, packed", PACKED, every=True),
        Case("one message: bad dealers and forged uploads", BAD_CLIENTS),
        Case("one message: a journal in files", one_message_files.explore),
    )
    found = (*DEFECTS, *BEYOND)
    return (*shipped, *(Case(f"one message: {name}", *rest, attacked=True) for name, *rest in found))


# --- Defects ----------------------------------------------------------------------------------------------------------


class LosesLists(MemoryJournal):
    """Forgets in a crash which lists were signed or answered."""

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record down, or not."""
        if event is not Event.LISTED:
            super().append(event, *parts)


class WritesLater(MemoryJournal):
    """Writes a list when the next record is due: what was sent is written after it was sent."""

    late: tuple[tuple[Event, tuple[bytes, ...]], ...] = ()

    def append(self, event: Event, *parts: bytes) -> None:
        """Write down what is late, and be late with this."""
        for earlier, earlier_parts in self.late:
            super().append(earlier, *earlier_parts)
        self.late = ((event, parts),) if event is Event.LISTED else ()
        if not self.late:
            super().append(event, *parts)

    def copied(self) -> MemoryJournal:
        """Return a journal in the same state; a process that starts again reads what is written."""
        made = type(self)(list(self.written))
        made.late = self.late
        return made

    def on_disk(self) -> MemoryJournal:
        """Return what a process that starts again finds."""
        return type(self)(list(self.written))

    def remembered(self) -> list[Any]:
        """Return what the disk holds, and what is late."""
        return [*self.written, *((event, parts, "late") for event, parts in self.late)]


_WHOLE: Any = Holder._require_whole  # noqa: SLF001
_PLACE: Any = Holder._place  # noqa: SLF001


def _any_size(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    configuration = SimpleNamespace(minimum_cohort=1, parameters=work.agreement.parameters)
    agreement = SimpleNamespace(configuration=configuration, record=work.agreement.record)
    _WHOLE(self, SimpleNamespace(agreement=agreement, accepted=work.accepted), upload_list)


def _any_terms(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    terms = upload_list.terms
    if work.agreement.record.rule is CERTIFIED:
        terms = replace(terms, sum_id=bytes(16))
    accepted = {upload: replace(one, terms=terms) for upload, one in work.accepted.items()}
    _WHOLE(self, SimpleNamespace(agreement=work.agreement, accepted=accepted), upload_list)


def _part_of_it(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    accepted = _with_zeros(self, work, upload_list)
    _WHOLE(self, SimpleNamespace(agreement=work.agreement, accepted=accepted), upload_list)
    work.accepted = accepted


def _place_part(self: Any, work: Any, upload_list: UploadList, reply: bytes) -> None:  # noqa: ANN401
    work.accepted = _with_zeros(self, work, upload_list)
    _PLACE(self, work, upload_list, reply)


def _with_zeros(self: Any, work: Any, upload_list: UploadList) -> dict[bytes, Any]:  # noqa: ANN401
    """Return what was accepted, and zero for each share of a list that never came."""
    sizes = work.agreement.parameters
    terms = replace(upload_list.terms, sum_id=bytes(16))
    words = np.zeros(sizes.secret_columns + CHECK_WORDS, np.int64)
    zeros = {
        one.upload: holder._Accepted(one.client, terms, HeldShare(sizes, self.position, words))  # noqa: SLF001
        for one in upload_list.listed
    }
    return {**zeros, **work.accepted}


def _answers_anew(self: Any, work: Any, upload_list: UploadList, reply: bytes) -> None:  # noqa: ANN401
    _PLACE(self, work, upload_list, reply)
    work.answered.clear()


def _one_list_of_a_sum(self: Any, sum_id: bytes, upload_list: bytes, _: tuple[bytes, ...]) -> None:  # noqa: ANN401
    if self._list_of_sum.get(sum_id, upload_list) != upload_list:
        raise PeerMisbehaved("a sum has one list", reason=Reason.ALREADY_SPENT, culprits=UNDECIDED)


def _one_list_of_an_upload(self: Any, _: bytes, upload_list: bytes, uploads: tuple[bytes, ...]) -> None:  # noqa: ANN401
    if any(self._list_of_upload.get(upload, upload_list) != upload_list for upload in uploads):
        raise PeerMisbehaved("an upload is on one list", reason=Reason.ALREADY_SPENT, culprits=UNDECIDED)


def _majority(holders: int, _: int) -> int:
    return holders // 2 + 1


def _majority_of_shares(_: ThresholdRule, holders: int, __: int, packing: int) -> int:
    return holders // 2 + packing


def _often(agreement: Agreement, upload_list: bytes, certified: CertifiedList) -> None:
    """Count each signature, whoever made it."""
    if len(certified.certificate) < agreement.record.quorum:
        raise PeerMisbehaved("too few signatures", reason=Reason.QUORUM_NOT_MET, culprits=UNDECIDED)
    for one in certified.certificate:
        signed = ListSignature(t0=agreement.t0, holder=one.holder, upload_list=upload_list)
        agreement.verify(one.holder, one.signature, Label.ONE_MESSAGE_SIGNED_LIST, *signed.parts)


def _any_number(agreement: Agreement, upload_list: bytes, certified: CertifiedList) -> None:
    """Verify signatures, and ask for none."""
    for one in certified.certificate:
        signed = ListSignature(t0=agreement.t0, holder=one.holder, upload_list=upload_list)
        agreement.verify(one.holder, one.signature, Label.ONE_MESSAGE_SIGNED_LIST, *signed.parts)


def _any_records(self: Any, *epoch_and_boot: bytes) -> Any:  # noqa: ANN401 -- a journal of files
    """Make the head fit whatever records are there."""
    secret, head = self._read("secret"), self._read("head")
    if secret is not None and head is not None:
        entries, end = one_message_files.entries_in(self._read("records") or b"")
        chain = reduce(journal._step, (entry.encode() for entry in entries), journal._step(b"", secret))  # noqa: SLF001
        fitting = replace(JournalHead.decode(head), length=end, chain=chain)
        (self._folder / "head").write_bytes(fitting.encode())
    return _KEPT(self, *epoch_and_boot)


def _any_boot(self: Any, secret: Any, *found: Any) -> Any:  # noqa: ANN401 -- a journal of files
    *others, boot_id = found
    return _STATE(self, secret, *others, secret.boot_id if secret else boot_id)


def _any_record(self: Any, secret: Any, *found: Any) -> Any:  # noqa: ANN401 -- a journal of files
    *others, record, boot_id = found
    return _STATE(self, secret, *others, secret.record if secret else record, boot_id)


def _any_time(_: FileJournal, number: int) -> int:
    return number + 1


def _not_spent(self: Any, task: bytes, epoch: int, round_number: int, _: bytes) -> None:  # noqa: ANN401 -- a ledger
    _CHARGE(self, task, epoch, round_number)


def _any_epoch(self: Any, task: bytes, _: int, round_number: int, model: bytes) -> None:  # noqa: ANN401 -- a ledger
    _CHARGE(self, task, self._record.newest_epoch, round_number, model)


def _in_memory(self: Any, record: Any) -> None:  # noqa: ANN401 -- a ledger, and what it remembers
    self._record = record


_KEPT: Any = FileJournal._kept  # noqa: SLF001
_STATE: Any = FileJournal._state  # noqa: SLF001
_CHARGE: Any = Ledger.charge
_FREE = "require_free"
_CERTIFICATE = "require_certificate"
_QUORUMS: tuple[Replacement, ...] = ((parameters, "least_quorum", _majority),)
_THRESHOLDS: tuple[Replacement, ...] = ((parameters, "least_threshold", _majority_of_shares),)
_CLIENT, _FILES = one_message_clients.explore, one_message_files.explore
_IN_SEVERAL_SUMS = ((Holder, "_require_whole", _any_terms),)
_FOUR = Setting(3, 0, ONE_ANSWER, uploads=FOUR_CLIENTS)
_SIGNED = Setting(4, 1, CERTIFIED)
_SIGNED_BY_THREE = Setting(3, 1, CERTIFIED)
DEFECTS: tuple[tuple[Any, ...], ...] = (
    ("answers twice after a crash", THREE, (), LosesLists),
    ("the journal is written after the reply", THREE, (), WritesLater),
    ("a sum has several lists", _FOUR, ((Placements, _FREE, _one_list_of_an_upload),)),
    ("an upload is on several lists", Setting(3, 1, CERTIFIED, sums=2), ((Placements, _FREE, _one_list_of_a_sum),)),
    ("any lists", THREE, ((Placements, _FREE, nothing),)),
    ("lists of any size", THREE, ((Holder, "_require_whole", _any_size),)),
    ("uploads that do not name their sum", THREE_SUMS, _IN_SEVERAL_SUMS),
    ("uploads of two rounds on one list", replace(TWO_ROUNDS, uploads=TWO_SUMS[:2]), _IN_SEVERAL_SUMS),
    ("a part of a list", _SIGNED, ((Holder, "_require_whole", _part_of_it), (Holder, "_place", _place_part))),
    ("answers made anew", THREE, ((Holder, "_place", _answers_anew),)),
    ("a quorum of the majority", _SIGNED_BY_THREE, _QUORUMS),
    ("certificates not verified", _SIGNED_BY_THREE, ((holder, _CERTIFICATE, nothing),)),
    ("certificates of any number", _SIGNED_BY_THREE, ((holder, _CERTIFICATE, _any_number),)),
    ("one signer counted often", _SIGNED_BY_THREE, ((holder, _CERTIFICATE, _often),)),
    ("signatures on any list", _SIGNED, ((ListSignature, "parts", property(lambda _: ())),)),
    ("a dealer's polynomial not checked", BAD_CLIENTS, ((HeldShare, "require_on", nothing),)),
    ("uploads' signatures not verified", BAD_CLIENTS, ((holder, "require_signed", nothing),)),
    ("a journal older than its head", _FILES, ((FileJournal, "_kept", _any_records),)),
    ("a journal that was put back", _FILES, ((FileJournal, "_mark_made", _any_time),)),
    ("a head whose mark stays", _FILES, ((FileJournal, "_outdate", nothing),)),
    ("a journal of before a restart", _FILES, ((FileJournal, "_state", _any_boot),)),
    ("a journal of another epoch", _FILES, ((FileJournal, "_state", _any_record),)),
    ("updates not spent", _CLIENT, ((Ledger, "charge", _not_spent),)),
    ("rounds not counted", _CLIENT, ((Ledger, "charge", nothing),)),
    ("epochs not counted", _CLIENT, ((Ledger, "charge", _any_epoch),)),
    ("a ledger that is not stored", _CLIENT, ((Ledger, "_write", _in_memory),)),
)
BEYOND: tuple[tuple[Any, ...], ...] = (
    ("a threshold of the majority", _FOUR, _THRESHOLDS),
    ("one answer, two of 5 holders lie, not one", Setting(5, 1, ONE_ANSWER, uploads=FOUR_CLIENTS, liars=2)),
    ("certified, two of 4 holders lie, not one", Setting(4, 1, CERTIFIED, liars=2)),
)
"""No defect: the bounds of the thresholds are broken, and splitting lists succeeds."""
