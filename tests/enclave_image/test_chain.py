"""The whole chain: measure an image, pin it, make evidence below a test root, and verify it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from secagg.cli import main
from secagg.enclave_image.nitro import registers
from secagg.errors import PeerMisbehaved
from secagg.platforms.enclave_plug import load_judge
from secagg.protocols.enclave import HardwareJudge, Verifier, endorse, read_collateral, read_endorsement
from secagg.protocols.enclave.attestation import Evidence, EvidenceFormat, Roots
from secagg.protocols.enclave.collateral import encode_collateral
from secagg.protocols.enclave.judge import Endorsement
from secagg.protocols.enclave.machine.evidence import SecurityModule
from secagg.protocols.enclave.remote_enclave import read_attested
from secagg.protocols.enclave.trusted.service import EnclaveService
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave
from secagg.session.identities import load_authority
from secagg.session.store import Store
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, start_of
from tests.harness.evidence_makers import evidence_makers

PARTS = {"vmlinuz": b"kernel", "initramfs": b"the program and all below it", "cmdline": b"secagg.evidence=nsm"}


@pytest.fixture(scope="module")
def makers(repository: Path) -> Iterator[ModuleType]:
    yield from evidence_makers(repository)


def hypervisor(makers: ModuleType, folder: Path, initramfs: bytes) -> SecurityModule:
    """Return the source of an enclave that was started from this image, below a test root."""
    started = registers(PARTS["vmlinuz"], PARTS["cmdline"], [initramfs])
    reported = makers.nitro.registers() | {int(name[3:]): value for name, value in started.items()}

    def ioctl(_file: int, _request: int, message: ctypes.Array[ctypes.c_char]) -> int:
        asked, size, answer, _ = struct.unpack("<QQQQ", message.raw)
        bound = ctypes.string_at(asked, size).partition(b"user_data")[2][2:66]
        document = makers.nitro.NitroDocument(fields={"pcrs": reported, "user_data": bound}).encode()
        said = b"\xa1\x6bAttestation\xa1\x68document\x59" + len(document).to_bytes(2, "big") + document
        ctypes.memmove(answer, said, len(said))
        struct.pack_into("<Q", message, 24, len(said))
        return 0

    (folder / "nsm").write_bytes(b"")
    return SecurityModule(str(folder / "nsm"), ioctl)


@pytest.mark.parametrize("byte", [None, 0, len(PARTS["initramfs"]) - 1])
def test_clients_only_accept_the_measured_image(
    makers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], byte: int | None
) -> None:
    for name, content in PARTS.items():
        (tmp_path / name).write_bytes(content)
    assert main(["enclave", "measure", "nitro", str(tmp_path)]) == 0
    (tmp_path / "policy.json").write_text(capsys.readouterr().out)
    root = hashlib.sha256(makers.nitro.chain()[0].der).digest()
    ours = Roots(nitro=frozenset({root}), amd=frozenset(), intel=frozenset())
    judge: HardwareJudge = replace(load_judge(tmp_path / "policy.json"), verifier=Verifier(ours))

    ran = bytearray(PARTS["initramfs"])
    if byte is not None:
        ran[byte] ^= 1
    source = hypervisor(makers, tmp_path, bytes(ran))
    service = EnclaveService(
        coins=InsecureSeededCoins(b"chain"), quote=lambda report: (source.format, source.quote(report))
    )
    session = InsecureEnclaveSession(EnclaveSetup(), now=makers.authority.NOW)
    offer, evidence = read_attested(service.answer(start_of(session.configuration)))

    def verify() -> None:
        VerifiedEnclave(offer, evidence, configuration=session.configuration, judge=judge, now=session.now)

    if byte is None:
        verify()
        return
    with pytest.raises(PeerMisbehaved, match="no pinned measurement"):
        verify()


def test_a_client_of_an_endorser_accepts_the_image_that_it_measured_and_signed(
    makers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs every step by its command: measure, sign, relay, and the file of a node's operator."""
    for name, content in PARTS.items():
        (tmp_path / name).write_bytes(content)
    assert main(["enclave", "measure", "nitro", str(tmp_path)]) == 0
    (tmp_path / "measured.json").write_text(capsys.readouterr().out)
    key, signed = tmp_path / "endorser.key", tmp_path / "collateral" / "endorsement"
    signed.parent.mkdir()
    assert main(["keys", "authority", "--out", str(key)]) == 0
    endorser = capsys.readouterr().out.split()[-1]
    endorsing = ["enclave", "endorse", str(tmp_path / "measured.json"), "--key", str(key), "--out", str(signed)]
    assert main([*endorsing, "--days", "91"]) == 2
    assert "must last 1 to 90 days" in capsys.readouterr().err
    assert main(endorsing) == 0
    assert f"clients pin the endorser {endorser}" in capsys.readouterr().out
    (tmp_path / "policy.json").write_text(json.dumps({"format": "nitro", "accepted": [{"endorser": endorser}]}))
    policy = load_judge(tmp_path / "policy.json").policy
    (tmp_path / "state").mkdir(mode=0o700)

    root = hashlib.sha256(makers.nitro.chain()[0].der).digest()
    ours = Roots(nitro=frozenset({root}), amd=frozenset(), intel=frozenset())
    document = hypervisor(makers, tmp_path, PARTS["initramfs"]).quote(bytes(64))
    relayed = encode_collateral(read_collateral(signed.parent), read_endorsement(signed.parent))
    now = makers.authority.NOW
    # The command signs with today's date, but the recorded evidence has another date.
    made = endorse(load_authority(key), Endorsement.decode(read_endorsement(signed.parent)).policy, days=7, now=now)
    with closing(Store(tmp_path / "state")) as store:
        judge = HardwareJudge(policy=policy, verifier=Verifier(ours), newest=store)
        with pytest.raises(PeerMisbehaved, match="expired at 20"):
            judge.judge(Evidence(EvidenceFormat.NITRO, document, relayed), bytes(64), now)
        relayed = encode_collateral(None, made.encode())
        judge.judge(Evidence(EvidenceFormat.NITRO, document, relayed), bytes(64), now)
