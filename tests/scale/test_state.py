"""Files of a coordinator and of a storage, one by one: the state after a failure, and the order of deletion."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from secagg.errors import InvalidParameters
from secagg.scale import spread as state_module
from secagg.scale.spread import LIST, OFFER, OVER, UPLOADS, RecordedCoins, State
from secagg.scale.storage import FolderStore, FsspecStore, located, require_usable
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.planted import always


def made(folder: Path) -> State:
    return State(folder, InsecureSeededCoins(bytes(32)))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def lost(_: int) -> None:
    raise OSError("the disk is lost")


def test_a_state_that_another_has_is_let_go(tmp_path: Path) -> None:
    with closing(made(tmp_path / "state")) as state:
        before = open_files()
        with pytest.raises(InvalidParameters, match="is in use"):
            made(tmp_path / "state")
        assert open_files() == before
        state.close()
        assert open_files() == before - 1


def test_a_sum_is_forgotten_from_its_offer_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between leaves files that no process resumes."""
    done, unlink = list[str](), Path.unlink

    def removed(self: Path, *, missing_ok: bool = False) -> None:
        done.append(self.name.removesuffix(".erased"))
        unlink(self, missing_ok=missing_ok)

    def flushed(_: Path) -> None:
        done.append("flushed")

    with closing(made(tmp_path / "state")) as state:
        for name in (OFFER, f"{UPLOADS}/one", LIST, OVER):
            state.put(name, b"data")
        monkeypatch.setattr(Path, "unlink", removed)
        monkeypatch.setattr(state_module, "sync_folder", flushed)
        state.clear()
    assert done == [OFFER, "flushed", "one", LIST, "key", OVER]
    assert sorted(path.name for path in (tmp_path / "state").rglob("*")) == ["lock", UPLOADS]


def test_what_is_written_takes_the_place_of_what_a_crash_left(tmp_path: Path) -> None:
    with closing(made(tmp_path / "state")) as state:
        (tmp_path / "state" / f"{OFFER}.new").write_bytes(b"half")
        state.put(OFFER, b"data")
        assert state.get(OFFER) == b"data"
        assert not list((tmp_path / "state").glob("*.new"))


def test_a_file_that_is_not_flushed_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(made(tmp_path / "state")) as state:
        before = open_files()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", lost)
            with pytest.raises(OSError, match="is lost"):
                state.put(OFFER, b"data")
        assert state.get(OFFER) is None
        assert open_files() == before


def test_an_object_that_is_not_flushed_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, before = FolderStore(tmp_path), open_files()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lost)
        with pytest.raises(OSError, match="is lost"):
            store.put("sum/object", (b"data",), lasts=True)
    assert not list((tmp_path / "sum").iterdir())
    assert open_files() == before


def test_an_object_is_read_whole_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, before, readv = FolderStore(tmp_path), open_files(), os.readv
    store.put("object", (b"some ", b"data"))

    def short(number: int, buffers: list[memoryview]) -> int:
        return readv(number, [buffers[0][:2]])

    monkeypatch.setattr(os, "readv", short)
    read = store.read("object", 9)
    assert read is not None
    assert bytes(read) == b"some data"
    assert (store.read("object", 8), store.read("object", 10), store.read("other", 9)) == (None, None, None)
    assert open_files() == before
    monkeypatch.setattr(os, "readv", always(0))
    assert store.read("object", 9) is None, "it became shorter while it was read"


def test_an_offer_that_could_not_be_written_down_is_written_before_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(made(tmp_path / "state")) as state:
        coins = RecordedCoins(state, InsecureSeededCoins(bytes(32)))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", lost)
            with pytest.raises(OSError, match="is lost"):
                coins.require_offer(b"an invitation")
        coins.require_offer(b"an invitation")
        assert state.get(OFFER) is not None


# --- Storages ---------------------------------------------------------------------------------------------------------


def test_an_address_does_not_depend_on_the_current_folder() -> None:
    assert located("sums") == str(Path.cwd() / "sums")
    assert located("file:///srv/sums") == "/srv/sums"
    assert located("s3://bucket/sums") == "s3://bucket/sums"


def test_a_storage_that_gives_nothing_back_is_not_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_usable(str(tmp_path))
    monkeypatch.setattr(FolderStore, "read", always(None))
    with pytest.raises(InvalidParameters, match="use another --storage"):
        require_usable(str(tmp_path))


def test_what_cannot_be_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(_: Path, *, ignore_errors: bool = False) -> None:
        assert ignore_errors

    store = FolderStore(tmp_path)
    store.put("sum/object", (b"data",))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", kept)
        with pytest.raises(OSError, match="not everything can be removed"):
            store.remove("sum")
    store.remove("sum")
    assert not list(tmp_path.iterdir())


def test_folders_of_an_address_are_made_before_its_objects(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store = FsspecStore(f"local://{tmp_path}/deep")
    store.put("sum/pieces/one", (b"some ", b"data"))
    assert (tmp_path / "deep" / "sum" / "pieces" / "one").read_bytes() == b"some data"
