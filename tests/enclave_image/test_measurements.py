"""Measurements that hardware will report for an image, computed before anything runs."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from secagg.cli import main
from secagg.enclave_image import sev_snp
from secagg.enclave_image.nitro import enclave_image, registers
from secagg.enclave_image.sev_snp import launch_digest
from secagg.errors import InvalidParameters
from secagg.platforms.enclave_plug import load_judge
from secagg.protocols.enclave.attestation import PinnedMeasurement

PARTS = {"kernel": b"kernel" * 100, "command_line": b"console=ttyS0", "ramdisks": [b"initramfs" * 50]}
KERNEL_HASHES = 0x10
FOOTER = UUID("96b582de-1fb2-45f7-baea-a366c55a082d").bytes_le
METADATA = UUID("dc886566-984a-4798-a75e-5585a7bf67cc").bytes_le
RESET_BLOCK = UUID("00f771de-1a7e-4fcb-890e-68c77e2fb44e").bytes_le
HASH_TABLE = UUID("7255371f-3a3b-4b04-927b-1da6efa8d454").bytes_le


def image(**changes: object) -> bytes:
    return enclave_image(**{**PARTS, **changes}, version="0")  # type: ignore[arg-type]


NSM, TSM = b"console=none secagg.evidence=nsm", b"console=none secagg.evidence=tsm"
MAGIC, KERNEL, COMMAND_LINE, RAMDISK = b".eif", 1, 2, 3
HEADER, SECTION = struct.Struct(">4sHHQQHH32Q32QII"), struct.Struct(">HHQ")


class Damaged(Exception):
    """An image that cannot be started."""


def read_image(image: bytes) -> tuple[bytes, bytes, list[bytes]]:
    """Return the kernel, the command line and the ramdisks of an image, after checking its checksum."""
    if len(image) < HEADER.size or not image.startswith(MAGIC):
        raise Damaged("it does not begin as one")
    header, body = image[: HEADER.size], image[HEADER.size :]
    if zlib.crc32(body, zlib.crc32(header[:-4])) != int.from_bytes(header[-4:], "big"):
        raise Damaged("its checksum is wrong")
    found: dict[int, list[bytes]] = {KERNEL: [], COMMAND_LINE: [], RAMDISK: []}
    while body:
        if len(body) < SECTION.size:
            raise Damaged("it ends within a section")
        kind, _, size = SECTION.unpack_from(body)
        content, body = body[SECTION.size : SECTION.size + size], body[SECTION.size + size :]
        if len(content) != size:
            raise Damaged("it ends within a section")
        found.setdefault(kind, []).append(content)
    if len(found[KERNEL]) != 1 or len(found[COMMAND_LINE]) != 1 or not found[RAMDISK]:
        raise Damaged("it has no kernel, command line or ramdisk, or two of them")
    return found[KERNEL][0], found[COMMAND_LINE][0], found[RAMDISK]


def test_an_image_is_read_back_and_built_reproducibly() -> None:
    assert read_image(image()) == tuple(PARTS.values())
    assert image() == image()
    assert read_image(image(ramdisks=[b"1", b"", b"3"]))[2] == [b"1", b"", b"3"]


def test_the_checksum_covers_every_byte() -> None:
    made = image()
    for at in range(0, len(made), 7):
        with pytest.raises(Damaged):
            read_image(made[:at] + bytes([made[at] ^ 1]) + made[at + 1 :])
    for length in (0, 4, len(made) - 1):
        with pytest.raises(Damaged):
            read_image(made[:length])


def test_registers_cover_what_the_format_specifies() -> None:
    first, second = registers(b"k", b"c", [b"1", b"2"]), registers(b"k", b"c", [b"1", b"3"])
    assert first["PCR1"] == second["PCR1"]
    assert first["PCR0"] != second["PCR0"]
    assert first["PCR2"] != second["PCR2"]
    extended = hashlib.sha384(bytes(48) + hashlib.sha384(b"kc12").digest()).digest()
    assert first["PCR0"] == extended
    # With one ramdisk, PCR2 is the measurement of an empty section, as in many published images.
    only = registers(b"k", b"c", [b"1"])
    assert only["PCR0"] == only["PCR1"]
    assert only["PCR2"].hex().startswith("21b9efbc18480766")


def firmware(
    kind: int = KERNEL_HASHES, *, named: bool = True, more: int = 0, count: int = 0, behind: int = 0x8000
) -> bytes:
    """Return 64 KiB with only the tables of OVMF."""
    body = bytearray(1 << 16)
    sections: tuple[tuple[int, int, int], ...]
    sections = ((0x800000, 0x9000, 1), (0x80D000, 0x1000, 2), (0x80E000, 0x1000, 3), (0x80F000, 0x1000, kind))
    sections += tuple((0x900000 + 0x1000 * number, 0x1000, 1) for number in range(more))
    struct.pack_into("<4sIII", body, 0x8000, b"ASEV", 16 + 12 * len(sections), 1, count or len(sections))
    for number, section in enumerate(sections):
        struct.pack_into("<III", body, 0x8010 + 12 * number, *section)
    entries = b"".join(
        data + struct.pack("<H", len(data) + 18) + name
        for name, data in (
            (METADATA, struct.pack("<I", behind)),
            (RESET_BLOCK, struct.pack("<I", 0x80B004)),
            (HASH_TABLE, struct.pack("<II", 0x80FC00, 0x400)),
        )
    )
    table = entries + struct.pack("<H", len(entries) + 18) + (FOOTER if named else bytes(16))
    body[-32 - len(table) : -32] = table
    return bytes(body)


@pytest.mark.parametrize(
    ("processor", "count", "digest"),
    [
        (
            "EPYC-v4",
            1,
            "b2eb490251f18e0368e56b65f70c6e146aa0fbc0e05e7417cb78a50239250713dcc33a8008e769d2409bb5c690571392",
        ),
        (
            "EPYC-v4",
            4,
            "457ebe06678dcd0ec6f461e76aa2c7b1704e0230df745d0b48c995052e95fbdba36a3e7c2428e759d488b88997fe61bc",
        ),
        (
            "EPYC-Rome",
            1,
            "3520583b4fef3d04d73f9df613e17f17eb70b977ada14ef0e1c444408ecc1bf456bdf59242b987806e8af7e4ceb49773",
        ),
        (
            "EPYC-Rome",
            4,
            "e327bf30bfc9c29ff41a967cdb7c7d98e0d6f1c0b269eaba34d2bb838f47338e6e84ce9eee48767182a715d913c78d75",
        ),
        (
            "EPYC-Milan",
            1,
            "2759fe4b729487440546ca7d037625a6674e7466e5862d41810dbf2a7d48d30df2e3afc45615b50bc2185f886c3dd427",
        ),
        (
            "EPYC-Milan",
            4,
            "a18d6b0f68e17ce37938c050a6463a379e008c120c3b9fd3854c94a2c6ead9e41220f2fe3e0ea6bcd086e4ed43ab9f7b",
        ),
        (
            "EPYC-Genoa",
            1,
            "2a0e7208ebe15b86453f8aa1581b8219412c2a98fbe324ac128484dd8c963ddbd36f417b671163262224e50f6f298fb4",
        ),
        (
            "EPYC-Genoa",
            4,
            "530c0fcd8800287f1447bccfedb05c9c5effc02ff71ea71503c01be784643e2b3e1e5033456a949c631d44c1959c464e",
        ),
    ],
)
def test_launch_digests_equal_those_of_sev_snp_measure(processor: str, count: int, digest: str) -> None:
    """Expected values: sev-snp-measure 0.0.13, ``calc_launch_digest(SEV_SNP, ..., guest_features=1)``."""
    found = launch_digest(firmware(), b"kernel", b"initramfs", b"console=none", processor=processor, count=count)
    assert found.hex() == digest


def test_every_booted_part_is_measured() -> None:
    def digest(**changes: object) -> bytes:
        usual = {"kernel": b"k", "initramfs": b"i", "command_line": b"c", "processor": "EPYC-Milan"}
        return launch_digest(firmware(), **{**usual, **changes})  # type: ignore[arg-type]

    other = [
        digest(kernel=b"K"),
        digest(initramfs=b"I"),
        digest(command_line=b"c "),
        digest(processor="EPYC-Rome"),
        digest(count=2),
        digest(features=5),
    ]
    assert len({digest(), *other}) == 1 + len(other)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (firmware(kind=1), "does not verify what it boots"),
        (firmware(kind=9), "does not verify what it boots"),
        (firmware(named=False), "the table at its end is missing"),
        (b"", "not a multiple of the page size"),
        (firmware()[:-1], "not a multiple of the page size"),
        (firmware(count=1 << 31), "table is damaged"),
        (firmware(behind=1 << 20), "table is damaged"),
        (bytes(1 << 16), "the table at its end is missing"),
    ],
)
def test_a_firmware_that_does_not_verify_the_kernel_is_refused(given: bytes, sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        launch_digest(given, b"", b"", b"", processor="EPYC-Milan")


def test_all_sections_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host could fill a section that is left out, without changing the digest."""
    measured = list[int]()

    def noted(*page: Any) -> None:
        measured.append(page[2])

    monkeypatch.setattr(sev_snp._DigestOfPages, "page", noted)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    launch_digest(firmware(more=99), b"", b"", b"", processor="EPYC-Milan")
    assert {0x900000 + 0x1000 * number for number in range(99)} <= set(measured)


@pytest.mark.parametrize(("processor", "count"), [("EPYC", 1), ("EPYC-Milan", 0)])
def test_an_unknown_processor_is_refused(processor: str, count: int) -> None:
    with pytest.raises(InvalidParameters):
        launch_digest(firmware(), b"", b"", b"", processor=processor, count=count)


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in (("vmlinuz", b"kernel"), ("initramfs", b"initramfs"), ("cmdline", NSM + b"\n")):
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_client_reads_the_policy_that_is_written_for_nitro(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["enclave", "measure", "nitro", str(folder)]) == 0
    (folder / "policy.json").write_text(capsys.readouterr().out)
    (accepted,) = load_judge(folder / "policy.json").policy.accepted
    assert isinstance(accepted, PinnedMeasurement)
    assert accepted.registers == registers(b"kernel", NSM, [b"initramfs"])
    assert read_image((folder / "image.eif").read_bytes()) == (b"kernel", NSM, [b"initramfs"])


def test_a_policy_for_snp_pins_the_launch_digest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "firmware").write_bytes(firmware())
    (folder / "cmdline").write_bytes(TSM)
    command = ["enclave", "measure", "snp", str(folder), "--firmware", str(folder / "firmware")]
    assert main([*command, "--processors", "4"]) == 0
    digest = launch_digest(firmware(), b"kernel", b"initramfs", TSM, processor="EPYC-Milan", count=4)
    assert json.loads(capsys.readouterr().out) == {"format": "sev-snp", "accepted": [{"MEASUREMENT": digest.hex()}]}


def test_a_missing_file_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "initramfs").unlink()
    assert main(["enclave", "measure", "nitro", str(folder)]) == 2
    assert f"cannot read {folder / 'initramfs'}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["nitro", "snp"])
def test_a_pin_that_can_never_match_is_omitted(folder: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    (folder / "firmware").write_bytes(firmware())
    more, (own, *others) = (
        ([], [NSM, TSM]) if kind == "nitro" else (["--firmware", str(folder / "firmware")], [TSM, NSM])
    )
    for line in (
        *others,
        b"console=none secagg.evidence=simulated",
        b"console=none",
        own + b" secagg.evidence=simulated",
    ):
        (folder / "cmdline").write_bytes(line)
        assert main(["enclave", "measure", kind, str(folder), *more]) == 2
        found = capsys.readouterr()
        assert "cannot start on this hardware; build it with --evidence" in found.err
        assert not found.out
    (folder / "cmdline").write_bytes(own)
    assert main(["enclave", "measure", kind, str(folder), *more]) == 0


def test_a_missing_firmware_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cmdline").write_bytes(TSM)
    assert main(["enclave", "measure", "snp", str(folder), "--firmware", str(folder / "OVMF.fd")]) == 2
    assert "give the firmware that QEMU boots" in capsys.readouterr().err
