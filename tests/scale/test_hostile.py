"""Attacks on sums that others add: workers that lie, clients that own their folder, journals and storages that change.

| attack | what stands against it |
|---|---|
| a worker names a client so that its sum cannot be compared with an audit's | it is done again without that client |
| a worker guesses which jobs are audited | coins choose them |
| a coordinator is killed between a lie and its audit, or goes on after it | what is not agreed on is not written down |
| a lie of a worker is found after the last job is done | the session has failed all the same |
| a client is left out in one life and nobody says so in the next | the list is written down |
| a worker blames a client | the coordinator looks itself |
| a worker answers for another job, or writes a sum of another form | it failed; sums have the form of their cut |
| a client puts a pipe, a link, a folder or a terabyte where a piece should be | the piece is not there |
| a client takes a piece that does not decode away once a worker has read it | it is left out, and no worker failed |
| a client bars its folder, so that its vector cannot be stored | it is refused, and the others are not |
| a client keeps others from removing its files | the sum is released, and the log says what is left |
| something fails after an upload was written down, and before it counts | the sum has failed |
| a record's length is altered, so that all behind it look unfinished | lengths are checked by themselves |
| a coordinator begins again while its holders are away | the storage stays |
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from errno import EACCES, EAGAIN, EDQUOT, ENOSPC
from itertools import count, starmap
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from secagg.contract.pieces import Sums, pieces_of
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.one_message.epoch import EpochRecord
from secagg.protocols.one_message.messages import Upload
from secagg.scale.jobs import Disagreement, Exhausted
from secagg.scale.journal import Event, Journal
from secagg.scale.memory import NoMemory
from secagg.scale.resumed import ResumableSession
from secagg.scale.run import ToyCut
from secagg.scale.spread import Figures
from secagg.scale.store import FolderStore, piece_name, write_result
from secagg.scale.work import Harm, Kind, Order, Outcome, Wrong, perform
from secagg.scale.workers import Answer, InProcess, Processes, open_workers
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.killed_sums import Place
from tests.harness.spread_sums import CUT, NO_KEY, Crowd, Unruly, digests_of, exact, vector_of
from tests.scale.test_resumed import Life, is_exact, uploads_for


class Notes(NoMemory):
    """A memory that lasts as long as a test."""

    def __init__(self) -> None:
        self.outcomes = dict[str, Outcome]()
        self.left_out: tuple[Wrong, ...] | None = None
        self.ends = 0

    def outcome(self, key: str) -> Outcome | None:
        return self.outcomes.get(key)

    def remember(self, outcome: Outcome) -> None:
        self.outcomes[outcome.key] = outcome

    def settled(self, wrong: Iterable[Wrong] | None) -> Iterable[Wrong] | None:
        if wrong is not None:
            self.left_out = tuple(wrong)
        return self.left_out

    def ended(self) -> bool:
        self.ends += 1
        return True


class Late(Unruly):
    """Worker 1 keeps its first answer back until worker 0, which helps out, gives one to the same order."""

    is_held = True

    def poll(self, seconds: float) -> list[Answer]:
        given = dict(self._given)
        held = given.get(1)
        if not self.is_held or held is None or (0 in given and given[0].key == held.key):
            self.is_held = self.is_held and held is None
            self._given.sort(key=lambda one: one[0])
            return super().poll(seconds)
        self._given = [one for one in self._given if one[0] == 0]
        answers = super().poll(seconds)
        self._given = [(1, held)]
        return answers


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass whenever somebody looks at the clock."""
    clock = count(0, 3600)
    monkeypatch.setattr("secagg.scale.spread.monotonic", lambda: float(next(clock)))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files and folders that were made to survive a power failure."""
    paths, fsync = list[str](), os.fsync

    def syncing(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", syncing)
    return paths


def forged(order: Order, wrong: tuple[Wrong, ...] = ()) -> Outcome:
    """Add the first client twice, and say what one likes."""
    outcome = perform(replace(order, entries=order.entries + order.entries[:1]))
    return replace(outcome, wrong=wrong)


def all_twice(folder: Path, conduct: Callable[[int, Order], Outcome | None], **given: Any) -> Crowd:
    """Have every job done by two workers."""
    return Crowd(folder, Unruly(2, conduct), settings={"audited": 1, "clients_in_a_batch": 9}, **given)


# --- Audits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("liar", [0, 1])
def test_naming_a_client_does_not_hide_a_forged_sum_from_an_audit(tmp_path: Path, liar: int) -> None:
    """Sums of different clients cannot be compared, so neither of them may count."""

    def conduct(worker: int, order: Order) -> Outcome:
        if worker == liar and order.kind is Kind.ADD and any(client == 1 for client, _ in order.entries):
            return forged(order, (Wrong(client=ClientId(1), piece=order.first, harm=Harm.MISSING),))
        return perform(order)

    crowd = all_twice(tmp_path, conduct)
    crowd.upload()
    left_out, total = crowd.finish()
    assert list(left_out) == [ClientId(1)]
    assert total.tolist() == crowd.due([ClientId(1)]).tolist()


def test_what_is_done_again_after_a_disagreement_about_clients_is_audited_too(tmp_path: Path) -> None:
    def conduct(worker: int, order: Order) -> Outcome:
        if worker == 1 and order.kind is Kind.ADD and any(client == 1 for client, _ in order.entries):
            return forged(order, (Wrong(client=ClientId(1), piece=order.first, harm=Harm.MISSING),))
        # In the one range that two have done already.
        return forged(order) if worker == 1 and order.kind is Kind.ADD and not order.first else perform(order)

    class Zeros:
        def draw(self, count: int) -> bytearray:
            return bytearray(count)

    # The first job is audited, and then none of so many, but for those that are done again.
    crowd = Crowd(tmp_path, Unruly(2, conduct), settings={"audited": 1000, "clients_in_a_batch": 9}, coins=Zeros())
    crowd.upload()
    with pytest.raises(Disagreement):
        crowd.finish()


def test_every_range_may_be_audited(tmp_path: Path) -> None:
    """There are as many ranges as jobs to an audit; counting jobs would look at one range for ever."""
    workers = Unruly(2)
    crowd = Crowd(tmp_path, workers, 60, settings={"audited": 3, "clients_in_a_batch": 2})
    crowd.upload()
    exact(crowd)
    added = [(order.first, order.key) for order in workers.orders if order.kind is Kind.ADD]
    audited = {first for first, key in added if added.count((first, key)) == 2}
    assert audited == {0, 1, 2}
    keys = [order.key for order in workers.orders]
    assert crowd.total.figures.jobs_audited == len(keys) - len(set(keys)) >= 60 // 2


def test_nobody_can_tell_which_jobs_are_audited(tmp_path: Path) -> None:
    chosen = set[tuple[int, ...]]()
    for seed in range(4):
        workers = Unruly(2)
        settings = {"audited": 4, "clients_in_a_batch": 2}
        crowd = Crowd(tmp_path / str(seed), workers, 24, settings=settings, coins=InsecureSeededCoins(bytes([seed])))
        crowd.upload()
        exact(crowd)
        keys = [order.key for order in workers.orders]
        chosen.add(tuple(at for at, key in enumerate(dict.fromkeys(keys)) if keys.count(key) == 2))
    assert len(chosen) == 4
    # Of each four jobs it is one; only what is added comes in the order in which it was asked for.
    assert all([at // 4 for at in audited if at < 24 // 2 * 3] == list(range(9)) for audited in chosen)


def test_a_sum_that_is_not_agreed_on_yet_is_not_there_in_the_next_life(tmp_path: Path) -> None:
    """The liar answers first, and the coordinator is killed before the audit does."""
    notes = Notes()

    class Halved(Unruly):
        """Only worker 0 answers; when it has nothing to say the coordinator is killed."""

        def poll(self, seconds: float) -> list[Answer]:
            held = [given for given in self._given if given[0] == 1]
            self._given = [given for given in self._given if given[0] == 0]
            if not self._given and held:
                raise KeyboardInterrupt
            answers = super().poll(seconds)
            self._given = held
            return answers

    workers = Halved(2, lambda _, order: forged(order))
    crowd = Crowd(tmp_path, workers, memory=notes, settings={"audited": 1, "clients_in_a_batch": 9})
    crowd.upload()
    with pytest.raises(KeyboardInterrupt):
        crowd.finish()
    assert len(workers.orders) > 2
    crowd = all_twice(tmp_path, lambda _, order: perform(order), memory=notes)
    crowd.upload()
    exact(crowd)


@pytest.mark.parametrize("moment", ["while uploads are received", "at the end"])
def test_nothing_is_released_after_a_disagreement_whoever_goes_on(tmp_path: Path, moment: str) -> None:
    notes, honest = Notes(), {1}

    def conduct(worker: int, order: Order) -> Outcome:
        return perform(order) if worker in honest or order.kind is not Kind.ADD or order.first else forged(order)

    size = 2 if moment == "while uploads are received" else 9
    settings = {"audited": 1, "clients_in_a_batch": size}
    crowd = Crowd(tmp_path, Unruly(2, conduct), memory=notes, settings=settings)
    with pytest.raises(Disagreement):  # noqa: PT012 -- in the one or in the other
        crowd.upload()
        crowd.finish()
    honest.clear()  # whoever is asked now agrees with the liar
    assert notes.ends == 1  # nor does a next life begin
    for go_on in (crowd.upload, crowd.total.settle, lambda: crowd.total.open(NO_KEY)):
        with pytest.raises(Disagreement):
            go_on()


@pytest.mark.usefixtures("hours")
def test_a_disagreement_about_the_last_job_is_remembered_though_no_job_is_left(tmp_path: Path) -> None:
    """Worker 0 did it, and counts; what worker 1 says then is too late for the sum, and not for the session."""
    workers = Late(2, lambda worker, order: forged(order) if worker else perform(order))
    crowd = Crowd(tmp_path, workers, settings={"clients_in_a_batch": 9})
    crowd.upload()
    for _ in range(2):
        with pytest.raises(Disagreement):
            crowd.total.settle()
    assert [order.first for order in workers.orders] == [0, 1, 2, 1]


@pytest.mark.usefixtures("hours")
def test_where_nothing_is_audited_what_two_made_of_different_clients_is_done_again_once(tmp_path: Path) -> None:
    """There need not be two workers then."""

    def conduct(worker: int, order: Order) -> Outcome:
        if worker == 1 and any(client == 1 for client, _ in order.entries):
            return forged(order, (Wrong(client=ClientId(1), piece=order.first, harm=Harm.MISSING),))
        return perform(order)

    crowd = Crowd(tmp_path, Late(2, conduct), settings={"clients_in_a_batch": 9})
    crowd.upload()
    exact(crowd, [ClientId(1)])
    assert crowd.total.figures.jobs_audited == 0


def test_who_is_left_out_is_left_out_in_the_next_life_though_nobody_says_so_there(tmp_path: Path) -> None:
    """Helpers may have been told the list; what one worker said of a client is in no outcome that was written down."""
    notes, accused = Notes(), ClientId(1)

    def conduct(worker: int, order: Order) -> Outcome:
        if worker == 1 and order.kind is Kind.ADD and any(client == 1 for client, _ in order.entries):
            return forged(order, (Wrong(client=accused, piece=order.first, harm=Harm.MISSING),))
        return perform(order)

    crowd = all_twice(tmp_path, conduct, memory=notes)
    crowd.upload()
    assert list(crowd.total.settle()) == [accused]
    crowd = all_twice(tmp_path, lambda _, order: perform(order), memory=notes)
    crowd.upload()
    exact(crowd, [accused])


def test_a_piece_that_is_lost_after_the_list_was_made_releases_nothing_in_the_next_life(tmp_path: Path) -> None:
    """What two workers did not agree on is in no outcome, so it is done again, and finds what is there then."""
    notes = Notes()

    def conduct(worker: int, order: Order) -> Outcome:
        if worker == 1 and order.kind is Kind.ADD and any(client == 1 for client, _ in order.entries):
            return forged(order, (Wrong(client=ClientId(1), piece=order.first, harm=Harm.MISSING),))
        return perform(order)

    crowd = all_twice(tmp_path, conduct, memory=notes)
    crowd.upload()
    assert list(crowd.total.settle()) == [ClientId(1)]
    crowd = all_twice(tmp_path, lambda _, order: perform(order), memory=notes)
    crowd.upload(lambda client: (tmp_path / crowd.name_of(client, 1)).unlink() if client.value == 2 else None)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="lost pieces of client/2"):
            crowd.total.settle()


def test_a_piece_that_goes_away_while_others_are_left_out_takes_its_client_out_of_every_range(tmp_path: Path) -> None:
    first, second = ClientId(2), ClientId(5)

    def conduct(_: int, order: Order) -> Outcome:
        given = {client for client, _ in order.entries}
        if order.kind is Kind.ADD and first.value not in given and order.first == 0:
            (tmp_path / crowd.name_of(second, 0)).unlink(missing_ok=True)
        return perform(order)

    crowd = Crowd(tmp_path, Unruly(2, conduct), settings={"clients_in_a_batch": 9})
    crowd.upload(lambda client: (tmp_path / crowd.name_of(first, 1)).unlink() if client == first else None)
    exact(crowd, [first, second])


def test_an_upload_that_failed_after_it_was_written_down_ends_the_sum(tmp_path: Path) -> None:
    """In the next life it counts; in this one nobody may be told a list on which it is not."""
    turns = count()

    def full(_: Figures) -> None:
        if next(turns) == 3:
            raise OSError(ENOSPC, "no space for figures")

    crowd = Crowd(tmp_path, InProcess(), memory=Notes(), progress=full)
    with pytest.raises(ConnectionError, match="no space for figures"):
        crowd.upload()
    with pytest.raises(ConnectionError, match="no space for figures"):
        crowd.total.settle()


def test_the_list_is_not_made_of_a_sum_that_cannot_be_merged(tmp_path: Path) -> None:
    """Helpers would open it for nothing, and open nothing else."""
    notes = Notes()

    def conduct(_: int, order: Order) -> Outcome:
        return Outcome(key=order.key, failure="the disk is full") if order.kind is Kind.MERGE else perform(order)

    crowd = Crowd(tmp_path, Unruly(2, conduct), memory=notes)
    crowd.upload()
    with pytest.raises(Exhausted, match="the disk is full"):
        crowd.total.settle()
    assert notes.left_out is None


def test_an_end_is_written_down_once_and_what_opens_the_sum_is_forgotten(tmp_path: Path) -> None:
    notes, key = Notes(), b"a mask's"
    crowd = Crowd(tmp_path, InProcess(), memory=notes)
    crowd.upload()
    crowd.total.settle()
    crowd.total.open(key)
    assert any(order.opening == key for order in orders_in_memory())
    crowd.total.end()
    crowd.total.end()
    assert notes.ends == 1
    assert not any(order.opening == key for order in orders_in_memory())


def orders_in_memory() -> list[Order]:
    return [thing for thing in gc.get_objects() if type(thing) is Order]


# --- Workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_cannot_blame_a_client_for_a_piece_that_decodes(tmp_path: Path) -> None:
    lies = 0

    def conduct(_: int, order: Order) -> Outcome:
        nonlocal lies
        outcome = perform(order)
        if order.kind is not Kind.ADD or lies == 3:
            return outcome
        lies += 1
        return replace(outcome, wrong=(Wrong(client=ClientId(1), piece=order.first, harm=Harm.MALFORMED),))

    crowd = Crowd(tmp_path, Unruly(2, conduct), settings={"clients_in_a_batch": 9})
    crowd.upload()
    exact(crowd)
    assert lies == 3


@pytest.mark.parametrize("piece", [3, 7])
def test_a_worker_cannot_blame_a_client_for_a_piece_of_another_range(tmp_path: Path, piece: int) -> None:
    def conduct(_: int, order: Order) -> Outcome:
        outcome = perform(order)
        if order.kind is not Kind.ADD:
            return outcome
        return replace(outcome, wrong=(Wrong(client=ClientId(1), piece=piece, harm=Harm.MISSING),))

    crowd = Crowd(tmp_path, Unruly(2, conduct), settings={"clients_in_a_batch": 9})
    crowd.upload()
    with pytest.raises(Exhausted, match="that it was not given"):
        crowd.finish()


@pytest.mark.parametrize(("workers", "audited"), [(2, 0), (3, 0), (3, 1)])
def test_one_bad_worker_does_not_end_a_session_whose_others_are_good(
    workers: int, audited: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked first, as long as nobody knows it."""
    asked = list[str]()

    def fails(worker: int, order: Order) -> Outcome | None:
        if worker:
            return perform(order)
        asked.append(order.key)
        assert len(asked) < 99, "it is asked for ever"
        return Outcome(key=order.key, failure="a worker failed: its disk is full")

    crowd = Crowd(tmp_path, Unruly(workers, fails), 12, settings={"audited": audited})
    crowd.upload()
    exact(crowd)
    assert asked
    assert len(asked) == len(set(asked))
    assert "worker 0 failed at " in caplog.text
    assert "worker 1 failed" not in caplog.text


def test_nobody_waits_for_one_that_hangs_at_what_another_has_done(tmp_path: Path) -> None:
    """Worker 0 fails once, and worker 1, who has not tried that job, never answers."""
    failed, deadline = list[str](), monotonic() + 60

    class Hanging(Unruly):
        def poll(self, seconds: float) -> list[Answer]:
            assert monotonic() < deadline, "it waits for ever"
            hangs = [given for given in self._given if given[0] == 1]
            self._given[:] = [given for given in self._given if given[0] != 1]
            answers = super().poll(seconds)
            self._given += hangs
            return answers

    def fails_once(_: int, order: Order) -> Outcome | None:
        if failed:
            return perform(order)
        failed.append(order.key)
        return Outcome(key=order.key, failure="the storage failed")

    crowd = Crowd(tmp_path, Hanging(2, fails_once))
    crowd.upload()
    exact(crowd)


def test_a_bad_worker_does_not_use_up_the_attempts_while_a_good_one_is_at_work(tmp_path: Path) -> None:
    """It fails at once, and the good one takes five turns for a job."""

    class Slow(Unruly):
        turn = 0

        def poll(self, seconds: float) -> list[Answer]:
            self.turn += 1
            held = [given for given in self._given if given[0] == 1 and self.turn % 5]
            self._given = [given for given in self._given if given not in held]
            answers = super().poll(seconds)
            self._given = held
            return answers

    def fails(worker: int, order: Order) -> Outcome:
        return Outcome(key=order.key, failure="its disk is full") if worker == 0 else perform(order)

    crowd = Crowd(tmp_path, Slow(2, fails))
    crowd.upload()
    exact(crowd)


def test_a_worker_that_answers_for_another_job_has_failed(tmp_path: Path) -> None:
    """With one worker nobody else would ever do the job."""
    turns = 0

    def conduct(_: int, order: Order) -> Outcome:
        nonlocal turns
        turns += 1
        return replace(perform(order), key="another") if turns == 1 else perform(order)

    crowd = Crowd(tmp_path, Unruly(1, conduct))
    crowd.upload()
    exact(crowd)


def test_an_answer_of_a_worker_is_bytes_of_a_form() -> None:
    outcome = Outcome(key="k", digest=bytes(32), wrong=(Wrong(client=ClientId(3), piece=1, harm=Harm.ANOTHER),))
    assert Outcome.decode(outcome.encode()) == outcome
    for spoilt in (b"", outcome.encode()[:-1], outcome.encode() + b"x", b"\x80\x05."):
        with pytest.raises(SecAggError):
            Outcome.decode(spoilt)


def test_a_process_that_answers_with_a_pickle_is_lost_and_nothing_is_run(tmp_path: Path) -> None:
    """A worker that was taken over must not run code in its coordinator."""
    mark, workers = tmp_path / "run", Processes(1)

    class Evil:
        def __reduce__(self) -> Any:
            return (mark.touch, ())

    try:
        (worker,) = workers.idle
        here, there = Pipe()
        running = workers._running  # noqa: SLF001 -- its pipe is taken over  # pyright: ignore[reportPrivateUsage]
        process, own = running[worker]
        running[worker] = process, here
        there.send_bytes(pickle.dumps(Evil()))
        workers.start(worker, order_of(tmp_path))
        # It would live on, and is not waited for.
        assert workers.poll(60) == [(worker, None)]
        assert not process.is_alive()
        assert not mark.exists()
        there.close()
        own.close()
    finally:
        workers.close()


def order_of(folder: Path, **given: Any) -> Order:
    order = Order(key="k", kind=Kind.ADD, storage=str(folder), cut=CUT, first=0, end=1)
    return replace(order, **given)


@pytest.mark.parametrize("data", [b"", b"[]\n", bytes(31), bytes(33), b'[[["O", 4]]]\n' + bytes(32)])
def test_a_partial_sum_of_another_form_is_not_there(tmp_path: Path, data: bytes) -> None:
    """Its digest is right: a worker wrote it."""
    digest = write_result(FolderStore(tmp_path), CUT.context, data)
    outcome = perform(order_of(tmp_path, kind=Kind.MERGE, parts=(digest,)))
    assert outcome.failure
    assert outcome.missing == (digest,)


def test_an_opened_range_of_another_form_opens_nothing(tmp_path: Path) -> None:
    def conduct(_: int, order: Order) -> Outcome:
        if order.kind is not Kind.OPEN:
            return perform(order)
        return Outcome(key=order.key, digest=write_result(FolderStore(tmp_path), CUT.context, b"[]\n"))

    crowd = Crowd(tmp_path, Unruly(1, conduct))
    crowd.upload()
    with pytest.raises(ConnectionError, match="the storage lost an opened range"):
        crowd.finish()


def test_a_fault_of_a_worker_is_in_its_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-five lost processes would say nothing of what is wrong."""

    def broken(*_: object) -> Sums:
        raise ZeroDivisionError("of a kernel")

    monkeypatch.setattr(type(CUT), "zeros", broken)
    assert "ZeroDivisionError: of a kernel" in perform(order_of(tmp_path)).failure


def test_there_are_workers() -> None:
    with pytest.raises(InvalidParameters, match="at least one worker"):
        open_workers("processes", 0)


# --- Clients that write their own folder ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm", ["pipe", "folder", "link", "link to zeros", "link to memory", "link to itself", "sparse terabyte"]
)
def test_a_client_that_puts_something_else_where_its_piece_should_be_harms_itself(tmp_path: Path, harm: str) -> None:
    crowd, bad = Crowd(tmp_path, Unruly()), ClientId(4)

    def spoil(client: ClientId) -> None:
        path = tmp_path / crowd.name_of(bad, 1)
        if client != bad:
            return
        path.unlink()
        match harm:
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "link":
                path.symlink_to(tmp_path / crowd.name_of(ClientId(1), 1))
            case "link to zeros":
                path.symlink_to("/dev/zero")
            case "link to memory":
                path.symlink_to("/proc/self/mem")  # a file, of which no byte can be read
            case "link to itself":
                path.symlink_to(path)
            case _:
                with path.open("wb") as file:
                    file.truncate(1 << 40)

    crowd.upload(spoil)
    found, total = crowd.finish()
    assert list(found) == [bad]
    assert found[bad].culprits == {bad, ServerId()}
    assert total.tolist() == crowd.due([bad]).tolist()


@pytest.mark.parametrize("refusal", [EACCES, EAGAIN])
def test_a_piece_that_nobody_may_read_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """A client has taken the right to read away, or holds a lease."""
    crowd, bad = Crowd(tmp_path, InProcess()), ClientId(4)
    due, opened = crowd.name_of(bad, 1), os.open

    def refusing(path: Any, *rest: Any, **named: Any) -> int:
        if str(path).endswith(due):
            raise OSError(refusal, "not yours", str(path))
        return opened(path, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
    crowd.upload()
    exact(crowd, [bad])


@pytest.mark.parametrize("harm", ["folder", "right", "quota", "theft"])
def test_a_client_that_bars_its_folder_is_refused_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Its vector comes whole, and where it is to be stored stands a folder, or nothing may be written."""
    crowd, bad = Crowd(tmp_path, InProcess()), ClientId(4)
    (place := tmp_path / crowd.name_of(bad, 1)).parent.mkdir(parents=True)
    make: Any = tempfile.mkstemp

    def refusing(**named: Any) -> tuple[int, str]:
        if Path(named["dir"]) == place.parent:
            if harm == "theft":  # what is half written goes away
                made: tuple[int, str] = make(**named)
                Path(made[1]).unlink()
                return made
            raise OSError(EACCES if harm == "right" else EDQUOT, "not here")
        return make(**named)  # type: ignore[no-any-return]

    if harm == "folder":
        place.mkdir()
    else:
        monkeypatch.setattr(tempfile, "mkstemp", refusing)
    crowd.clients.remove(bad)
    crowd.upload()
    with pytest.raises(PeerMisbehaved, match="cannot be stored") as caught:
        crowd.total.keep(bad, digests_of(bad, vector_of(4)), vector_of(4))
    assert caught.value.culprits == {bad, ServerId()}
    assert not list(place.parent.glob("tmp*"))
    exact(crowd)


def test_a_storage_that_is_full_ends_the_sum_and_blames_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> tuple[int, str]:
        raise OSError(ENOSPC, "full")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(OSError, match="full"):
        Crowd(tmp_path, InProcess()).upload()


@pytest.mark.parametrize("where", ["a file", "an object storage"])
def test_a_sum_is_not_lost_to_what_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """A client may keep others from removing its files; the sum is open by then, and not to be had again."""
    notes = Notes()
    crowd = Crowd(tmp_path, InProcess(), memory=notes)
    crowd.upload()
    exact(crowd)

    def failing(*_: Any, **__: Any) -> None:
        if where == "an object storage":
            raise RuntimeError("403")

    monkeypatch.setattr(shutil, "rmtree", failing)
    crowd.total.end()
    assert notes.ends == 1
    assert f"remove {CUT.context.hex()} from {tmp_path} yourself" in caplog.text


def test_a_storage_named_by_a_relative_path_is_one_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker runs in another folder than its coordinator; clients would be named for it."""
    monkeypatch.chdir(tmp_path)

    def conduct(_: int, order: Order) -> Outcome:
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            return perform(order)

    crowd = Crowd(Path("sums"), Unruly(2, conduct))
    crowd.upload()
    exact(crowd)


@pytest.mark.parametrize("memory", [None, Notes()])
def test_what_a_journal_says_is_stored_survives_a_power_failure(
    tmp_path: Path, synced: list[str], memory: Notes | None
) -> None:
    crowd = Crowd(tmp_path, InProcess(), 1, memory=memory)
    crowd.upload()
    folder = str((tmp_path / crowd.name_of(ClientId(1), 0)).parent)
    assert synced.count(folder) == (0 if memory is None else 3)
    assert len([path for path in synced if path.startswith(f"{folder}/")]) == (0 if memory is None else 3)


def test_an_upload_is_written_down_when_its_pieces_are_stored_and_before_it_is_added(tmp_path: Path) -> None:
    workers, seen = Unruly(), list[tuple[ClientId, int, bool]]()

    class Kept(Notes):
        def kept(self, client: ClientId) -> None:
            stored = sum((tmp_path / crowd.name_of(client, piece)).is_file() for piece in range(3))
            seen.append((client, stored, any(client.value in dict(order.entries) for order in workers.orders)))

    crowd = Crowd(tmp_path, workers, memory=Kept())
    crowd.upload()
    assert seen == [(client, 3, False) for client in crowd.clients]


# --- Journals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "records"


def test_a_new_journal_is_in_its_folder_after_a_power_failure(path: Path, synced: list[str]) -> None:
    Journal(path).close()
    assert synced == [str(path.parent)]


def test_a_length_that_is_altered_forgets_nothing(path: Path) -> None:
    journal = Journal(path)
    journal.append(Event.OPENED, b"first")
    first = path.stat().st_size
    for _ in range(5):
        journal.append(Event.CLOSED)
    journal.close()
    whole = path.read_bytes()
    header = 8 + 2 * 32
    for at, end in ((0, len(whole)), (6, len(whole)), (first, len(whole)), (first + 7, len(whole)), (0, header)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 : end])
        with pytest.raises(InvalidParameters, match="is damaged"):
            Journal(path)
        assert path.stat().st_size == end


def test_a_journal_whose_end_a_power_failure_left_empty_goes_on(path: Path) -> None:
    journal = Journal(path)
    journal.append(Event.OPENED, b"first")
    journal.close()
    with path.open("ab") as file:
        file.write(bytes(100))
    journal = Journal(path)
    journal.append(Event.CLOSED)
    journal.close()
    journal = Journal(path)
    journal.close()
    assert [record.event for record in journal.past] == [Event.OPENED, Event.CLOSED]


@pytest.mark.parametrize("wrote", [0, 1, 50])
def test_a_disk_that_is_full_for_a_moment_spoils_no_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, wrote: int
) -> None:
    journal, write, turns = Journal(path), os.write, 0

    def full(descriptor: int, data: Any) -> int:
        nonlocal turns
        turns += 1
        if turns == 1 and wrote:
            return write(descriptor, bytes(data)[:wrote])
        raise OSError(28, "No space left on device")

    journal.append(Event.OPENED, b"first")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            journal.append(Event.RECEIVED, bytes(100))
    journal.append(Event.CLOSED)
    journal.close()
    journal = Journal(path)
    journal.close()
    assert [record.event for record in journal.past] == [Event.OPENED, Event.CLOSED]


def test_a_write_that_takes_several_turns_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def short(descriptor: int, data: memoryview) -> int:
        return write(descriptor, data[:7])

    monkeypatch.setattr(os, "write", short)
    journal = Journal(path)
    journal.append(Event.OPENED, bytes(100))
    journal.close()
    journal = Journal(path)
    journal.close()
    assert [record.parts for record in journal.past] == [(bytes(100),)]


# --- Sessions that begin again ----------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "sum")


def all_received(place: Place) -> None:
    with Life(place) as session:
        for client, upload in uploads_for(place, session).items():
            session.receive(client, upload)


def test_a_stage_that_is_closed_twice_spoils_no_journal(place: Place) -> None:
    all_received(place)
    with Life(place) as session:
        session.close_stage()
        with pytest.raises(Misuse, match="no stage"):
            session.close_stage()
    with Life(place) as session:
        assert is_exact(place, session.release())


def nobody(_: object, __: object) -> Iterator[tuple[int, bytes]]:
    return iter(())


def test_holders_that_are_away_while_a_session_begins_again_cost_no_upload(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last words of the first life were that a stage is closed, and holders are to be asked."""
    all_received(place)
    journal = Journal(place.journal)
    journal.append(Event.CLOSED)
    journal.close()
    stored = sorted(Path(place.storage).rglob("*"))
    with monkeypatch.context() as away:
        away.setattr(Place, "ask", nobody)
        with pytest.raises((SecAggError, ConnectionError)):
            Life(place)
    assert sorted(path for path in Path(place.storage).rglob("*") if "sums" not in path.parts) == [
        path for path in stored if "sums" not in path.parts
    ]
    with Life(place) as session:
        assert is_exact(place, session.release())


def test_a_piece_that_is_withdrawn_after_the_list_was_made_names_no_holder(place: Place) -> None:
    """The list has its client, so a sum without it opens with nothing, and holders would be named for that."""
    all_received(place)
    with Life(place) as session:
        session.close_stage()
    for path in Path(place.storage).glob("*/sums/*"):
        path.unlink()
    next(Path(place.storage).glob("*/pieces/*/*")).unlink()
    with Life(place) as session:
        with pytest.raises(ConnectionError) as raised:
            session.release()
        assert "holder" not in str(raised.value)
        assert not session.faults


class Lying(InProcess):
    """Two disagree about each sum of uploads."""

    def start(self, worker: int, order: Order) -> None:
        if order.kind is not Kind.ADD:
            return super().start(worker, order)
        raise Disagreement(order.key, {0, 1})


def test_a_lie_while_uploads_are_received_ends_the_session_for_good(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.harness.killed_sums.InProcess", Lying)
    with Life(place) as session:
        uploads = list(uploads_for(place, session).items())
        for client, upload in uploads[:4]:
            session.receive(client, upload)
        with pytest.raises(Disagreement):
            session.receive(*uploads[4])
        assert session.stage is None
    with pytest.raises(Misuse, match="is over"):
        Life(place)


def test_a_lie_while_a_session_begins_again_ends_it_for_good(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on after that may draw other audits."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with Life(place) as session, monkeypatch.context() as patched:
        uploads = list(uploads_for(place, session).items())
        patched.setattr(InProcess, "start", killed)
        with pytest.raises(KeyboardInterrupt):
            deque(starmap(session.receive, uploads))
    with monkeypatch.context() as patched:
        patched.setattr("tests.harness.killed_sums.InProcess", Lying)
        with pytest.raises(Disagreement):
            Life(place)
    with pytest.raises(Misuse, match="is over"):
        Life(place)


def test_a_vector_that_comes_after_its_digests_is_kept(place: Place) -> None:
    """A client, or a gateway, said that the pieces are stored, and they were not; it sends the vector then."""
    with Life(place) as session:
        assert isinstance(session, ResumableSession)
        inner: Any = session.session
        for client, upload in uploads_for(place, session).items():
            session.receive(client, inner.without_vector(client, upload))
            session.receive(client, upload)
        session.close_stage()
        assert is_exact(place, session.release())


def test_an_upload_that_is_signed_again_and_again_fills_no_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a key can sign the same in as many ways as it likes, and each of them verifies."""

    def verifies(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(EpochRecord, "verify", verifies)
    with Life(place) as session:
        client, upload = next(iter(uploads_for(place, session).items()))
        session.receive(client, upload)
        size, other = place.journal.stat().st_size, replace(Upload.decode(upload), signature=bytes(64)).encode()
        with pytest.raises(PeerMisbehaved, match="second upload"):
            session.receive(client, other)
        session.receive(client, upload)
        assert place.journal.stat().st_size == size


@pytest.fixture
def undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last pieces of the third client not decode."""
    bad = vector_of(3)[64:]

    def refusing(_: object, __: int, piece: bytes) -> None:
        if piece == bad:
            raise MalformedMessage("filling bits", reason=Reason.NOT_CANONICAL)

    def adding(cut: ToyCut, total: Sums, number: int, piece: bytes) -> None:
        refusing(cut, number, piece)
        np.add(total[0], np.frombuffer(piece, np.uint64), out=total[0])

    monkeypatch.setattr(ToyCut, "check", refusing)
    monkeypatch.setattr(ToyCut, "add", adding)


@pytest.mark.usefixtures("undecodable")
def test_a_piece_that_was_signed_and_does_not_decode_is_looked_at_again(tmp_path: Path) -> None:
    """What the coordinator finds itself is the client's doing alone."""
    crowd = Crowd(tmp_path, InProcess())
    crowd.upload()
    found, total = crowd.finish()
    assert found[ClientId(3)].culprits == {ClientId(3)}
    assert total.tolist() == crowd.due([ClientId(3)]).tolist()


@pytest.mark.usefixtures("undecodable")
def test_a_piece_that_is_withdrawn_whenever_a_worker_has_read_it_costs_its_client_alone(tmp_path: Path) -> None:
    """The coordinator looks, and finds nothing; if the worker had failed for that, four times would end the sum."""
    bad = ClientId(3)

    def conduct(_: int, order: Order) -> Outcome:
        digests = dict(order.entries).get(bad.value, ())
        names = [piece_name(CUT.context, bad, digest) for digest in digests]
        for name, piece in zip(names, pieces_of(vector_of(3), CUT.lengths)[order.first : order.end], strict=False):
            crowd.store.put(name, piece)
        outcome = perform(order)
        for name in names:
            (tmp_path / name).unlink()
        return outcome

    crowd = Crowd(tmp_path, Unruly(2, conduct))
    crowd.upload()
    found, total = crowd.finish()
    assert found[bad].culprits == {bad, ServerId()}
    assert total.tolist() == crowd.due([bad]).tolist()
