"""The parts of an image: locks, packages, and a reproducible archive."""

from __future__ import annotations

import hashlib
import io
import lzma
import platform
import struct
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from secagg.cli import main
from secagg.enclave_image import packages
from secagg.enclave_image.image import kernel_of
from secagg.enclave_image.initramfs import archive, selected, write_tree
from secagg.enclave_image.packages import (
    PACKAGES,
    Entry,
    Files,
    add,
    linked_libraries,
    locked_packages,
    require_tree,
    resolved,
    unpacked,
)
from secagg.errors import InvalidParameters


def deb(
    files: dict[str, bytes],
    links: dict[str, str] | None = None,
    member: bytes = b"data.tar.xz",
    others: tuple[tarfile.TarInfo, ...] = (),
) -> bytes:
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
        for entry in others:
            tar.addfile(entry)
    packed = lzma.compress(out.getvalue())
    made = b"!<arch>\n"
    for name, body in ((b"debian-binary", b"2.0\n"), (member, packed)):
        made += (
            name.ljust(16) + b"0".ljust(32) + str(len(body)).encode().ljust(10) + b"`\n" + body + bytes(len(body) % 2)
        )
    return made


def holes() -> tarfile.TarInfo:
    """Return a sparse file that declares 2^50 bytes."""
    entry = tarfile.TarInfo("a")
    entry.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 50)}
    return entry


def asking_for(compression: int) -> bytes:
    """Return a wheel with an unknown compression method."""
    made, method = wheel({"a": b"1"}), compression.to_bytes(2, "little")
    return made[:8] + method + made[10:].replace(b"PK\1\2\x14\3\x14\0\0\0\0\0", b"PK\1\2\x14\3\x14\0\0\0" + method)


def named(path: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.linkname = kind, target
    return entry


def wheel(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archived:
        for path, content in files.items():
            archived.writestr(path, content)
    return out.getvalue()


def lock_of(folder: Path, **contents: bytes) -> Path:
    lines = list[str]()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    lock = folder / "lock"
    lock.write_text("# what an image is made of\n\n" + "\n".join(lines) + "\n")
    return lock


def test_only_files_with_the_locked_digest_are_read(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, one=b"1", two=b"2")
    assert list(locked_packages(lock, tmp_path)) == [("one", b"1"), ("two", b"2")]
    (tmp_path / "two").write_bytes(b"3")
    with pytest.raises(InvalidParameters, match="differs from the lock"):
        list(locked_packages(lock, tmp_path))
    (tmp_path / "two").unlink()
    with pytest.raises(InvalidParameters, match="cannot read the locked package"):
        list(locked_packages(lock, tmp_path))
    for line in ("abc  one", f"{'0' * 64}  ../one", f"{'0' * 64} ", f"{'0' * 64}  one\0"):
        lock.write_text(line)
        with pytest.raises(InvalidParameters, match="line 1"):
            list(locked_packages(lock, tmp_path))
    with pytest.raises(InvalidParameters, match="cannot read the lock"):
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
        ("a.rpm", b"", "must be a .deb"),
        ("a.deb", b"zip", "not a Debian package"),
        ("a.deb", deb({}, member=b"data.tar.zst"), "only data.tar.xz"),
        ("a.deb", deb({"../../etc/passwd": b""}), "outside the image"),
        ("a.whl", wheel({"../../../../../x": b""}), "outside the image"),
        ("a.deb", deb({"usr/bin/\x1b[2J": b""}), "outside the image"),
        ("a.deb", deb({"a": b"1", "./a": b"2"}), "contain different files a"),
        ("a.deb", deb({"a": b"1"}, {"a": "/etc/passwd"}), "contain different files a"),
        ("a.deb", deb({}, others=(named("a", tarfile.CHRTYPE),)), "a is not a file, link or folder"),
        ("a.deb", deb({}, others=(named("a", tarfile.LNKTYPE, "../../etc/passwd"),)), "damaged"),
        ("a.deb", deb({}, others=(holes(),)), "a is not a file, link or folder"),
        ("a.deb", deb({".": b"1"}), "outside the image"),
        ("a.whl", asking_for(99), "damaged: That compression method"),
        ("a.deb", deb({"a": bytes(1000)})[:-200], "damaged"),
        ("a.deb", b"!<arch>\n" + b"x".ljust(48) + b"-60".ljust(10) + b"`\n", "damaged: x has -60 bytes"),
        ("a.deb", b"!<arch>\n" + b"x".ljust(48) + b"many".ljust(10) + b"`\n", "damaged"),
        ("a.whl", wheel({"a": bytes(1000)})[:-20], "damaged"),
        ("a.whl", wheel({"a": b"1" * 2000}).replace(b"1" * 20, b"2" * 20, 1), "damaged"),
    ],
)
def test_malformed_packages_are_refused(name: str, content: bytes, sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        unpacked(name, content)


def test_a_hard_link_is_read_as_its_target() -> None:
    package = deb({"usr/bin/a": b"a"}, others=(named("./usr/bin/b", tarfile.LNKTYPE, "./usr/bin/a"),))
    assert unpacked("a.deb", package)["usr/bin/b"].content == b"a"


def test_a_package_that_unpacks_to_more_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_MOST_BYTES", 1 << 16)
    links = tuple(named(f"b{number}", tarfile.LNKTYPE, "./a") for number in range(9))
    linked = deb({"a": bytes(1 << 13)}, others=links)
    for name, content in (
        ("a.deb", deb({"a": bytes(1 << 16)})),
        ("a.deb", linked),
        ("a.whl", wheel({"a": bytes(1 << 17)})),
    ):
        with pytest.raises(InvalidParameters, match="unpacks to more than 65536 bytes"):
            unpacked(name, content)


def test_no_package_replaces_a_file_of_another_package() -> None:
    """Otherwise the order of the lock would decide which file runs."""
    one: Files = {"usr/bin/a": Entry(b"1")}
    add(one, "same.deb", {"usr/bin/a": Entry(b"1")})
    for other in (Entry(b"2"), Entry(b"1", 0o755), Entry(b"", target="b")):
        with pytest.raises(InvalidParameters, match=r"other\.deb .* different files usr/bin/a"):
            add(one, "other.deb", {"usr/bin/a": other})
    assert one == {"usr/bin/a": Entry(b"1")}


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    """Otherwise unpacking an image to try it could overwrite files of the building machine."""
    require_tree({"usr/lib/a": Entry(b"a"), "usr/lib/b": Entry(b"", target="/etc")})
    for above in (Entry(b"", target="/etc"), Entry(b"a file")):
        with pytest.raises(InvalidParameters, match="usr/lib/b/cron is below usr/lib/b"):
            require_tree({"usr/lib/b/cron": Entry(b"x"), "usr/lib/b": above})
    write_tree({"usr/a": Entry(b"here"), "b": Entry(b"", target="/usr/a")}, tmp_path)
    assert (tmp_path / "b").read_bytes() == b"here"


@pytest.mark.parametrize(
    "program",
    [b"", b"#!/bin/sh", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(100)],
    ids=["empty", "a script", "ends early", "32 bits"],
)
def test_files_that_are_not_programs_are_refused(program: bytes) -> None:
    with pytest.raises(InvalidParameters, match="program or library of the image"):
        linked_libraries(program)


def test_damaged_programs_are_refused_or_read() -> None:
    headers = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, 400, 400, 0) + struct.pack(
        "<IIQQQQQQ", 2, 0, 176, 0, 0, 32, 32, 0
    )
    program = bytearray(b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<Q", 64))
    program = program.ljust(54, b"\0") + struct.pack("<HH", 56, 2)
    program = program.ljust(64, b"\0") + headers + struct.pack("<QQQQ", 5, 208, 1, 1) + b"\0libx.so.1\0"
    assert linked_libraries(bytes(program)) == ["libx.so.1"]
    for at in range(6, 208):
        for value in (0, 1, 0x7F, 0xFF):
            changed = bytearray(program)
            changed[at] = value
            with suppress(InvalidParameters):
                linked_libraries(bytes(changed))


def test_links_are_followed_but_loops_are_refused() -> None:
    files: Files = {"a": Entry(b"", target="b"), "b": Entry(b"", target="/lib/c"), "usr/lib/c": Entry(b"c")}
    assert resolved(files, "a") == "usr/lib/c"
    files["usr/lib/c"] = Entry(b"", target="/a")
    with pytest.raises(InvalidParameters, match="leads back to itself"):
        resolved(files, "a")
    with pytest.raises(InvalidParameters, match="points to usr/d, which no locked package contains"):
        resolved({"a": Entry(b"", target="usr/../usr/d")}, "a")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="an ELF file of x86-64")
def test_the_libraries_of_a_program_are_found_and_a_missing_one_is_named() -> None:
    program = Path(sys.executable).resolve().read_bytes()
    assert {"libc.so.6", "ld-linux-x86-64.so.2"} <= set(linked_libraries(program))
    with pytest.raises(InvalidParameters, match=r"no locked package contains .*; add "):
        selected({"usr/bin/python3.13": Entry(program)}, ())


def read_back(packed: bytes) -> dict[str, tuple[int, bytes]]:
    """Read a cpio archive as the kernel does."""
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


def test_an_archive_is_written_in_path_order() -> None:
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
    for held, sentence in (
        ({"python.deb": deb({})}, "lists no wheel of secagg"),
        ({"secagg.whl": own}, "lists 0 kernels"),
        ({"secagg.whl": own, "linux-image.deb": deb({"usr/lib/modules/6/x": b""})}, "no driver fs/configfs/configfs"),
    ):
        lock = lock_of(tmp_path, **held)
        assert main([*image, "--lock", str(lock)]) == 2
        assert sentence in capsys.readouterr().err
    lock = tmp_path / "lock"
    for word in ("virtio:x module.sig_enforce=0", 'virtio:"x"', "virtio:x\0"):
        assert main([*image, "--lock", str(lock), "--listen", word]) == 2
        assert "letters, digits and _:./-" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--listen", "tcp:127.0.0.1:5000", "--evidence", "tsm"],
            "an image's --listen must be vsock:PORT or virtio:NAME",
        ),
        (["--listen", "unix:/tmp/enclave.sock", "--evidence", "tsm"], "got unix:/tmp/enclave.sock"),
        (["--listen", f"vsock:{2**32 - 1}", "--evidence", "tsm"], "an image's --listen must be vsock:PORT"),
        (["--listen", "virtio:", "--evidence", "tsm"], "an image's --listen must be"),
        (["--evidence", "gramine"], "Gramine uses no image"),
        (["--evidence", "nsm", "--acpi"], "--acpi requires --evidence tsm"),
    ],
)
def test_an_image_that_no_host_could_reach_or_start_is_not_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    out = tmp_path / "out"
    command = ["enclave", "image", "--lock", str(tmp_path / "lock"), "--inputs", str(tmp_path), "--out", str(out)]
    assert main([*command, *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


def test_a_kernel_may_be_locked_as_a_file_with_its_drivers() -> None:
    """For example AWS's kernel for Nitro enclaves."""
    lock, bare = Path("lock"), {"bzImage": Entry(b"kernel"), "nsm.ko": Entry(b"nsm"), "a.ko": Entry(b"a")}
    kernel, drivers = kernel_of(lock, bare)
    assert kernel == b"kernel"
    # Drivers are loaded in the order of their names, which is the order of the lock.
    assert drivers == {"lib/modules/00-nsm.ko": Entry(b"nsm"), "lib/modules/01-a.ko": Entry(b"a")}
    for files in ({**bare, "usr/lib/modules/6/x": Entry(b"")}, {"nsm.ko": Entry(b"nsm")}):
        with pytest.raises(InvalidParameters, match=r"lists [20] kernels; an image needs one linux-image package or"):
            kernel_of(lock, files)
