"""SGX and TDX quotes of our own, and Intel's judgement of the platform that made them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from cryptography import x509

from secagg.errors import MalformedMessage, Misuse, Reason
from secagg.protocols.enclave.attestation import Claims, EvidenceFormat, IntelCollateral, IntelTcb, TcbStatus
from secagg.protocols.enclave.attestation.intel import verify_sgx

Refusal = Callable[..., Reason]
SGX, TDX = EvidenceFormat.SGX, EvidenceFormat.TDX
SGX_EXTENSION = x509.ObjectIdentifier("1.2.840.113741.1.13.1")
ENCLAVE = b"\xec" * 32
UP, OUT = TcbStatus.UP_TO_DATE, TcbStatus.OUT_OF_DATE


class Maker:
    """Makes quotes and collateral, and verifies the one with the other."""

    def __init__(self, made: ModuleType, verify: Callable[..., Claims], collateral: Callable[..., Any]) -> None:
        self.made = made.intel
        self.now = made.authority.NOW
        self.authority = made.authority
        self.collateral = collateral
        self._verify = verify

    def sgx(self, collateral: IntelCollateral | None = None, **changes: Any) -> Claims:
        quote = self.made.Quote(**changes).encode()
        return self._verify(SGX, quote, collateral or self.collateral("SGX"))

    def tdx(self, collateral: IntelCollateral | None = None, **changes: Any) -> Claims:
        quote = self.made.tdx_quote(**changes).encode()
        return self._verify(TDX, quote, collateral or self.collateral("TDX"))

    def verify(self, kind: EvidenceFormat, quote: bytes, collateral: IntelCollateral | None = None) -> Claims:
        return self._verify(kind, quote, collateral)

    def judged(self, technology: str, *, info: Any = None, identity: Any = None) -> Claims:
        """Verify a good quote under collateral with some fields changed."""
        name = "QE" if technology == "SGX" else "TD_QE"
        collateral = self.collateral(
            technology,
            info=self.made.tcb_info(technology, **(info or {})),
            identity=self.made.qe_identity(name, **(identity or {})),
        )
        return self.sgx(collateral) if technology == "SGX" else self.tdx(collateral)


LAUNCH = {
    "CONFIGID": bytes(64),
    "CONFIGSVN": bytes(2),
    "ATTRIBUTES": bytes.fromhex("0500000000000000"),
    "XFRM": bytes.fromhex("e700000000000000"),
    "MISCSELECT": bytes(4),
    "ISVPRODID": bytes(2),
    "ISVSVN": bytes(2),
    "ISVEXTPRODID": bytes(16),
    "ISVFAMILYID": bytes(16),
}


@pytest.fixture(scope="module")
def maker(self_made: ModuleType, verify: Callable[..., Claims], intel_collateral: Callable[..., Any]) -> Maker:
    return Maker(self_made, verify, intel_collateral)


# --- Claims -----------------------------------------------------------------------------------------------------------


def test_an_sgx_quote_claims_its_enclave(maker: Maker) -> None:
    claims = maker.sgx()
    assert claims.format is SGX
    assert claims.measurement == {"MRENCLAVE": ENCLAVE, **LAUNCH}
    assert claims.signer == b"\x51" * 32
    assert claims.report_data == maker.made.BIND
    assert claims.signed_digest == hashlib.sha256(maker.made.Quote().signed()).digest()
    assert claims.tcb == IntelTcb(platform=UP, quoting_enclave=UP, module=None, evaluation_number=17)
    assert (claims.debug, claims.migratable, claims.revoked_as_of) == (False, False, maker.authority.START)
    assert claims.not_after == maker.authority.END


@pytest.mark.parametrize(("version", "kind"), [(4, 2), (5, 2), (5, 3)])
def test_a_tdx_quote_claims_its_trust_domain(maker: Maker, version: int, kind: int) -> None:
    claims = maker.tdx(version=version, kind=kind)
    assert claims.format is TDX
    expected = {"MRTD": b"\x3d" * 48} | {f"RTMR{index}": bytes([0xB0 + index]) * 48 for index in range(4)}
    expected |= dict.fromkeys(("MRCONFIGID", "MROWNER", "MROWNERCONFIG"), bytes(48))
    expected |= {"ATTRIBUTES": bytes.fromhex("0000001000000000"), "XFAM": bytes.fromhex("e702060000000000")}
    assert claims.measurement == expected | ({"MRSERVICETD": bytes(48)} if kind == 3 else {})
    assert claims.report_data == maker.made.BIND
    assert claims.tcb == IntelTcb(platform=UP, quoting_enclave=UP, module=UP, evaluation_number=17)
    assert claims.not_after == maker.authority.END
    soon = maker.now + timedelta(hours=1)
    assert maker.judged("TDX", info=maker.made.dates(maker.now, soon)).not_after == soon
    assert (claims.debug, claims.migratable, claims.revoked_as_of) == (False, False, maker.authority.START)
    signed = maker.made.tdx_quote(version=version, kind=kind).signed()
    assert claims.signed_digest == hashlib.sha256(signed).digest()


def test_configuration_by_the_host_is_claimed(maker: Maker) -> None:
    sgx = maker.made.enclave_report(report_data=bytes(64), patches={192: b"\1" * 64, 260: b"\2\3"})
    claims = maker.sgx(body=sgx)
    assert claims.measurement == {"MRENCLAVE": ENCLAVE, **LAUNCH, "CONFIGID": b"\1" * 64, "CONFIGSVN": b"\2\3"}
    places = {"MRCONFIGID": 184, "MROWNER": 232, "MROWNERCONFIG": 280, "MRSERVICETD": 600}
    report = maker.made.td_report(kind=3, patches={place: name.encode() for name, place in places.items()})
    claims = maker.tdx(version=5, kind=3, body=report)
    for name in places:
        assert claims.measurement[name] == name.encode().ljust(48, b"\0")


def test_debug_builds_and_migration_are_claimed(maker: Maker) -> None:
    assert maker.sgx(body=maker.made.enclave_report(report_data=bytes(64), patches={48: b"\7"})).debug
    for bit in range(8):
        report = maker.made.td_report(patches={120: bytes([1 << bit])})
        assert maker.tdx(body=report).debug
    migratable = maker.tdx(body=maker.made.td_report(patches={123: b"\x20"}))
    assert migratable.migratable
    assert not migratable.debug


def test_a_quote_without_collateral_has_no_tcb(maker: Maker) -> None:
    for kind, quote in ((SGX, maker.made.Quote()), (TDX, maker.made.tdx_quote())):
        claims = maker.verify(kind, quote.encode())
        assert claims.tcb is None
        assert claims.revoked_as_of is None
        assert claims.not_after == maker.authority.END


# --- Quotes -----------------------------------------------------------------------------------------------------------


def test_one_technology_is_not_the_other(maker: Maker) -> None:
    sgx, tdx = maker.made.Quote().encode(), maker.made.tdx_quote().encode()
    for kind, quote in ((TDX, sgx), (SGX, tdx)):
        with pytest.raises(MalformedMessage):
            maker.verify(kind, quote)
    sgx_only: list[dict[int, bytes]] = [
        {0: b"\4"},
        {0: b"\2"},
        {2: b"\3"},
        {4: b"\x81"},
        {4: b"\1"},
        {12: b"\0"},
        {27: b"\0"},
    ]
    for changes in sgx_only:
        with pytest.raises(MalformedMessage):
            maker.sgx(header_patches=changes)
    for version in (4, 5):
        for patches in ({0: b"\6"}, {0: b"\3"}, {1: b"\1"}, {2: b"\3"}, {4: b"\0"}):
            with pytest.raises(MalformedMessage):
                maker.tdx(version=version, header_patches=patches)


def test_a_version_5_report_has_the_length_of_its_kind(maker: Maker) -> None:
    for kind, size in ((2, 648), (3, 584), (1, 384), (2, 583), (4, 584), (0, 0)):
        with pytest.raises(MalformedMessage):
            maker.verify(TDX, maker.made.tdx_quote(5, kind=kind, body=bytes(size)).encode())
    quote = maker.made.tdx_quote(5).encode()
    for length in (0, 2, 47, 48, 53, 54, 300, 637, 638, 641):
        with pytest.raises(MalformedMessage):
            maker.verify(TDX, quote[:length])


def test_padding_is_cut_and_what_is_within_the_quote_has_one_form(maker: Maker) -> None:
    for tail in (b"\0", b"x", bytes(3065)):
        assert maker.sgx(tail=tail) == maker.sgx()
        assert maker.tdx(version=5, tail=tail) == maker.tdx(version=5)
        with pytest.raises(MalformedMessage):
            maker.sgx(ending=tail + tail)


@pytest.mark.parametrize(
    ("current", "status"), [((5, 3, 9), "UpToDate"), ((6, 3, 9), "UpToDate"), ((4, 3, 9), "OutOfDate")]
)
def test_a_module_that_was_replaced_under_the_guest_is_judged_too(
    maker: Maker, current: tuple[int, ...], status: str
) -> None:
    report = maker.made.td_report(kind=3, patches={584: bytes(current)})
    claims = maker.tdx(version=5, kind=3, body=report)
    assert isinstance(claims.tcb, IntelTcb)
    assert claims.tcb.module == status


def test_a_platform_that_went_back_under_the_guest_is_below_every_level(maker: Maker, refusal: Refusal) -> None:
    report = maker.made.td_report(kind=3, patches={584: bytes([5, 3, 1])})
    reason = refusal(lambda: maker.tdx(version=5, kind=3, body=report), "below every TCB level")
    assert reason is Reason.ATTESTATION_INVALID


def test_a_chain_may_end_in_the_terminator_of_a_string(maker: Maker) -> None:
    assert maker.sgx(ending=b"\0").measurement["MRENCLAVE"] == ENCLAVE


def test_a_quote_that_ends_anywhere_is_refused(maker: Maker) -> None:
    for kind, quote in ((SGX, maker.made.Quote().encode()), (TDX, maker.made.tdx_quote().encode())):
        for length in [*range(0, len(quote), 13), len(quote) - 1]:
            with pytest.raises(MalformedMessage) as caught:
                maker.verify(kind, quote[:length])
            assert caught.value.reason in (Reason.TRUNCATED, Reason.NOT_CANONICAL)


def test_the_lengths_within_a_quote_agree(maker: Maker) -> None:
    quote = maker.made.Quote().encode()
    start = 48 + 384
    (size,) = struct.unpack_from("<I", quote, start)
    authentication, chain = start + 4 + 128 + 384 + 64, start + 4 + 128 + 384 + 64 + 2 + 32
    forms = {
        "a longer signature": struct.pack("<I", size + 1),
        "a shorter signature": struct.pack("<I", size - 1),
        "no signature": struct.pack("<I", 0),
        "the longest signature": b"\xff" * 4,
    }
    changed = [quote[:start] + form + quote[start + 4 :] for form in forms.values()]
    changed += [quote[: start + 4 + length] for length in (0, 64, 127)]
    for place, size_bytes in ((authentication, 2), (chain, 2), (chain + 2, 4)):
        for delta in (1, -1):
            value = int.from_bytes(quote[place : place + size_bytes], "little") + delta
            changed.append(quote[:place] + value.to_bytes(size_bytes, "little") + quote[place + size_bytes :])
    for form in changed:
        with pytest.raises(MalformedMessage):
            maker.verify(SGX, form)


def test_the_quoting_enclave_vouches_for_the_key(maker: Maker, refusal: Refusal) -> None:
    patches = maker.made.qe_patches("QE")
    cases: list[dict[str, Any]] = [{"vouched_key": 5}, {"qe_patches": patches | {383: b"\1"}}]
    for changes in cases:
        assert refusal(partial(maker.sgx, **changes), "a different attestation key") is Reason.ATTESTATION_INVALID
    quote = maker.made.Quote(qe_patches=patches | {48: b"\3"}).encode()
    assert refusal(lambda: maker.verify(SGX, quote), "debug build") is Reason.ATTESTATION_INVALID


def test_a_key_off_the_curve_is_refused(maker: Maker, monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    def point(key: object) -> bytes:
        del key
        return bytes(63) + b"\1"

    monkeypatch.setattr(maker.made, "point", point)
    assert refusal(maker.sgx, "not a point on its curve") is Reason.ATTESTATION_INVALID


def test_the_chain_is_that_of_a_platform(maker: Maker, refusal: Refusal) -> None:
    root, authority, signer = maker.made.authorities()
    pem = maker.authority.pem
    platform = maker.made.platform_certificate()
    named = [(x509.UnrecognizedExtension(SGX_EXTENSION, maker.made.sgx_extension()), False)]
    direct = maker.authority.issue("Intel SGX PCK Certificate", maker.authority.p256(3), root, extensions=named)
    quote = maker.made.Quote(chain=pem(direct, root)).encode()
    assert refusal(lambda: maker.verify(SGX, quote), "its authority's and the root's") is Reason.ATTESTATION_INVALID
    quote = maker.made.Quote(chain=pem(signer, root)).encode()
    assert refusal(lambda: maker.verify(SGX, quote), "does not verify") is Reason.ATTESTATION_INVALID
    plain = maker.authority.issue("Intel SGX PCK Certificate", maker.authority.p256(3), authority)
    quote = maker.made.Quote(chain=pem(plain, authority, root)).encode()
    assert refusal(lambda: maker.verify(SGX, quote), "lacks the extension") is Reason.ATTESTATION_INVALID
    quote = maker.made.Quote(chain=pem(platform, authority)).encode()
    assert refusal(lambda: maker.verify(SGX, quote), "not a pinned root") is Reason.ATTESTATION_INVALID


def test_a_platform_certifies_versions_of_one_byte_and_of_two(maker: Maker) -> None:
    chain = maker.authority.pem(*maker.made.quote_chain(maker.made.sgx_extension(pce_svn=0xFFFF)))
    tcb = maker.sgx(chain=chain).tcb
    assert isinstance(tcb, IntelTcb)
    assert tcb.platform is UP
    with pytest.raises(MalformedMessage):
        maker.sgx(chain=maker.authority.pem(*maker.made.quote_chain(maker.made.sgx_extension(pce_svn=0x10000))))


@pytest.mark.parametrize(
    "extension",
    [b"", b"\x30\x00", b"\x30\x02\x30\x00", b"\x30\x05\x30\x03\x06\x01\x2a", b"\x04\x00", b"\x30\x04\x30\x02\x05\x00"],
    ids=bytes.hex,
)
def test_an_extension_that_does_not_name_the_platform_is_refused(
    maker: Maker, refusal: Refusal, extension: bytes
) -> None:
    chain = maker.authority.pem(*maker.made.quote_chain(extension))
    assert refusal(lambda: maker.sgx(chain=chain))


# --- Collateral -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("technology", ["SGX", "TDX"])
def test_the_first_level_that_is_reached_gives_the_status(maker: Maker, technology: str) -> None:
    made = maker.made
    levels = made.tcb_info(technology)["tcbLevels"]
    versions = list(made.COMPONENTS)
    for index in range(16):
        if versions[index] == 255:
            continue
        above = made.components(*[version + (place == index) for place, version in enumerate(versions)])
        first = {**levels[0], "tcb": {**levels[0]["tcb"], "sgxtcbcomponents": above}}
        tcb = maker.judged(technology, info={"tcbLevels": [first, levels[1]]}).tcb
        assert isinstance(tcb, IntelTcb)
        assert tcb.platform is OUT
        assert tcb.advisories == {"INTEL-SA-2"}
    first = {**levels[0], "tcb": {**levels[0]["tcb"], "pcesvn": made.PCE_SVN + 1}}
    tcb = maker.judged(technology, info={"tcbLevels": [first, levels[1]]}).tcb
    assert isinstance(tcb, IntelTcb)
    assert tcb.platform is OUT


def test_the_versions_of_the_module_are_judged_with_the_platforms(maker: Maker) -> None:
    levels = maker.made.tcb_info("TDX")["tcbLevels"]
    for index in range(16):
        above = [0] * 16
        above[index] = maker.made.TEE_TCB_SVN[index] + 1
        first = {**levels[0], "tcb": {**levels[0]["tcb"], "tdxtcbcomponents": maker.made.components(*above)}}
        tcb = maker.judged("TDX", info={"tcbLevels": [first, levels[1]]}).tcb
        assert isinstance(tcb, IntelTcb)
        # The first two are the module's own, which has levels of its own.
        assert tcb.platform is (UP if index < 2 else OUT)


def test_a_module_without_a_version_is_judged_with_the_platform(maker: Maker, refusal: Refusal) -> None:
    levels = maker.made.tcb_info("TDX")["tcbLevels"]
    body = maker.made.td_report(patches={0: bytes([5, 0, 4])})
    info = maker.made.tcb_info("TDX")
    del info["tdxModuleIdentities"]
    tcb = maker.tdx(maker.collateral("TDX", info=info), body=body).tcb
    assert isinstance(tcb, IntelTcb)
    assert (tcb.platform, tcb.module) == (OUT, None)
    low = {**levels[1], "tcb": {**levels[1]["tcb"], "tdxtcbcomponents": maker.made.components(6)}}
    collateral = maker.collateral("TDX", info=maker.made.tcb_info("TDX", tcbLevels=[levels[0], low]))
    assert refusal(lambda: maker.tdx(collateral, body=body), "below every TCB level") is Reason.ATTESTATION_INVALID
    info["tdxModule"]["mrsigner"] = "01" * 48
    collateral = maker.collateral("TDX", info=info)
    assert refusal(lambda: maker.tdx(collateral, body=body), "module's signer is not") is Reason.ATTESTATION_INVALID


def test_the_module_is_intels_and_has_a_status(maker: Maker, refusal: Refusal) -> None:
    report = maker.made.td_report
    for version, status in ((4, OUT), (5, UP), (6, UP)):
        tcb = maker.tdx(body=report(patches={0: bytes([version, 3])})).tcb
        assert isinstance(tcb, IntelTcb)
        assert tcb.module is status
    cases = {
        "below every version": {0: b"\1\3"},
        "no TDX module TDX_04": {1: b"\4"},
        "module's signer is not": {64: b"\1"},
        "have the attributes": {112: b"\1"},
    }
    for saying, patches in cases.items():
        body = report(patches=patches)
        assert refusal(partial(maker.tdx, body=body), saying) is Reason.ATTESTATION_INVALID
    twice = maker.made.tcb_info("TDX")["tdxModuleIdentities"] * 2
    assert refusal(lambda: maker.judged("TDX", info={"tdxModuleIdentities": twice})) is Reason.ATTESTATION_INVALID


@pytest.mark.parametrize("technology", ["SGX", "TDX"])
def test_the_quoting_enclave_is_intels_and_has_a_status(maker: Maker, refusal: Refusal, technology: str) -> None:
    name = "QE" if technology == "SGX" else "TD_QE"
    run = maker.sgx if technology == "SGX" else maker.tdx
    patches = maker.made.qe_patches(name)
    product = maker.made.QE_PRODUCT[name]
    for version, status in ((4, OUT), (7, OUT), (8, UP), (9, UP)):
        tcb = run(qe_patches=patches | {256: struct.pack("<HH", product, version)}).tcb
        assert isinstance(tcb, IntelTcb)
        assert tcb.quoting_enclave is status
    run(qe_patches=patches | {48: b"\5"})
    cases: dict[str, list[dict[int, bytes]]] = {
        "not Intel's": [{128: b"\0"}, {256: struct.pack("<HH", 3, 8)}],
        "below every version": [{256: struct.pack("<HH", product, 3)}],
        "have the attributes": [{16: b"\1"}, {48: b"\x11"}],
    }
    for saying, changes in cases.items():
        for change in changes:
            made = patches | change
            assert refusal(partial(run, qe_patches=made), saying) is Reason.ATTESTATION_INVALID


def test_collateral_for_other_hardware_is_refused(maker: Maker, refusal: Refusal) -> None:
    for info in ({"fmspc": "00a067110001"}, {"pceId": "0001"}, {"id": "TDX"}):
        assert refusal(partial(maker.judged, "SGX", info=info)) is Reason.ATTESTATION_INVALID
    assert refusal(lambda: maker.judged("SGX", identity={"id": "TD_QE"})) is Reason.ATTESTATION_INVALID
    assert refusal(lambda: maker.sgx(maker.collateral("TDX"))) is Reason.ATTESTATION_INVALID
    assert refusal(lambda: maker.tdx(maker.collateral("SGX"))) is Reason.ATTESTATION_INVALID


@pytest.mark.parametrize("which", ["info", "identity"])
def test_collateral_of_another_time_is_stale(maker: Maker, refusal: Refusal, which: str) -> None:
    second, skew = timedelta(seconds=1), timedelta(minutes=5)
    maker.judged("SGX", **{which: maker.made.dates(maker.now + skew, maker.now + 2 * skew)})
    late = maker.now + skew + second
    for start, end in ((late, late + second), (maker.now - second, maker.now - second)):
        dates = maker.made.dates(start, end)
        assert refusal(partial(maker.judged, "SGX", **{which: dates}), "fetch") is Reason.COLLATERAL_STALE
    soon = maker.now + timedelta(hours=1)
    assert maker.judged("SGX", **{which: maker.made.dates(maker.now, soon)}).not_after == soon


def test_a_revocation_list_of_another_time_is_stale(maker: Maker, refusal: Refusal) -> None:
    root, authority, _ = maker.made.authorities()
    past = maker.now - timedelta(seconds=1)
    for name, issuer in (("platform_revocation_list", authority), ("root_revocation_list", root)):
        collateral = maker.collateral(replace={name: maker.authority.revocation_list(issuer, end=past)})
        assert refusal(partial(maker.sgx, collateral)) is Reason.COLLATERAL_STALE
        soon = maker.now + timedelta(hours=1)
        collateral = maker.collateral(replace={name: maker.authority.revocation_list(issuer, end=soon)})
        assert maker.sgx(collateral).not_after == soon
        old = maker.now - timedelta(days=300)
        collateral = maker.collateral(replace={name: maker.authority.revocation_list(issuer, start=old)})
        assert maker.sgx(collateral).revoked_as_of == old, "the older of both"


def test_claims_expire_with_the_first_certificate(maker: Maker) -> None:
    root, authority, _ = maker.made.authorities()
    issue, p256, pem = maker.authority.issue, maker.authority.p256, maker.authority.pem
    soon = maker.now + timedelta(hours=1)
    named = [(x509.UnrecognizedExtension(SGX_EXTENSION, maker.made.sgx_extension()), False)]
    platform = issue("Intel SGX PCK Certificate", p256(3), authority, extensions=named, end=soon)
    assert maker.sgx(chain=pem(platform, authority, root)).not_after == soon
    signer = pem(issue("Intel SGX TCB Signing", p256(2), root, end=soon), root)
    for name in ("tcb_info_chain", "identity_chain"):
        assert maker.sgx(maker.collateral(replace={name: signer})).not_after == soon


@pytest.mark.parametrize("revoked", ["platform_revoked", "authority_revoked", "signer_revoked"])
def test_a_revoked_certificate_is_refused(maker: Maker, refusal: Refusal, revoked: str) -> None:
    collateral = maker.collateral(**{revoked: True})
    assert refusal(lambda: maker.sgx(collateral), "has revoked") is Reason.ATTESTATION_INVALID


def test_the_two_lists_are_not_exchangeable(maker: Maker, refusal: Refusal) -> None:
    lists = maker.made.collateral()
    exchanged = {
        "platform_revocation_list": lists["root_revocation_list"],
        "root_revocation_list": lists["platform_revocation_list"],
    }
    assert refusal(lambda: maker.sgx(maker.collateral(replace=exchanged))) is Reason.ATTESTATION_INVALID


def test_collateral_is_signed_by_intels_signer_alone(maker: Maker, refusal: Refusal) -> None:
    root, authority, _ = maker.made.authorities()
    pem, issue, p256 = maker.authority.pem, maker.authority.issue, maker.authority.p256
    impostors = {
        "a platform's key": (maker.made.platform_certificate(), pem(*maker.made.quote_chain())),
        "another name below the root": ((other := issue("Somebody", p256(60), root)), pem(other, root)),
        "the name below an authority": (
            (other := issue("Intel SGX TCB Signing", p256(61), authority)),
            pem(other, authority, root),
        ),
    }
    for name, (impostor, chain) in impostors.items():
        info = maker.made.response("tcbInfo", maker.made.tcb_info(), impostor)
        collateral = maker.collateral(replace={"tcb_info": info, "tcb_info_chain": chain})
        assert refusal(partial(maker.sgx, collateral), "must be signed by") is Reason.ATTESTATION_INVALID, name
    info = maker.made.response("tcbInfo", maker.made.tcb_info(), impostors["a platform's key"][0])
    collateral = maker.collateral(replace={"tcb_info": info})
    assert refusal(lambda: maker.sgx(collateral), "does not verify") is Reason.ATTESTATION_INVALID


def test_quote_and_collateral_share_a_root(self_made: ModuleType, maker: Maker, refusal: Refusal) -> None:
    made = self_made.authority
    other = made.issue("Intel SGX Root CA", made.p256(70), ca=True)
    signer = made.issue("Intel SGX TCB Signing", made.p256(71), other)
    replace = {
        "tcb_info": maker.made.response("tcbInfo", maker.made.tcb_info(), signer),
        "tcb_info_chain": made.pem(signer, other),
    }
    roots = frozenset(hashlib.sha256(root.der).digest() for root in (other, maker.made.authorities()[0]))
    quote = maker.made.Quote().encode()
    collateral = maker.collateral(replace=replace)
    assert refusal(lambda: verify_sgx(quote, collateral, roots, made.NOW), "different root certificates")


UNKNOWN_FORMS: list[dict[str, Any]] = [
    {"version": 2},
    {"version": "3"},
    {"issueDate": "yesterday"},
    {"nextUpdate": None},
    {"tcbType": 1},
    {"tcbEvaluationDataNumber": "17"},
    {"tcbEvaluationDataNumber": True},
    {"tcbLevels": None},
    {"tcbLevels": [{}]},
    {"tcbLevels": ["level"]},
    {"fmspc": 7},
    {"fmspc": "zz"},
    {"id": None},
]


@pytest.mark.parametrize("info", UNKNOWN_FORMS, ids=str)
def test_signed_collateral_of_an_unknown_form_is_refused(maker: Maker, refusal: Refusal, info: dict[str, Any]) -> None:
    assert refusal(lambda: maker.judged("SGX", info=info))


def test_levels_that_reach_nothing_or_say_nothing_known_are_refused(maker: Maker, refusal: Refusal) -> None:
    level, made = maker.made.level, maker.made
    assert refusal(lambda: maker.judged("SGX", info={"tcbLevels": []}), "below every TCB level")
    assert refusal(lambda: maker.judged("SGX", identity={"tcbLevels": []}), "below every version")
    unknown = level("Splendid", sgxtcbcomponents=made.components(1), pcesvn=1)
    short = level("UpToDate", sgxtcbcomponents=made.components(1)[:15], pcesvn=1)
    unshowable = [
        level("OutOfDate", ("INTEL-SA-1", name), sgxtcbcomponents=made.components(1), pcesvn=1)
        for name in ("\ud800", "INTEL-SA-2\nis mitigated", "\x1b[2J", 7)
    ]
    for wrong in (unknown, short, *unshowable):
        info = {"tcbLevels": [wrong]}
        assert refusal(partial(maker.judged, "SGX", info=info)) is Reason.NOT_CANONICAL


def test_a_response_has_one_form(maker: Maker) -> None:
    whole = maker.made.response("tcbInfo", maker.made.tcb_info())
    start = whole.index(b'"signature":"') + len(b'"signature":"')
    forms = {
        "upper case": whole[:start] + whole[start:].upper(),
        "a newline": whole + b"\n",
        "spaces": whole[:start] + b" " + whole[start + 1 :],
        "no signature": whole[: start - 14] + b"}",
        "another name": whole.replace(b"tcbInfo", b"tcbinfo"),
        "the other document": maker.made.response("enclaveIdentity", maker.made.tcb_info()),
        "nothing": b"",
    }
    for name, form in forms.items():
        with pytest.raises(MalformedMessage):
            pytest.fail(f"{name}: {maker.sgx(maker.collateral(replace={'tcb_info': form}))}")
    too_much = maker.collateral(replace={"tcb_info": whole + b" " * (1 << 20)})
    with pytest.raises(MalformedMessage) as caught:
        maker.sgx(too_much)
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


def test_collateral_is_bytes(maker: Maker) -> None:
    for name in maker.made.collateral():
        with pytest.raises(Misuse, match=name):
            maker.collateral(replace={name: "text"})


def test_collateral_that_nests_too_deep_is_malformed_though_intel_signed_it(maker: Maker) -> None:
    key = maker.made.authorities()[2].key
    text = b'{"version":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    signed = b'{"tcbInfo":' + text + b',"signature":"' + maker.made.raw(key, text).hex().encode() + b'"}'
    with pytest.raises(MalformedMessage, match="RecursionError"):
        maker.sgx(maker.collateral("SGX", replace={"tcb_info": signed}))
