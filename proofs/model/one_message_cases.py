"""What each case of one message a client lets happen, and the defects that are planted, so that each is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import ideal
import one_message
import one_message_files
from defects import Replacement, planted
from one_message_cast import PATCHES, Cast, MemoryJournal, Setting
from secagg.errors import PeerMisbehaved, Reason
from secagg.protocols.one_message import epoch, parameters
from secagg.protocols.one_message.holder import Holder, Placements
from secagg.protocols.one_message.journal import Event, FileJournal, HolderSecret
from secagg.protocols.one_message.ledger import Ledger
from secagg.protocols.one_message.messages import UploadList
from secagg.protocols.one_message.parameters import ThresholdRule
from two_servers import Report

ONE_ANSWER, CERTIFIED = ThresholdRule.ONE_ANSWER, ThresholdRule.CERTIFIED
THREE = Setting(3, 0, ONE_ANSWER, places=(0,))
FOUR = Setting(4, 1, ONE_ANSWER)
FIVE = Setting(5, 1, ONE_ANSWER, places=(0,))
PACKED = Setting(5, 0, ONE_ANSWER, packing=2, places=(0,))
SIGNED_BY_THREE = Setting(3, 1, CERTIFIED, places=(0,))
IN_TWO_ROUNDS = Setting(3, 1, CERTIFIED)
SIGNED_BY_FIVE = Setting(5, 1, CERTIFIED, packing=2, places=(0,))


@dataclass(frozen=True, slots=True)
class Case:
    """A search, and what is planted."""

    name: str
    setting: Setting | None
    """No setting: one holder with its journal in files."""
    defects: tuple[Replacement, ...] = ()
    journal: type[MemoryJournal] = MemoryJournal
    attacked: bool = False

    def explore(self) -> Report:
        """Run it, with ideal cryptography."""
        with ideal.installed(), planted(*PATCHES, *self.defects), ExitStack() as stack:
            epoch._verified_epoch.cache_clear()  # noqa: SLF001 -- what it remembers was verified in another case
            stack.callback(epoch._verified_epoch.cache_clear)  # noqa: SLF001
            if self.setting is None:
                return one_message_files.explore()
            return one_message.explore(Cast(self.setting), "uv", self.journal)


def cases() -> tuple[Case, ...]:
    """Return every case: holders and clients as they are, then with each defect."""
    shipped = (
        Case("one message: one answer, 4 holders, two sums", FOUR),
        Case("one message: one answer, 5 holders", FIVE),
        Case("one message: one answer, 5 holders, packed", PACKED),
        Case("one message: certified, 3 holders, two rounds", IN_TWO_ROUNDS),
        Case("one message: certified, 5 holders, packed", SIGNED_BY_FIVE),
    )
    return (*shipped, *(Case(f"one message: {name}", *rest, attacked=True) for name, *rest in DEFECTS))


# --- Defects ----------------------------------------------------------------------------------------------------------


def _nothing(*_: object, **__: object) -> None:
    """Check nothing."""


class LosesLists(MemoryJournal):
    """Forgets in a crash which lists were signed or answered."""

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record down, or not."""
        if event not in {Event.LISTED, Event.ANSWERED}:
            super().append(event, *parts)


class WritesLater(MemoryJournal):
    """Writes a record when the next one is due: what was sent is written after it was sent."""

    late: tuple[tuple[Event, tuple[bytes, ...]], ...] = ()

    def append(self, event: Event, *parts: bytes) -> None:
        """Write down what is late, and be late with this."""
        for earlier, earlier_parts in self.late:
            super().append(earlier, *earlier_parts)
        self.late = ((event, parts),) if event in {Event.LISTED, Event.ANSWERED} else ()
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

    def remembered(self) -> Any:  # noqa: ANN401 -- anything that can be compared
        """Return what the disk holds, and what is late."""
        return super().remembered(), self.late


_WHOLE: Any = Holder._require_whole  # noqa: SLF001


def _any_size(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    configuration = SimpleNamespace(minimum_cohort=1, parameters=work.agreement.parameters)
    agreement = SimpleNamespace(configuration=configuration, record=work.agreement.record)
    _WHOLE(self, SimpleNamespace(agreement=agreement, accepted=work.accepted), upload_list)


def _any_terms(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    accepted = {upload: replace(one, terms=upload_list.terms) for upload, one in work.accepted.items()}
    _WHOLE(self, SimpleNamespace(agreement=work.agreement, accepted=accepted), upload_list)


def _free_for_another_sum(self: Any, sum_id: bytes, upload_list: bytes, _: tuple[bytes, ...]) -> None:  # noqa: ANN401
    if self._list_of_sum.get(sum_id, upload_list) != upload_list:
        raise PeerMisbehaved("a sum has one list", reason=Reason.ALREADY_SPENT)


def _majority(holders: int, _: int) -> int:
    return holders // 2 + 1


def _any_entries(self: Any) -> Any:  # noqa: ANN401 -- a journal of files
    entries, end = one_message_files.entries_in(self._file.read())
    self._file.truncate(end)
    self._file.seek(end)
    for entry in entries:
        self._step(entry.encode())
    self._write_whole("head", self._count.to_bytes(8, "big") + self._head)
    return entries


def _any_secret(original: Callable[..., HolderSecret], *, epoch_too: bool) -> Callable[..., HolderSecret]:
    def kept(self: Any, record: bytes, boot_id: bytes, coins: Any) -> HolderSecret:  # noqa: ANN401
        path = self._folder / "secret"
        if path.exists():
            secret = HolderSecret.decode(path.read_bytes())
            if epoch_too or secret.record == record:
                return secret
        return original(self, record, boot_id, coins)

    return kept


_KEPT: Any = FileJournal._kept_secret  # noqa: SLF001
_QUORUMS: tuple[Replacement, ...] = ((parameters, "least_quorum", _majority), (epoch, "least_quorum", _majority))
DEFECTS: tuple[tuple[Any, ...], ...] = (
    ("answers twice after a crash", THREE, (), LosesLists),
    ("the journal is written after the reply", THREE, (), WritesLater),
    ("a sum has several lists", THREE, ((Placements, "require_free", _nothing),)),
    ("lists of any size", THREE, ((Holder, "_require_whole", _any_size),)),
    (
        "uploads do not name their sum",
        Setting(3, 0, ONE_ANSWER),
        (
            (Holder, "_require_whole", _any_terms),
            (Placements, "require_free", _free_for_another_sum),
        ),
    ),
    ("updates not spent", Setting(3, 0, ONE_ANSWER), ((Ledger, "spend", _nothing),)),
    ("a quorum of the majority", replace(SIGNED_BY_FIVE, packing=1), _QUORUMS),
    ("a journal older than its head", None, ((FileJournal, "_whole_entries", _any_entries),)),
    ("a journal of before a restart", None, ((FileJournal, "_kept_secret", _any_secret(_KEPT, epoch_too=False)),)),
    ("a journal of another epoch", None, ((FileJournal, "_kept_secret", _any_secret(_KEPT, epoch_too=True)),)),
)
