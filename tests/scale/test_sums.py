# ruff: noqa: SLF001 -- these tests look into a sum
"""Sums whose uploads workers add: files are authenticated, stored before they are announced, and blame no party."""

from __future__ import annotations

import dataclasses
import hmac
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.contract import Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.errors import NOBODY, InvalidParameters, Misuse, PeerError, PeerMisbehaved, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.opening import Accumulator
from secagg.scale import spread, storage
from secagg.scale.engines import Engine, Result
from secagg.scale.spread import Figures, RecordedCoins, State, goes_on
from secagg.scale.storage import TAG_BYTES, FolderStore, FsspecStore, Lost, Objects, Task, add, read_sum, tag_of
from secagg.session.run import Metrics
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, message_kind
from tests.harness.one_message_sums import SumSetup
from tests.harness.spread_sums import SETUP, Life, Place, whole

KEY = bytes(range(32))
LARGE = SumSetup(population=20, capacity=32, layout=SETUP.layout)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr("secagg.scale.engines._PAUSE_SECONDS", 0.0)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place")


def uploaded(place: Place, engine: Engine | None = None) -> Life:
    life = Life(place, engine)
    life.upload()
    return life


def closed(place: Place) -> Life:
    """Return a coordinator that ran until its list was fixed."""
    life = uploaded(place)
    life.session.close_stage()
    life.end()
    return life


def alter(path: Path, at: int = 8) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("clients_in_a_task", [1, 2, 5, 256])
def test_however_a_sum_is_divided_it_is_the_same(place: Place, clients_in_a_task: int) -> None:
    place.settings = {"clients_in_a_task": clients_in_a_task}
    assert place.is_exact(whole(place))


def test_nothing_is_left_after_the_end(place: Place) -> None:
    whole(place)
    assert list(Path(place.storage).iterdir()) == []
    assert {path.name for path in place.state.rglob("*")} == {"lock", "uploads"}


def test_a_sum_in_an_object_storage_is_exact(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    place = Place(tmp_path / "place", storage="memory://sums")
    assert place.is_exact(whole(place))


def test_uploads_wait_while_too_much_waits_to_be_added(tmp_path: Path) -> None:
    class Lazy(Engine):
        """Starts only when its result is awaited."""

        def __init__(self) -> None:
            super().__init__()
            self.due, self.most = list[Task](), 0

        def submit(self, task: Task) -> None:
            self.due.append(task)
            self.most = max(self.most, len(self.due))

        def wait(self, seconds: float) -> list[Result]:
            for task in self.due if seconds else ():
                super().submit(task)
            self.due = [] if seconds else self.due
            return super().wait(seconds)

    place, engine = Place(tmp_path / "place", LARGE), Lazy()
    place.settings = {"clients_in_a_task": 1}
    assert place.is_exact(whole(place, engine))
    assert engine.most <= 2 * (vars(spread)["_BACKLOG"] + 1)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_workers_that_do_nothing_for_a_while_are_given_up_the_fourth_time_in_a_row(
    tmp_path: Path,
    is_stuck: bool,  # noqa: FBT001
) -> None:
    class Sluggish(Engine):
        turn = 0

        def wait(self, seconds: float) -> list[Result]:
            self.turn += seconds > 0
            if is_stuck or not seconds or self.turn % 2:
                sleep(seconds)
                return []
            return super().wait(seconds)

    place = Place(tmp_path / "place", LARGE)
    place.settings = {"clients_in_a_task": 1, "patience": 1e-3}
    life = Life(place, Sluggish())
    with pytest.raises(ConnectionError, match="after 3 retries: no task finished") if is_stuck else nullcontext():
        life.upload()
        assert place.is_exact(life.finish())
    assert life.sum.figures.begun_again > 3


def test_figures_are_told_to_people_and_to_prometheus(place: Place) -> None:
    told = list[Figures]()
    life = Life(place, progress=told.append)
    life.upload()
    life.finish()
    assert str(told[-1]).endswith("6 of 6 tasks")
    metrics = Metrics()
    told[-1].tell(metrics)
    assert "secagg_tasks_left 0" in metrics.text()


def test_a_piece_that_is_not_the_signed_one_is_refused_when_it_comes(place: Place) -> None:
    life, client = Life(place), place.clients[0]
    upload = Upload.decode(place.upload(client, life.session.invitation))
    forged = Upload.decode(upload.encode())
    object.__setattr__(forged, "vector", bytes([upload.vector[0] ^ 1]) + upload.vector[1:])
    with pytest.raises(PeerError) as refused:
        life.session.receive(client, forged.encode())
    assert refused.value.culprits == {client, ServerId()}, "the way may have altered it"
    assert not place.objects("pieces")
    life.session.receive(client, place.sent[client])


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return all writes in order; for the storage, their kinds."""
    seen, make, put = list[str](), State._make, FolderStore.put  # pyright: ignore[reportPrivateUsage]

    def making(self: State, name: str, data: bytes) -> None:
        make(self, name, data)
        seen.append(name.partition("/")[0])

    def putting(self: FolderStore, name: str, parts: Any, *, lasts: bool = False) -> None:
        put(self, name, parts, lasts=lasts)
        seen.append(name.split("/")[1] + (" that last" if lasts else ""))

    monkeypatch.setattr(State, "_make", making)
    monkeypatch.setattr(FolderStore, "put", putting)
    return seen


def test_everything_is_written_before_it_is_told(place: Place, written: list[str]) -> None:
    def ask(requests: Any) -> Iterator[tuple[int, bytes]]:
        written.append(f"asked: {message_kind(next(iter(requests.values()))).name}")
        yield from place.ask(requests)

    life = Life(place, ask=ask)
    assert written == ["key", "asked: ONE_MESSAGE_OFFER", "offer"]
    for client in place.clients[:3]:
        written.clear()
        life.upload([client])
        assert written == ["pieces that last", "pieces that last", "uploads"]
    life.upload()
    written.clear()
    life.session.close_stage()
    assert written[-1] == "list"
    assert "asked: ONE_MESSAGE_LIST" not in written
    written.clear()
    life.session.release()
    assert written[0] == "asked: ONE_MESSAGE_LIST"
    assert written[-1] == "over"


def test_files_are_flushed_before_they_have_their_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, fsync, linked = set[int](), os.fsync, list[bool]()

    def syncing(descriptor: int) -> None:
        fsync(descriptor)
        flushed.add(os.fstat(descriptor).st_ino)

    def linking(self: Path, target: Path) -> None:
        linked.append(target.stat().st_ino in flushed)
        os.link(target, self)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "hardlink_to", linking)
    life = uploaded(place)
    assert linked == [True] * (2 + len(place.clients))
    kept = [place.folder, place.state, place.state / "uploads", Path(place.storage)]
    for piece in place.objects("pieces"):
        kept += [piece, *(folder for folder in piece.parents if folder.is_relative_to(place.storage))]
    assert {path.stat().st_ino for path in kept} <= flushed, "a folder without its own entry is lost with all in it"
    life.end()


def test_a_coordinator_that_is_started_again_has_the_same_sum_and_all_uploads(place: Place) -> None:
    life = Life(place)
    life.upload(place.clients[:4])
    life.end()
    again = Life(place)
    assert again.session.invitation == life.session.invitation, "clients have signed for this sum"
    assert again.session.awaited == frozenset(place.clients[4:])
    again.upload()
    assert place.is_exact(again.finish())


def test_what_was_added_before_is_not_added_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded(place).end()
    before = place.objects("sums")
    assert before
    read = list[str]()

    def reading(self: FolderStore, name: str, size: int) -> memoryview | None:
        read.append(name)
        return original(self, name, size)

    original = FolderStore.read
    again = Life(place)
    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "read", reading)
        again.session.close_stage()
    assert set(before) <= set(place.objects("sums"))
    added = {"/".join(path.parts[-3:]) for client in place.clients[:4] for path in place.pieces_of(client)}
    assert not [name for name in read if "/".join(name.split("/")[1:]) in added]
    assert place.is_exact(again.session.release())


def test_after_the_list_a_new_coordinator_shows_the_same_list_and_no_other(place: Place) -> None:
    closed(place)
    again = Life(place)
    assert again.session.stage is None, "nobody can upload any more"
    assert place.is_exact(again.finish())
    lists = {request for request in place.asked if message_kind(request) is MessageKind.ONE_MESSAGE_LIST}
    assert len(lists) == 1


def test_answers_are_asked_for_again(place: Place) -> None:
    """A coordinator that is killed after all have answered knows nothing of that."""
    life = uploaded(place)
    life.session.close_stage()
    for _ in place.ask(life.session.tally.requests()):
        pass
    life.end()
    asked = len(place.asked)
    assert place.is_exact(Life(place).finish())
    assert [message_kind(each) for each in place.asked[asked:]].count(MessageKind.ONE_MESSAGE_LIST) == 5


def ignore(*_: object) -> None:
    """Do nothing."""


def test_a_sum_that_is_over_is_not_released_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    life = uploaded(place)
    with monkeypatch.context() as patched:
        patched.setattr(State, "clear", ignore)
        patched.setattr(FolderStore, "remove", ignore)
        released = life.finish()
    assert place.is_exact(released)
    assert not goes_on(place.state)
    place.sent.clear()
    other = Life(place)
    assert not place.objects("pieces"), "what the first one left goes with it"
    assert len(other.session.awaited or ()) == len(place.clients)


def test_coins_of_an_offer_come_again_and_later_ones_are_not_kept(tmp_path: Path) -> None:
    state = State(tmp_path / "state", InsecureSeededCoins(b"key"))
    coins = RecordedCoins(state, InsecureSeededCoins(b"first"))
    drawn = [coins.draw(3), coins.draw(5)]
    coins.require_offer(b"an offer")
    coins.draw(7)
    assert vars(coins)["_drawn"] == b"".join(drawn)
    state.close()
    again = RecordedCoins(State(tmp_path / "state", InsecureSeededCoins(b"key")), InsecureSeededCoins(b"second"))
    assert [again.draw(3), again.draw(5)] == drawn
    assert len(again.draw(7)) == 7


def test_two_coordinators_do_not_have_one_state(place: Place) -> None:
    life = Life(place)
    with pytest.raises(InvalidParameters, match="only one coordinator"):
        Life(place)
    with pytest.raises(InvalidParameters, match="only one coordinator"):
        Life(place, begins=True)
    assert goes_on(place.state), "who is refused has changed nothing"
    life.end()
    Life(place).end()


def test_another_sum_begins_whatever_is_there(place: Place) -> None:
    life = uploaded(place)
    life.end()
    (place.state / "offer").write_bytes(b"damaged")
    place.sent.clear()
    Life(place, begins=True)
    assert not place.objects("pieces"), "what the first one left goes with it"


def test_a_second_list_is_not_written_whatever_it_counts(place: Place) -> None:
    life = uploaded(place)
    life.session.close_stage()
    with pytest.raises(ConnectionError, match="or another one was"):
        life.sum.fix(b"another list")
    life.end()
    assert place.is_exact(Life(place).finish())


def test_a_list_that_does_not_read_back_is_shown_to_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    life, read = uploaded(place), Path.read_bytes
    asked = len(place.asked)

    def lying(self: Path) -> bytes:
        return b"" if self.name == "list" else read(self)

    monkeypatch.setattr(Path, "read_bytes", lying)
    with pytest.raises(ConnectionError, match="cannot be fixed"):
        life.session.close_stage()
    shown = [message_kind(request) for request in place.asked[asked:]]
    assert MessageKind.ONE_MESSAGE_LIST not in shown


def test_a_full_disk_acknowledges_nothing_and_names_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(place)
    life.upload(place.clients[:2])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("secagg.scale.spread.fill", full)
        with pytest.raises(ConnectionError, match="cannot be stored"):
            life.upload([place.clients[2]])
    assert life.session.faults == ()
    again = Life(place)
    assert again.session.awaited == frozenset(place.clients[2:])
    again.upload()
    assert place.is_exact(again.finish())


def test_a_tag_is_of_one_name_one_content_and_one_sum() -> None:
    tag = tag_of(KEY, "name", b"content")
    assert (
        tag
        == tag_of(KEY, "name", b"con", memoryview(b"tent"))
        == AESGCM(hmac.digest(KEY, bind(Label.SPREAD_TAG, b"name"), "sha256")).encrypt(bytes(12), b"", b"content")
    )
    others = [(bytes(32), "name", b"content"), (KEY, "another", b"content"), (KEY, "name", b"Content")]
    assert len({tag, *(tag_of(*other) for other in others)}) == 4


@pytest.mark.parametrize("storage", ["", "memory://"])
def test_an_object_that_is_not_what_was_written_under_its_name_is_lost(tmp_path: Path, storage: str) -> None:
    if storage:
        pytest.importorskip("fsspec")
    objects = Objects((storage or "/") + str(tmp_path), KEY)
    objects.put("name", b"content")
    assert bytes(objects.read("name", 7)) == b"content"
    store, folder = vars(objects)["_store"], vars(objects)["_folder"]
    stored = bytes(store.read(f"{folder}/name", 7 + TAG_BYTES))
    for data in (b"Content" + stored[7:], stored[:-1] + b"x", stored[1:], stored[:7], b"", bytes(len(stored))):
        store.put(f"{folder}/name", (data,))
        store.put(f"{folder}/another", (stored,))
        for name in ("name", "another"):
            with pytest.raises(Lost):
                objects.read(name, 7)
    objects.remove()


def test_no_key_tags_two_contents(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    """All nonces are zero, so each key has one message, even with repeated uploads and restarts."""
    tagged = dict[tuple[bytes, str], bytes]()

    def watching(key: bytes, name: str, *parts: bytes | memoryview) -> bytes:
        data = b"".join(parts)
        assert tagged.setdefault((key, name), data) == data, name
        return tag_of(key, name, *parts)

    monkeypatch.setattr("secagg.scale.storage.tag_of", watching)
    life = uploaded(place)
    client = place.clients[0]
    place.world.salt = "another upload"
    life.end()
    place.sent.pop(client)
    place.world.stored.pop(client)
    again = Life(place)
    with pytest.raises(PeerMisbehaved, match="a second, different answer"):
        again.upload([client])
    assert place.is_exact(again.finish())
    assert len(tagged) >= 18


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("change", ["a word", "zeros", "another piece's sum", "half"])
def test_a_partial_sum_that_is_altered_is_made_again(place: Place, change: str, restarts: bool) -> None:  # noqa: FBT001
    """2^12 more in one masked word would move the opened value by 64, unnoticed."""
    life = uploaded(place)
    changed = place.objects("sums")
    for path in changed:
        data = path.read_bytes()
        match change:
            case "a word":
                words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64).copy()
                words[1] += np.uint64(1 << 12)
                path.write_bytes(words.tobytes() + data[words.nbytes :])
            case "zeros":
                path.write_bytes(bytes(len(data)))
            case "half":
                path.write_bytes(data[: len(data) // 2])
            case _:
                others = [other for other in changed if other.stat().st_size == path.stat().st_size]
                shutil.copy(others[others.index(path) - 1], path)
    if restarts:
        life.end()
        life = Life(place)
    assert place.is_exact(life.finish())


def test_all_partial_sums_that_were_lost_are_made_again_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.settings = {"clients_in_a_task": 1}
    life, reads = uploaded(place), list[str]()
    read = read_sum
    for path in place.objects("sums"):
        path.unlink()

    def noted(objects: Objects, name: str, like: Any) -> Any:
        reads.append(name)
        return read(objects, name, like)

    monkeypatch.setattr(spread, "read_sum", noted)
    assert place.is_exact(life.finish())
    assert len(reads) == 2 * len(set(reads)), "each twice: when it is missed, and when it was made again"


@pytest.mark.parametrize("wrong", [{"clients_in_a_task": 0}, {"patience": 0.0}, {"patience": float("nan")}])
def test_settings_out_of_range_are_refused(place: Place, wrong: dict[str, Any]) -> None:
    place.settings = wrong
    with pytest.raises(InvalidParameters, match="at least one client"):
        Life(place)


def test_a_mark_that_is_forged_in_the_storage_is_no_tag(place: Place) -> None:
    """An attacker with write access to the storage puts its own sum under the coordinator's expected name."""
    life = uploaded(place)
    life.end()
    path = place.objects("sums")[0]
    total = np.zeros((path.stat().st_size - TAG_BYTES) // 8, np.uint64).tobytes()
    name = "/".join(path.parts[-2:])
    path.write_bytes(total + tag_of(bytes(32), name, total))
    assert place.is_exact(Life(place).finish())


@pytest.mark.parametrize("when", ["merging", "fixing", "opening"])
def test_a_storage_that_changes_its_answer_between_two_reads_changes_no_sum(
    place: Place, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The checked buffer is the one that is added, and the sum that fixed the list is the one that is opened."""
    life, read, seen = uploaded(place), FolderStore.read, dict[str, int]()

    def reading(self: FolderStore, name: str, size: int) -> memoryview | None:
        found = read(self, name, size)
        seen[name] = seen.get(name, 0) + 1
        if found and seen[name] == 2 and "/sums/" in name and when == "merging":
            found[3] ^= 1
        return found

    def put(self: State, name: str, data: bytes) -> None:
        for path in place.objects("sums") if when == "fixing" else ():
            alter(path)
        original(self, name, data)

    original = State.put
    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "read", reading)
        patched.setattr(State, "put", put)
        life.session.close_stage()
        if when == "opening":
            for path in place.objects("sums"):
                alter(path)
        assert place.is_exact(life.session.release())


def test_a_retry_that_sees_other_pieces_stores_no_other_sum(place: Place, tmp_path: Path) -> None:
    """A task that lacks a piece stores nothing under its name; one with all pieces always stores the same."""
    life = uploaded(place)
    task = next(life.sum._tasks_of(place.clients[:2]))  # pyright: ignore[reportPrivateUsage]
    task = dataclasses.replace(task, inputs=task.inputs[::-1])
    missing = place.pieces_of(place.clients[0])[0]
    missing.rename(tmp_path / "away")
    before = place.objects("sums")
    with pytest.raises(Lost):
        add(task)
    assert place.objects("sums") == before
    (tmp_path / "away").rename(missing)
    add(task)
    (made,) = set(place.objects("sums")) - set(before)
    data = made.read_bytes()
    add(task)
    assert made.read_bytes() == data
    total = task.cut.zeros(task.piece)
    for client in place.clients[:2]:
        piece = place.pieces_of(client)[0].read_bytes()[:-TAG_BYTES]
        task.cut.add(total, task.piece, piece)
    assert data[:-TAG_BYTES] == b"".join(words.tobytes() for words in total)


def test_a_task_that_is_killed_while_it_writes_stores_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    life = uploaded(place)
    (task, *_) = life.sum._tasks_of(place.clients[4:])  # pyright: ignore[reportPrivateUsage]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    before = place.objects("sums")
    with monkeypatch.context() as patched:
        patched.setattr("secagg.scale.storage.write_whole", killed)
        task = dataclasses.replace(task, inputs=task.inputs[::-1])
        with pytest.raises(KeyboardInterrupt):
            add(task)
    assert place.objects("sums") == before


@pytest.mark.parametrize("harm", ["torn", "zeroed", "zero bytes first", "copied", "of another sum", "put back"])
@pytest.mark.parametrize("name", ["offer", "uploads/00000001-1007", "list"])
def test_a_file_of_the_coordinator_that_was_harmed_is_refused(
    place: Place, tmp_path: Path, name: str, harm: str
) -> None:
    """Regression: a record of 72 zero bytes hid all that followed it, and 7 of 8 clients saw another list."""
    closed(place)
    path = place.state / name
    data = path.read_bytes()
    match harm:
        case "torn":
            path.write_bytes(data[: len(data) // 2])
        case "zeroed":
            path.write_bytes(bytes(len(data)))
        case "zero bytes first":
            path.write_bytes(bytes(72) + data[72:])
        case "copied":
            shutil.copy(place.state / "uploads/00000002-1014", path)
        case "of another sum":
            other = Place(tmp_path / "other")
            closed(other)
            shutil.copy(other.state / name, path)
        case _:
            path.write_bytes(data[:-1])
    with pytest.raises(InvalidParameters, match="it cannot be resumed"):
        Life(place).finish()


def test_a_list_that_was_made_by_nobody_is_shown_to_nobody(place: Place) -> None:
    """An empty file, left by a crash before its content was written, is refused and not overwritten."""
    uploaded(place).end()
    (place.state / "list").touch()
    with pytest.raises(InvalidParameters, match="it cannot be resumed"):
        Life(place)


def test_what_a_crash_left_half_written_is_no_upload(place: Place) -> None:
    life = Life(place)
    life.upload(place.clients[:3])
    life.end()
    (place.state / "uploads" / "00000003-1021.new").write_bytes(b"half")
    (place.state / "list.new").write_bytes(b"half")
    again = Life(place)
    assert again.session.awaited == frozenset(place.clients[3:])
    again.upload()
    assert place.is_exact(again.finish())


def test_sums_that_are_not_those_of_the_list_are_not_opened(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A malicious worker has the key; the record's digests are of the data that the first coordinator read."""
    closed(place)
    for path in place.objects("sums"):
        path.unlink()
    lied = Accumulator.add

    def lying(self: Accumulator, upload: Any) -> None:
        lied(self, upload)
        self.sums[0][:1] += self.sums[0].dtype.type(1 << 12)

    monkeypatch.setattr(Accumulator, "add", lying)
    again = Life(place)
    for ask in (again.finish, lambda: again.sum.open(np.zeros(1))):
        with pytest.raises(ConnectionError, match="sums differ from those of the fixed list"):
            ask()
    assert again.session.faults == ()


def test_a_record_that_is_gone_when_the_list_counts_it_ends_the_sum(place: Place) -> None:
    closed(place)
    (place.state / "uploads" / "00000001-1007").unlink()
    with pytest.raises(ConnectionError, match="the list counts client/1007, but the storage lost its pieces"):
        Life(place).finish()


def test_an_upload_that_was_written_and_not_acknowledged_costs_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client sends it again, and the restarted process counts it once."""
    life, client = Life(place), place.clients[0]

    def failing(_: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("secagg.scale.spread.sync_folder", failing)
        with pytest.raises(ConnectionError, match="cannot be stored"):
            life.upload([client])
    again = Life(place)
    assert again.session.awaited == frozenset(place.clients[1:])
    again.upload()
    assert place.is_exact(again.finish())


def spoil(path: Path, harm: str) -> None:
    if harm == "altered":
        return alter(path)
    data = path.read_bytes()
    path.unlink()
    match harm:
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a link":
            (elsewhere := path.parents[3] / "elsewhere").write_bytes(data)
            path.symlink_to(elsewhere)
        case "longer":
            path.write_bytes(data + b"x")
        case "cut":
            path.write_bytes(data[:-1])
        case "zeros":
            path.write_bytes(bytes(len(data)))
        case _:
            pass
    return None


HARMS = ("missing", "altered", "a folder", "a pipe", "a link", "longer", "cut", "zeros")


@pytest.mark.parametrize("harm", HARMS)
def test_a_piece_that_is_lost_before_the_list_costs_its_client_alone_and_names_nobody(place: Place, harm: str) -> None:
    place.settings = {"clients_in_a_task": 256}
    life, victim = uploaded(place), place.clients[1]
    spoil(place.pieces_of(victim)[1], harm)
    released = life.finish()
    assert place.is_exact(released, set(place.clients) - {victim})
    assert list(released.left_out) == [victim]
    assert released.left_out[victim].culprits == NOBODY
    assert life.session.faults == ()


@pytest.mark.parametrize("harm", HARMS)
def test_a_piece_that_is_lost_after_the_list_ends_the_sum_and_names_nobody(place: Place, harm: str) -> None:
    closed(place)
    spoil(place.pieces_of(place.clients[1])[1], harm)
    for path in place.objects("sums"):
        path.unlink()
    again = Life(place)
    with pytest.raises(ConnectionError, match="but the storage lost its pieces") as failed:
        again.finish()
    assert not hasattr(failed.value, "culprits")
    assert again.session.faults == ()


def test_a_piece_that_is_lost_after_it_was_added_changes_nothing(place: Place) -> None:
    life = uploaded(place)
    life.session.close_stage()
    for path in place.objects("pieces"):
        path.unlink()
    assert place.is_exact(life.session.release())


def test_a_copied_piece_of_another_client_is_not_this_ones(place: Place) -> None:
    place.settings = {"clients_in_a_task": 256}
    life, (one, other, *_) = uploaded(place), place.clients
    shutil.copy(place.pieces_of(one)[0], place.pieces_of(other)[0])
    assert place.is_exact(life.finish(), set(place.clients) - {other})


def test_six_clients_whose_pieces_go_away_one_after_another_are_left_out_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each disappears when the task without the previous one begins."""
    place = Place(tmp_path / "place", LARGE)
    place.settings = {"clients_in_a_task": 256}
    life, going = uploaded(place), list(place.clients[:6])

    class Withdrawing(Engine):
        def submit(self, task: Task) -> None:
            if going and task.piece == 0:
                place.pieces_of(going.pop())[0].unlink()
            super().submit(task)

    monkeypatch.setattr(life.sum, "_engine", Withdrawing())
    released = life.finish()
    assert place.is_exact(released, place.clients[6:])
    assert set(released.left_out) == set(place.clients[:6])


def test_a_sum_that_was_stored_with_a_client_that_is_left_out_is_not_read(place: Place) -> None:
    """Of two runs of one task one stored its sum, and the other found a piece gone."""
    place.settings, victim = {"clients_in_a_task": 256}, place.clients[1]

    class Twice(Engine):
        def wait(self, seconds: float) -> list[Result]:
            results, piece = super().wait(seconds), place.pieces_of(victim)[0]
            if not piece.stat().st_size:
                return results
            piece.write_bytes(b"")
            return [(task, Lost("a piece") if task.piece == 0 else error) for task, error in results]

    life = uploaded(place, Twice())
    assert place.is_exact(life.finish(), set(place.clients) - {victim})


def test_an_empty_storage_is_nobodys_fault(place: Place) -> None:
    place.settings = {"clients_in_a_task": 256}
    life = uploaded(place)
    for path in place.objects("pieces"):
        path.unlink()
    with pytest.raises(ThresholdNotMet):
        life.session.close_stage()
    assert life.session.faults == ()


def test_another_mount_removes_nobody(place: Place, tmp_path: Path) -> None:
    """A worker that reports all pieces missing, although the coordinator has them, uses another storage."""

    class Elsewhere(Engine):
        def submit(self, task: Task) -> None:
            super().submit(dataclasses.replace(task, storage=str(tmp_path / "elsewhere")))

    with pytest.raises(ConnectionError, match=r"after 3 retries: a task cannot read .*, although it exists"):
        whole(place, Elsewhere())


def test_a_storage_that_fails_for_a_moment_costs_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    life, read, failures = uploaded(place), FolderStore.read, ["it fails", "nothing is there"]

    def failing(self: FolderStore, name: str, size: int) -> memoryview | None:
        if not failures or "/pieces/" not in name:
            return read(self, name, size)
        if failures.pop() == "it fails":
            raise OSError(5, "Input/output error")
        return None

    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "read", failing)
        assert place.is_exact(life.finish())
    assert not failures


def test_a_sum_that_was_given_up_says_nothing_to_the_next_one(place: Place, tmp_path: Path) -> None:
    """Both share an engine, as groups do."""

    class Late(Engine):
        def wait(self, seconds: float) -> list[Result]:
            return super().wait(seconds) if seconds else []

    engine, other = Late(), Place(tmp_path / "other")
    place.settings = {"clients_in_a_task": 1}
    life = Life(place, engine, is_kept=False)
    life.upload()
    life.session.abort()
    assert other.is_exact(whole(other, engine))


def test_a_storage_that_fails_for_good_ends_the_sum_and_names_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = uploaded(place)

    def failing(*_: object) -> memoryview:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FolderStore, "read", failing)
    with pytest.raises(ConnectionError, match="Input/output error"):
        life.session.close_stage()
    assert life.session.faults == ()


def test_a_sum_is_not_lost_to_what_cannot_be_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(FolderStore, "remove", failing)
    assert place.is_exact(whole(place))
    assert "yourself: [Errno 1]" in caplog.text


def test_a_session_that_was_given_up_goes_on_where_somebody_keeps_it(place: Place) -> None:
    life = uploaded(place)
    life.session.abort()
    assert place.is_exact(Life(place).finish())
    other = Place(place.folder / "other")
    life = Life(other, is_kept=False)
    life.upload()
    life.session.abort()
    assert not list(Path(other.storage).iterdir())
    assert not goes_on(other.state)


def test_who_adds_is_said_before_the_first_upload(place: Place) -> None:
    life = uploaded(place)
    with pytest.raises(Misuse, match="before the first upload"):
        life.session.add_through(lambda _: life.sum)


def test_another_offer_does_not_go_on(place: Place) -> None:
    """Its clients signed for the first one: with another holder key, epoch or setting none of them counts."""
    uploaded(place).end()
    place.setup = SumSetup(population=6, layout=SETUP.layout, minimum_cohort=4)
    with pytest.raises(InvalidParameters, match="has a different offer"):
        Life(place)


@pytest.mark.parametrize("scheme", ["", "local://"])
def test_a_task_holds_two_ranges_and_a_piece(tmp_path: Path, scheme: str) -> None:
    if scheme:
        pytest.importorskip("fsspec")
    setup = SumSetup(population=8, layout=Layout((RingSegment(12, 1 << 18),)))
    place = Place(tmp_path / "place", setup)
    place.settings = {"clients_in_a_task": 256}
    life = closed(place)
    (task, *_) = life.sum._tasks_of(place.clients[:6])  # pyright: ignore[reportPrivateUsage]
    ranges = sum(words.nbytes for words in task.cut.zeros(0))
    add(task)  # Imports and caches.
    read_sum(life.sum._objects, task.output, task.cut.zeros(0))  # pyright: ignore[reportPrivateUsage]
    folder: str = vars(life.sum._objects)["_folder"]  # pyright: ignore[reportPrivateUsage]
    (Path(place.storage) / folder / task.output).unlink()
    task = dataclasses.replace(task, storage=scheme + place.storage)
    tracemalloc.start()
    try:
        add(task)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 2 * ranges + task.cut.lengths[0] + (1 << 17)


@pytest.fixture(params=["folder", "fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FolderStore | FsspecStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "storage")
    pytest.importorskip("fsspec")
    return FsspecStore(f"memory://{tmp_path.name}")


def test_storages_keep_what_they_are_given(store: FolderStore | FsspecStore) -> None:
    store.put("sum/a/1", (b"one", memoryview(b"two")))
    assert bytes(store.read("sum/a/1", 6) or b"") == b"onetwo"
    store.put("sum/a/1", (b"others",), lasts=True)
    assert bytes(store.read("sum/a/1", 6) or b"") == b"others"
    for name, size in (("sum/a/1", 5), ("sum/a/1", 7), ("sum/a/2", 6), ("sum/a", 6), ("sum", 0)):
        assert store.read(name, size) is None
    store.remove("sum")
    assert store.read("sum/a/1", 6) is None
    store.remove("sum")


def test_an_object_that_nobody_may_read_is_lost_and_a_storage_that_fails_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fsspec")
    store = FsspecStore("memory://unreadable")

    def raising(error: Exception) -> Callable[..., bytes]:
        def cat(*_: object, **__: object) -> bytes:
            raise error

        return cat

    for error, kind in (
        (PermissionError(13, "Forbidden"), None),
        (IsADirectoryError("x"), None),
        (RuntimeError("503"), OSError),
        (TimeoutError("slow"), OSError),
    ):
        monkeypatch.setattr(store, "_files", type("Files", (), {"cat_file": staticmethod(raising(error))})())
        with nullcontext() if kind is None else pytest.raises(kind):
            assert store.read("sum/1", 3) is None


def test_another_storage_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(InvalidParameters, match=r"pip install '\.\[storage\]'"):
        Objects("s3://bucket/folder", KEY)


def test_a_storage_that_was_tried_is_empty(tmp_path: Path) -> None:
    storage.require_usable(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParameters, match="use another --storage"):
        storage.require_usable(str(tmp_path / "file"))


def test_a_state_that_others_may_look_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    with pytest.raises(InvalidParameters, match="private to this user"):
        State(tmp_path / "state", InsecureSeededCoins(b""))


def test_the_key_of_a_sum_is_this_users_alone(place: Place) -> None:
    life = Life(place)
    assert {path.stat().st_mode & 0o777 for path in place.state.iterdir()} == {0o600, 0o700}
    life.end()
    (place.state / "key").write_bytes(b"short")
    with pytest.raises(InvalidParameters, match="offer is damaged"):
        Life(place)


def test_owners_are_told_apart(place: Place) -> None:
    """A name contains a piece's owner, number and digest."""
    life = uploaded(place)
    names = [name for names in life.sum._pieces.values() for name in names]  # pyright: ignore[reportPrivateUsage]
    assert len(set(names)) == len(names) == 2 * len(place.clients)
    assert {ClientId(int(name.split("/")[1])) for name in names} == set(place.clients)
