"""The state of a party: kills, full disks, copies, restores, forks, other processes, overlay file systems."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from secagg.cli import main
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved
from secagg.session import durable, store
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.store import Store
from tests.harness.planted import always
from tests.harness.quickest import quickest

NAME = b"n" * 16
OVERLAYFS = 0x794C7630
CHARGING = """
import os, sys
from pathlib import Path
from secagg.session.ledger import Spent, SpentUpdates
ledger = SpentUpdates(Path(sys.argv[1]))
announced, task = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT), sys.argv[2].encode()
number = ledger.last(task)
while True:
    number += 1
    ledger.charge(Spent(task, number))
    os.write(announced, b"%d\\n" % number)
"""
CLAIMING = """
import sys
from pathlib import Path
from secagg.errors import Misuse
from secagg.session.store import Store
store, won = Store(Path(sys.argv[1])), 0
for number in range(20):
    try:
        store.claim(b"n" * 16, number)
        won += 1
    except Misuse:
        pass
print(won)
"""


def is_done(*command: str | Path) -> bool:
    """Run a system command, or skip if this user may not."""
    name, *arguments = map(str, command)
    found = shutil.which(name, path=os.defpath)
    return found is not None and subprocess.run([found, *arguments], capture_output=True, check=False).returncode == 0  # noqa: S603


def python(code: str, *arguments: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 -- this interpreter


def reached(folder: Path) -> int:
    """Return the number of a state, as opened by another process."""
    store = Store(folder)
    try:
        return store.newest(b"a", 1)
    finally:
        store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose state was copied at 1 and is now at 3."""
    folder = tmp_path / "state"
    store = Store(folder)
    store.reach(b"a", 1, 1)
    shutil.copytree(folder, tmp_path / "old")
    for number in (2, 3):
        store.reach(b"a", 1, number)
    store.close()
    return folder


# --- States that are not the newest -----------------------------------------------------------------------------------


def _copied(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("moved"))
    folder.with_name("copy").rename(folder)


def _restored_in_place(folder: Path) -> None:
    (folder / "state.db").write_bytes((folder.with_name("old") / "state.db").read_bytes())


def _restored_by_name(folder: Path) -> None:
    (folder.with_name("old") / "state.db").replace(folder / "state.db")


def _restored_whole(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("old"), folder)


def _truncated(folder: Path) -> None:
    os.truncate(folder / "state.db", 0)


def _removed(folder: Path) -> None:
    (folder / "state.db").unlink()


def _overwritten(folder: Path) -> None:
    (folder / "state.db").write_bytes(b"something else" * 100)


def _marks_removed(folder: Path) -> None:
    for mark in folder.glob("mark.*"):
        mark.unlink()


def _owner_changed(folder: Path) -> None:
    for path in folder.iterdir():
        os.chown(path, os.getuid(), os.getgid())


@pytest.mark.parametrize(
    "spoil",
    [
        *(_copied, _restored_in_place, _restored_by_name, _restored_whole, _truncated, _removed, _marks_removed),
        _overwritten,
        _owner_changed,
    ],
)
def test_a_state_that_may_not_be_the_newest_is_refused(folder: Path, spoil: Callable[[Path], None]) -> None:
    assert reached(folder) == 3
    spoil(folder)
    with pytest.raises(InvalidParameters, match=r"copied, restored|was removed|is damaged"):
        reached(folder)


@pytest.mark.parametrize("uploads", [1, 2])
def test_a_state_that_is_trusted_without_its_marks_cannot_be_removed_either(tmp_path: Path, uploads: int) -> None:
    store = Store(tmp_path / "state")
    for number in range(uploads):
        store.reach(b"a", 1, number + 1)
    store.close()
    _marks_removed(tmp_path / "state")
    Store(tmp_path / "state", trusts=True).close()
    _removed(tmp_path / "state")
    with pytest.raises(InvalidParameters, match="was removed"):
        reached(tmp_path / "state")


def test_a_backup_from_before_the_last_upload_is_refused(folder: Path, tmp_path: Path) -> None:
    """The second newest state names a mark that was touched after the last commit."""
    shutil.copy2(folder / "state.db", tmp_path / "backup")
    store = Store(folder)
    shutil.copy2(folder / "state.db", tmp_path / "backup")
    store.reach(b"a", 1, 4)
    store.close()
    shutil.copyfile(tmp_path / "backup", folder / "state.db")
    with pytest.raises(InvalidParameters, match="copied, restored"):
        reached(folder)


def test_a_restore_under_an_open_state_is_detected(folder: Path) -> None:
    store = Store(folder)
    _restored_in_place(folder)
    with pytest.raises((InvalidParameters, OSError)):
        store.reach(b"a", 1, 4)
    store.close()


def test_a_commit_is_on_disk_before_it_is_announced(folder: Path) -> None:
    """With DELETE and EXTRA the folder is synced after the journal is removed; a power failure cannot restore it.

    Another program that opened the file may have left another mode in it.
    """
    with closing(sqlite3.connect(folder / "state.db")) as rows:
        assert rows.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    with Store(folder).transaction() as rows:
        assert rows.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert rows.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_refused_state_is_left_without_open_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _owner_changed(folder)
    plain, opened = os.open, list[int]()

    def seen(*arguments: Any) -> int:
        opened.append(plain(*arguments))
        return opened[-1]

    monkeypatch.setattr(os, "open", seen)
    with pytest.raises(InvalidParameters, match="copied, restored"):
        Store(folder)
    assert len(opened) == 2
    for each in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)


def test_marks_are_on_disk_before_a_state_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the evidence that a new folder has a database."""
    sync, synced = os.fsync, list[tuple[str, bytes]]()

    def seen(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        synced.append((path.name, path.read_bytes() if path.is_file() else b""))
        sync(number)

    monkeypatch.setattr(os, "fsync", seen)
    opened = Store(tmp_path / "state")
    assert synced == [("mark.1", b""), ("mark.0", b"begun\n"), ("state", b"")]
    synced.clear()
    opened.reach(b"a", 1, 1)
    assert synced == [("mark.0", b"begun\n")]
    opened.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        vars(opened)["_rows"].execute("SELECT 1")


def test_reading_a_state_leaves_its_files_as_they_are(folder: Path) -> None:
    opened = Store(folder)
    before = {path: path.stat().st_ctime_ns for path in folder.iterdir()}
    assert opened.newest(b"a", 1) == 3
    assert {path: path.stat().st_ctime_ns for path in folder.iterdir()} == before
    opened.close()


def test_what_is_deleted_is_overwritten_whatever_the_systems_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sqlite3.connect

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        rows: sqlite3.Connection = plain(*arguments, **options)
        rows.execute("PRAGMA secure_delete = OFF")
        return rows

    monkeypatch.setattr(sqlite3, "connect", connected)
    opened = Store(folder)
    opened.begin(NAME)
    assert NAME in (folder / "state.db").read_bytes()
    opened.end(NAME)
    assert NAME not in (folder / "state.db").read_bytes()
    opened.close()


def test_after_a_rollback_that_failed_nothing_more_is_announced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise later uploads would belong to the transaction that is still open, and never be committed."""
    opened = Store(folder)
    rows = vars(opened)["_rows"]

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(rows, name)

        def execute(self, statement: str, *arguments: Any) -> Any:
            if statement == "ROLLBACK":
                raise sqlite3.OperationalError("disk I/O error")
            return rows.execute(statement, *arguments)

    monkeypatch.setattr(opened, "_rows", Failing())
    with pytest.raises(OSError, match="disk I/O"), opened.transaction():
        raise Misuse("this upload is refused")
    with pytest.raises(OSError, match="disk I/O"):
        opened.reach(b"a", 1, 4)
    opened.close()
    assert reached(folder) == 3


def test_a_folder_may_be_renamed(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    assert reached(folder.with_name("elsewhere")) == 3


def test_an_operator_may_trust_a_touched_state(folder: Path) -> None:
    _owner_changed(folder)
    Store(folder, trusts=True).close()
    assert reached(folder) == 3
    _removed(folder)
    with pytest.raises(InvalidParameters, match="was removed"):
        Store(folder, trusts=True)


def test_a_state_on_another_device_since_boot_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume that was copied block by block, including its marks."""
    rows = Store(folder)
    with rows.transaction() as database:
        database.execute("UPDATE about SET value = value + 1 WHERE name = 'device'")
    rows.close()
    with pytest.raises(InvalidParameters, match="copied, restored"):
        reached(folder)
    monkeypatch.setattr(store, "_BOOT", folder / "none")
    assert reached(folder) == 3


@pytest.mark.parametrize("kind", ["spent", "privacy", "epoch"])
def test_ledgers_of_earlier_versions_are_refused_by_name(folder: Path, kind: str) -> None:
    (folder / f"00ff.{kind}").write_bytes(b"")
    with pytest.raises(InvalidParameters, match=rf"00ff\.{kind} is a ledger of an earlier version"):
        reached(folder)


def test_a_state_of_a_newer_version_is_refused_by_name_and_left_unchanged(folder: Path) -> None:
    opened = Store(folder)
    with opened.transaction() as rows:
        rows.execute("PRAGMA user_version = 7")
        rows.execute("DROP TABLE standings")
    newer = r"made by a newer secagg \(state version 7, but this secagg reads 1\)"
    with pytest.raises(InvalidParameters, match=newer):
        opened.reach(b"a", 1, 5)
    opened.close()
    before = (folder / "state.db").read_bytes()
    for trusts in (False, True):  # `secagg node trust` must not bypass this.
        with pytest.raises(InvalidParameters, match=newer):
            Store(folder, trusts=trusts)
    assert (folder / "state.db").read_bytes() == before


def test_a_folder_that_others_can_read_is_refused(folder: Path) -> None:
    folder.chmod(0o750)
    with pytest.raises(InvalidParameters, match="private to this user"):
        reached(folder)


def test_a_clock_that_was_set_back_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder)
    monkeypatch.setattr(store, "_CLOCK_TRIES", 3)
    monkeypatch.setattr(os, "utime", always(None))
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(InvalidParameters, match="machine's clock"):
        opened.reach(b"a", 1, 4)
    assert len(pauses) == 3, "a coarse clock needs time to go on"
    opened.close()


# --- Overlay file systems ---------------------------------------------------------------------------------------------


@contextmanager
def overlays(folder: Path, base: Path) -> Generator[list[Path]]:
    """Mount a folder as an overlay of two others; without the permission, fake the system's answer."""
    mounted = list[Path]()
    for name in ("one", "two"):
        upper, work, place = (base / f"{name}-{part}" for part in ("upper", "work", "place"))
        for each in (upper, work, place):
            each.mkdir(mode=0o700)
        layers = f"lowerdir={folder},upperdir={upper},workdir={work}"
        if is_done("mount", "-t", "overlay", "overlay", "-o", layers, place):
            mounted.append(place)
    patch = pytest.MonkeyPatch()
    places = mounted
    if not mounted:
        patch.setattr(durable, "file_system_of", always(OVERLAYFS))
        places = [folder]
    try:
        yield places
    finally:
        patch.undo()
        for place in mounted:
            assert is_done("umount", place)


def test_two_overlays_over_one_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    with overlays(folder, tmp_path) as places:
        for place in places:
            place.chmod(0o700)
            with pytest.raises(InvalidParameters, match="overlayfs, whose layers can be mounted twice"):
                reached(place)


@pytest.mark.parametrize("name", ["fuse.fuse-overlayfs", "fuse.mergerfs"])
def test_overlays_in_user_space_are_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    device = folder.stat().st_dev
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw - {name} {name} rw\n"
    monkeypatch.setattr(durable, "file_system_of", always(0x65735546))
    plain = Path.read_text

    def read(path: Path, encoding: str | None = None) -> str:
        return line if "mountinfo" in path.name else plain(path, encoding)

    monkeypatch.setattr(Path, "read_text", read)
    with pytest.raises(InvalidParameters, match=name):
        reached(folder)
    line = line.replace(name, "fuse.sshfs")
    assert reached(folder) == 3


def test_file_systems_are_distinguished(tmp_path: Path) -> None:
    assert durable.file_system_of(Path("/proc")) == 0x9FA0
    assert durable.file_system_of(tmp_path) != 0x9FA0
    with pytest.raises(OSError, match="cannot determine"):
        durable.file_system_of(tmp_path / "none")


# --- Processes --------------------------------------------------------------------------------------------------------


def charging(folder: Path, announced: Path) -> subprocess.Popen[str]:
    return python(CHARGING, folder, announced)


def killed(
    folder: Path, announced: list[Path], times: int, start: Callable[[Path, Path], subprocess.Popen[str]] = charging
) -> None:
    """Kill charging processes at varying moments, and compare their announced charges with the recorded ones."""
    for each in announced:
        each.touch()
    running = [start(folder, each) for each in announced]
    try:
        for turn in range(times):
            at = turn % len(announced)
            before = announced[at].stat().st_size
            while announced[at].stat().st_size == before:
                assert [each.poll() for each in running] == [None] * len(running), "the state was refused after a crash"
                time.sleep(0.002)
            time.sleep(turn * 0.037 % 0.05)
            running[at].send_signal(signal.SIGKILL)
            running[at].communicate()
            numbers = announced[at].read_text().split()
            opened = Store(folder)
            with opened.transaction() as rows:
                known = rows.execute("SELECT max(number) FROM uploads WHERE task = ?", (str(announced[at]).encode(),))
                assert known.fetchone()[0] + (1 << 63) >= int(numbers[-1])
                assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            opened.close()
            running[at] = start(folder, announced[at])
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_announced_charges_survive_a_kill(tmp_path: Path) -> None:
    killed(tmp_path / "state", [tmp_path / "announced"], 3)


@pytest.mark.long
def test_announced_charges_survive_four_hundred_kills(tmp_path: Path) -> None:
    killed(tmp_path / "state", [tmp_path / "announced"], 400)


@pytest.mark.parametrize("times", [3, pytest.param(150, marks=pytest.mark.long)])
def test_three_processes_charge_one_folder_and_are_killed_in_turn(tmp_path: Path, times: int) -> None:
    killed(tmp_path / "state", [tmp_path / name for name in ("one", "two", "three")], times)


def in_container(layers: Path, volume: Path | None) -> Callable[[Path, Path], subprocess.Popen[str]]:
    """Return a function that starts a process in a new container, with or without a volume for its state."""

    def start(_: Path, announced: Path) -> subprocess.Popen[str]:
        new = layers / str(len([*layers.iterdir()]))
        for name in ("image", "upper", "work", "root"):
            (new / name).mkdir(parents=True)
        mounts = f"cd {new} && mount -t overlay overlay -o lowerdir=image,upperdir=upper,workdir=work root && "
        mounts += "mkdir -m 700 root/state && " + ("" if volume is None else f"mount --bind {volume} root/state && ")
        command = ["unshare", "-Urm", "sh", "-c", f'{mounts}exec "$@"', "sh", sys.executable, "-c", CHARGING]
        command += [str(new / "root" / "state"), str(announced)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 -- ours

    return start


@pytest.mark.skipif(not is_done("unshare", "-Urm", "true"), reason="this user may make no namespaces")
@pytest.mark.parametrize("times", [2, pytest.param(50, marks=pytest.mark.long)])
def test_a_killed_container_continues_with_its_volume(tmp_path: Path, times: int) -> None:
    for name in ("layers", "volume"):
        (tmp_path / name).mkdir(mode=0o700)
    start = in_container(tmp_path / "layers", tmp_path / "volume")
    killed(tmp_path / "volume", [tmp_path / "announced"], times, start)


@pytest.mark.skipif(not is_done("unshare", "-Urm", "true"), reason="this user may make no namespaces")
def test_a_container_without_a_volume_charges_nothing(tmp_path: Path) -> None:
    """Otherwise the next container would not know the uploads of this one."""
    (tmp_path / "layers").mkdir()
    for _ in range(2):
        process = in_container(tmp_path / "layers", None)(tmp_path, tmp_path / "announced")
        try:
            assert "overlayfs, whose layers can be mounted twice" in process.communicate(timeout=60)[1]
        finally:
            process.kill()
        assert not (tmp_path / "announced").exists()


def test_only_one_of_three_processes_resumes_each_state(folder: Path) -> None:
    opened = Store(folder)
    opened.begin(NAME)
    opened.close()
    running = [python(CLAIMING, folder) for _ in range(3)]
    assert sum(int(process.communicate()[0]) for process in running) <= 20
    opened = Store(folder)
    with opened.transaction() as rows:
        stands = rows.execute("SELECT number FROM suspended").fetchone()[0]
    assert stands <= 20
    with pytest.raises(Misuse):
        opened.claim(NAME, stands - 1)
    opened.close()


def test_another_process_waits_for_the_lock_while_a_mark_is_touched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that starts in between would name the mark that is touched after the commit, and be refused forever."""
    one, other = Store(folder), Store(folder)
    monkeypatch.setattr(store, "_WAIT", 0.0)
    plain, tried = os.utime, list[str]()

    def touched(mark: int) -> None:
        with pytest.raises(InvalidParameters, match="locked by another process"):
            other.reach(b"a", 1, 9)
        tried.append("")
        plain(mark)

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", touched)
        one.reach(b"a", 1, 4)
    assert len(tried) >= 2
    other.reach(b"a", 1, 5)
    for each in (one, other):
        each.close()
    assert reached(folder) == 5


def test_waiting_for_the_lock_leaves_the_processor_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder)
    other = os.open(folder / "mark.0", os.O_RDWR)
    assert durable.locked(other)
    monkeypatch.setattr(store, "_WAIT", 0.2)

    def unlock(_: float) -> None:
        durable.unlock(other)

    monkeypatch.setattr(time, "sleep", unlock)
    opened.reach(b"a", 1, 4)
    os.close(other)
    opened.close()


def test_a_forked_process_reopens_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Store.at(folder)
    assert Store.at(folder) is parent
    monkeypatch.setattr(os, "getpid", always(-1))
    with pytest.raises(Misuse, match="forked"):
        parent.reach(b"a", 1, 4)
    child = Store.at(folder)
    child.reach(b"a", 1, 4)
    monkeypatch.undo()
    assert parent.newest(b"a", 1) == 4


# --- Full disks, and many uploads -------------------------------------------------------------------------------------


def test_a_charge_on_a_full_disk_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """On a small file system in memory, or with a limit on file size if this user may not mount one."""
    small = tmp_path / "small"
    small.mkdir()
    is_mounted = is_done("mount", "-t", "tmpfs", "-o", "size=200k", "none", small)
    if not is_mounted:
        pytest.importorskip("resource").setrlimit(1, (120_000, -1))
    try:
        ledger, number = SpentUpdates(small / "state"), 0
        with pytest.raises(OSError, match=r"full|disk I/O"):  # noqa: PT012
            for number in range(10_000):
                ledger.charge(Spent(bytes(500), number))
        assert ledger.last(bytes(500)) == number - 1
        if is_mounted:
            assert is_done("mount", "-o", "remount,size=4m", small)
        else:
            pytest.importorskip("resource").setrlimit(1, (-1, -1))
        ledger.charge(Spent(bytes(500), number))
        with pytest.raises(PeerMisbehaved):
            ledger.charge(Spent(bytes(500), number))
        Store.at(small / "state").close()
    finally:
        if is_mounted:
            assert is_done("umount", small)


def test_a_charge_after_ten_thousand_others_is_as_fast(tmp_path: Path) -> None:
    """It reads rows by index instead of the whole file."""
    ledger = SpentUpdates(tmp_path / "state")
    with Store.at(tmp_path / "state").transaction() as rows:
        rows.executemany(
            "INSERT INTO uploads VALUES ('', ?, ?, ?, zeroblob(32))",
            ((b"task %d" % (number % 7), number - (1 << 63), number.to_bytes(32)) for number in range(10_000)),
        )
        plans = [
            rows.execute(f"EXPLAIN QUERY PLAN SELECT count(*) FROM uploads WHERE {where}").fetchall()  # noqa: S608
            for where in ("(data, task) = ('', x'00')", "(data, model) = ('', x'00')", "(data, content) = ('', x'00')")
        ]
    assert all("USING" in plan[0][3] for plan in plans)
    uploads = iter(Spent(b"task 1", number, bytes([number % 256]) * 32) for number in range(10_000, 10_010))
    began = time.perf_counter()
    assert quickest(lambda: ledger.charge(next(uploads)), tries=10) < 0.03
    assert (time.perf_counter() - began) / 10 < 1


def test_the_command_trusts_a_clients_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.at(folder)
    SpentUpdates(folder).charge(Spent(b"task", 1))
    _owner_changed(folder)
    with pytest.raises(InvalidParameters, match=r"secagg node trust FOLDER"):
        SpentUpdates(folder).charge(Spent(b"task", 2))
    assert main(["node", "trust", str(folder)]) == 0
    assert "1 uploads of 1 data sets" in capsys.readouterr().out
    SpentUpdates(folder).charge(Spent(b"task", 2))
    assert main(["node", "trust", str(folder / "none")]) == 2
