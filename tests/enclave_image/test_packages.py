"""The parts of an image: what a lock admits, what packages hold, and an archive that is the same every time."""

from __future__ import annotations

import hashlib
import io
import lzma
import platform
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.enclave_image.initramfs import archive, selected
from secagg.enclave_image.packages import PACKAGES, Entry, Files, linked_libraries, locked_packages, resolved, unpacked
from secagg.errors import InvalidParameters


def deb(files: dict[str, bytes], links: dict[str, str] | None = None, member: bytes = b"data.tar.xz") -> bytes:
    """Return a Debian package with these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(f"./{path}")
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        for path, target in (links or {}).items():
            entry = tarfile.TarInfo(f"./{path}")
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    packed = lzma.compress(out.getvalue())
    made = b"!<arch>\n"
    for name, body in ((b"debian-binary", b"2.0\n"), (member, packed)):
        made += (
            name.ljust(16) + b"0".ljust(32) + str(len(body)).encode().ljust(10) + b"`\n" + body + bytes(len(body) % 2)
        )
    return made


def wheel(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archived:
        for path, content in files.items():
            archived.writestr(path, content)
    return out.getvalue()


def lock_of(folder: Path, **packages: bytes) -> Path:
    lines = list[str]()
    for name, content in packages.items():
        (folder / name).write_bytes(content)
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    lock = folder / "lock"
    lock.write_text("# what an image is made of\n\n" + "\n".join(lines) + "\n")
    return lock


def test_only_what_was_locked_is_read(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, one=b"1", two=b"2")
    assert list(locked_packages(lock, tmp_path)) == [("one", b"1"), ("two", b"2")]
    (tmp_path / "two").write_bytes(b"3")
    with pytest.raises(InvalidParameters, match="is not the file that was locked"):
        list(locked_packages(lock, tmp_path))
    (tmp_path / "two").unlink()
    with pytest.raises(InvalidParameters, match="is locked and cannot be read"):
        list(locked_packages(lock, tmp_path))
    for line in ("abc  one", f"{'0' * 64}  ../one", f"{'0' * 64} "):
        lock.write_text(line)
        with pytest.raises(InvalidParameters, match="line 1"):
            list(locked_packages(lock, tmp_path))
    with pytest.raises(InvalidParameters, match="not a readable lock"):
        list(locked_packages(tmp_path / "missing", tmp_path))


def test_packages_are_unpacked() -> None:
    assert unpacked("a.deb", deb({"usr/bin/a": b"a"}, {"lib/b": "/usr/bin/a"})) == {
        "usr/bin/a": Entry(b"a", 0o755),
        "lib/b": Entry(b"", target="/usr/bin/a"),
    }
    assert unpacked("a.whl", wheel({"a/b.py": b"b", "a-1.dist-info/RECORD": b""})) == {
        f"{PACKAGES}/a/b.py": Entry(b"b")
    }


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.rpm", b"", "neither"),
        ("a.deb", b"zip", "not a Debian package"),
        ("a.deb", deb({}, member=b"data.tar.zst"), "only data.tar.xz"),
        ("a.deb", deb({"../../etc/passwd": b""}), "outside of the image"),
        ("a.whl", wheel({"../../../../../x": b""}), "outside of the image"),
    ],
)
def test_other_packages_are_refused(name: str, content: bytes, sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        unpacked(name, content)


def test_links_are_followed_and_never_forever() -> None:
    files: Files = {"a": Entry(b"", target="b"), "b": Entry(b"", target="/lib/c"), "usr/lib/c": Entry(b"c")}
    assert resolved(files, "a") == "usr/lib/c"
    files["usr/lib/c"] = Entry(b"", target="/a")
    with pytest.raises(InvalidParameters, match="loop"):
        resolved(files, "a")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="an ELF file of x86-64")
def test_libraries_of_a_program_are_found_and_a_missing_one_is_named() -> None:
    program = Path(sys.executable).resolve().read_bytes()
    assert {"libc.so.6", "ld-linux-x86-64.so.2"} <= set(linked_libraries(program))
    with pytest.raises(InvalidParameters, match=r"no locked package holds .*add the one that does"):
        selected({"usr/bin/python3.13": Entry(program)}, ())


def read_back(packed: bytes) -> dict[str, tuple[int, bytes]]:
    """Read a cpio archive as a kernel does."""
    at, found = 0, dict[str, tuple[int, bytes]]()
    while True:
        assert packed[at : at + 6] == b"070701"
        fields = [int(packed[at + 6 + 8 * number : at + 14 + 8 * number], 16) for number in range(13)]
        assert (fields[2], fields[3], fields[5]) == (0, 0, 0), "root's, and without a date"
        name = packed[at + 110 : at + 110 + fields[11] - 1].decode()
        start = (at + 110 + fields[11] + 3) // 4 * 4
        if name == "TRAILER!!!":
            assert not packed[start:].strip(b"\0")
            return found
        found[name] = fields[1], packed[start : start + fields[6]]
        at = (start + fields[6] + 3) // 4 * 4


def test_an_archive_has_everything_in_one_order() -> None:
    files: Files = {"b/c": Entry(b"123", 0o755), "a": Entry(b"", target="b/c"), "d": Entry(b"")}
    packed = archive(files)
    assert packed == archive(dict(reversed(files.items())))
    read = read_back(packed)
    assert list(read) == sorted(read)
    assert {"dev", "proc", "sys", "b", "lib", "lib/modules"} <= {
        name for name, (mode, _) in read.items() if mode == 0o40755
    }
    assert read["b/c"] == (0o100755, b"123")
    assert read["a"] == (0o120777, b"b/c")
    assert read["d"] == (0o100644, b"")
    assert read["dev/console"] == (0o20600, b"")


def test_a_lock_without_this_library_or_a_kernel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = ("enclave", "image", "--inputs", str(tmp_path), "--out", str(tmp_path / "out"), "--evidence", "simulated")
    own = wheel({"secagg/__init__.py": b""})
    for packages, sentence in (
        ({"python.deb": deb({})}, "names no wheel of secagg"),
        ({"secagg.whl": own}, "names 0 kernels"),
        ({"secagg.whl": own, "linux-image.deb": deb({"usr/lib/modules/6/x": b""})}, "no driver fs/configfs/configfs"),
    ):
        lock = lock_of(tmp_path, **packages)
        assert main([*image, "--lock", str(lock)]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
