"""Nitro documents of our own: what they claim, and each way in which one is no document."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import MalformedMessage, Reason
from secagg.protocols.enclave.attestation import Claims, EvidenceFormat, nitro

Refusal = Callable[..., Reason]
NITRO = EvidenceFormat.NITRO


@pytest.fixture
def claims_of(verify: Callable[..., Claims], self_made: ModuleType) -> Callable[..., Claims]:
    def run(**changes: Any) -> Claims:
        return verify(NITRO, self_made.nitro.NitroDocument(**changes).encode())

    return run


def test_a_document_claims_its_registers_and_user_data(claims_of: Callable[..., Claims], self_made: ModuleType) -> None:
    claims = claims_of()
    now = self_made.authority.NOW
    registers = self_made.nitro.registers()
    assert claims.format is NITRO
    assert claims.measurement == {f"PCR{index}": value for index, value in registers.items()}
    assert claims.signer == registers[8]
    assert claims.report_data == self_made.nitro.BIND
    assert not claims.debug
    assert not claims.migratable
    assert claims.issued_at == (now - timedelta(seconds=5)).replace(microsecond=0)
    assert claims.not_after == now + timedelta(hours=2)
    assert (claims.tcb, claims.privilege_level, claims.revoked_as_of) == (None, None, None)


def test_the_identity_of_a_document_is_what_its_signature_covers(
    claims_of: Callable[..., Claims], self_made: ModuleType
) -> None:
    payload = self_made.nitro.NitroDocument().payload()
    signed = cbor2.dumps(["Signature1", b"\xa1\x01\x38\x22", b"", payload])
    # Two signatures differ, and the evidence is the same.
    assert claims_of().signed_digest == claims_of().signed_digest == hashlib.sha256(signed).digest()


def test_absent_user_data_is_no_binding(claims_of: Callable[..., Claims]) -> None:
    assert claims_of(fields={"user_data": None}).report_data == b""
    assert claims_of(without=("user_data", "nonce", "public_key")).report_data == b""
    assert claims_of(fields={"public_key": b"key", "nonce": b"nonce"}).debug is False


@pytest.mark.parametrize("zeroed", [(0,), (1,), (2,), (0, 1, 2)])
def test_an_image_register_of_zeros_is_a_debug_build(
    claims_of: Callable[..., Claims], self_made: ModuleType, zeroed: tuple[int, ...]
) -> None:
    registers = self_made.nitro.registers() | {index: bytes(48) for index in zeroed}
    assert claims_of(fields={"pcrs": registers}).debug


def test_a_document_is_from_between_the_certificate_and_now(
    claims_of: Callable[..., Claims], self_made: ModuleType, refusal: Refusal
) -> None:
    now = int(self_made.authority.NOW.timestamp() * 1000)
    early = now - 3_600_000
    skew = 300_000
    for within in (early, now, now + skew):
        claims_of(fields={"timestamp": within})
    for outside in (early - 1, now + skew + 1, 0, nitro.LAST_MILLISECOND):
        fields = {"timestamp": outside}
        assert refusal(partial(claims_of, fields=fields), "is dated") is Reason.ATTESTATION_INVALID


@pytest.mark.parametrize(
    "fields",
    [
        {"digest": "SHA256"},
        {"digest": None},
        {"pcrs": None},
        {"pcrs": []},
        {"pcrs": {0: bytes(48), 1: bytes(48)}},
        {"pcrs": {0: bytes(48), 1: bytes(48), 2: bytes(32)}},
        {"pcrs": {0: bytes(48), 1: bytes(48), 2: "x" * 48}},
        {"pcrs": {0: bytes(48), 1: bytes(48), 2: bytes(48), 32: bytes(48)}},
        {"pcrs": {0: bytes(48), 1: bytes(48), 2: bytes(48), -1: bytes(48)}},
        {"pcrs": {False: bytes(48), 1: bytes(48), 2: bytes(48)}},
        {"timestamp": -1},
        {"timestamp": 1.5},
        {"timestamp": True},
        {"timestamp": nitro.LAST_MILLISECOND + 1},
        {"timestamp": 1 << 70},
        {"user_data": "text"},
        {"user_data": 7},
        {"cabundle": None},
        {"cabundle": [b""] * 6},
        {"cabundle": ["text"]},
        {"cabundle": {0: b""}},
        {"certificate": None},
        {"certificate": b""},
    ],
    ids=str,
)
def test_a_field_of_another_type_or_range_is_malformed(
    claims_of: Callable[..., Claims], fields: dict[str, Any]
) -> None:
    with pytest.raises(MalformedMessage):
        claims_of(fields=fields)


def test_a_document_of_a_tpm_is_refused_and_the_error_says_why(
    verify: Callable[..., Claims], self_made: ModuleType, refusal: Refusal, repository: Path
) -> None:
    document = self_made.nitro.NitroDocument(fields={"nitrotpm_pcrs": {4: bytes(48)}}, without=("pcrs",)).encode()
    why = "registers measure the boot of an EC2 instance and cannot be pinned"
    assert refusal(partial(verify, NITRO, document), why) is Reason.ATTESTATION_REFUSED
    readme = (repository / "protocols" / "enclave" / "README.md").read_text(encoding="utf-8")
    assert "| NitroTPM documents, of EC2 instances | their registers measure the boot of an instance" in readme


def test_what_no_hardware_has_signed_is_refused_by_name(
    verify: Callable[..., Claims], self_made: ModuleType, refusal: Refusal, repository: Path
) -> None:
    emulated = self_made.nitro.NitroDocument().encode()[:-98] + b"\x58\x40" + bytes(64)
    assert refusal(partial(verify, NITRO, emulated), "QEMU's emulated security module") is Reason.ATTESTATION_REFUSED
    token = b"eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxIn0.c2ln"
    assert refusal(partial(verify, NITRO, token), "Google's Confidential Space") is Reason.ATTESTATION_REFUSED
    for form in (EvidenceFormat.SNP, EvidenceFormat.TDX):
        paravisor = partial(verify, form, b"HCLA" + bytes(1020))
        assert refusal(paravisor, "evidence of Azure's paravisor") is Reason.ATTESTATION_REFUSED
    readme = (repository / "protocols" / "enclave" / "README.md").read_text(encoding="utf-8")
    assert "| **Azure's confidential machines**, SEV-SNP and TDX |" in readme
    assert "| tokens of Google's Confidential Space |" in readme
    assert "| QEMU's emulation of Nitro |" in readme


def test_the_envelope_has_one_form(verify: Callable[..., Claims], self_made: ModuleType) -> None:
    document = self_made.nitro.NitroDocument().encode()
    payload = self_made.nitro.NitroDocument().payload()
    forms = {
        "tagged": b"\xd2" + document,
        "an open header": document[:6] + b"\xa1\x01\x02" + document[7:],
        "another algorithm": document[:5] + b"\x26" + document[6:],
        "a longer length": document[:7] + b"\x5a\0\0" + document[8:],
        "a signature of another length": document[:-98] + b"\x58\x5f" + document[-96:-1],
        "a signature header of another kind": document[:-98] + b"\x78\x60" + document[-96:],
        "nothing": b"",
        "the opening alone": document[:9],
        "a short payload": document[:8] + b"\0\xff" + payload[:255] + document[-98:],
        "a byte more": document + b"\0",
        "a byte less": document[:-1],
    }
    for name, form in forms.items():
        with pytest.raises(MalformedMessage):
            pytest.fail(f"{name}: {verify(NITRO, form)}")


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"\xa1\x66digest\xd8\x23\x63(((", "0xd8"),
        (b"\xbf\x66digest\x66SHA384\xff", "0xbf"),
        (b"\xa2\x66digest\x66SHA384\x66digest\x66SHA384", "unknown or duplicate"),
        (b"\xa1\x65other\x00", "duplicate field 'other'"),
        (b"\xa1\x78\x06digest\x66SHA384", "0x78"),
        (b"\xa1\x69timestamp\x19\x00\x01", "0x19"),
        (b"\xa1\x69timestamp\x1c", "0x1c"),
        (b"\xa1\x64pcrs\xb8\x21", "0xb8"),
        (b"\xa1\x64pcrs\xa2\x00\x58\x30" + bytes(48) + b"\x00\x58\x30" + bytes(48), "once"),
        (b"\xa1\x68cabundle\x86", "0x86"),
        (b"\xa1\x69module_id\x61\xe9", "ASCII"),
    ],
)
def test_the_payload_has_one_form(claims_of: Callable[..., Claims], payload: bytes, said: str) -> None:
    with pytest.raises(MalformedMessage, match=re.escape(said)):
        claims_of(raw_payload=payload + bytes(max(0, 256 - len(payload))))


def test_bytes_after_the_payload_are_refused(claims_of: Callable[..., Claims], self_made: ModuleType) -> None:
    with pytest.raises(MalformedMessage, match="follow the fields"):
        claims_of(raw_payload=self_made.nitro.NitroDocument().payload() + b"\0")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_what_an_independent_encoder_writes_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever is read is what cbor2 reads; and what is refused is not a document of AWS's."""
    fields = {
        "module_id": st.text(st.characters(max_codepoint=127), max_size=40),
        "digest": st.just("SHA384"),
        "timestamp": st.integers(0, nitro.LAST_MILLISECOND),
        "pcrs": st.integers(3, 32).map(lambda count: {index: bytes([index]) * 48 for index in range(count)}),
        "certificate": st.binary(max_size=70_000),
        "cabundle": st.lists(st.binary(max_size=300), max_size=5),
        "public_key": st.none() | st.binary(max_size=30),
        "user_data": st.none() | st.binary(max_size=30),
        "nonce": st.none() | st.binary(max_size=30),
    }
    names = data.draw(st.permutations(sorted(fields)))
    drawn = {name: data.draw(fields[name]) for name in names}
    encoded = cbor2.dumps(drawn)
    read = nitro.read_payload(encoded)
    assert {name: getattr(read, name) for name in drawn} == {
        name: b"" if value is None else value for name, value in drawn.items()
    }
    with pytest.raises(MalformedMessage):
        nitro.read_payload(encoded[:-1])
