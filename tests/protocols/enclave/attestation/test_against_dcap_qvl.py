"""Quotes and collateral, altered 12,000 times, judged by this library and by dcap-qvl: the same verdicts.

Genuine evidence is altered byte by byte. Collateral of our own is altered field by field and signed again, so that
both verifiers have to judge it. Where one refuses what the other accepts, the difference has a name in ``KNOWN``.
"""

from __future__ import annotations

import json
import random  # noqa: TID251 -- 12,000 cases from a seed
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secagg.errors import PeerError
from secagg.protocols.enclave.attestation import Claims, Evidence, EvidenceFormat, IntelCollateral, Roots, Verifier

dcap = pytest.importorskip("dcap_qvl", reason="`make dcap` runs this where dcap-qvl is installed")
pytestmark = pytest.mark.dcap

STATUSES = (
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "Revoked",
)
ISV_STATUSES = ("UpToDate", "UpToDate", "OutOfDate", "Revoked")
"""The statuses that Intel gives to enclaves and modules; dcap-qvl reads no other there."""
WITH_OLD_MODULE = {
    "UpToDate": "OutOfDate",
    "SWHardeningNeeded": "OutOfDate",
    "ConfigurationNeeded": "OutOfDateConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded": "OutOfDateConfigurationNeeded",
}
"""The status of a platform in dcap-qvl, which joins that of an old TDX module to it; here each has its own."""
PAIRS_OF_OUR_OWN, PAIRS_OF_VENDORS = 7_000, 5_000
Verdict = tuple[str, str, frozenset[str], bool] | None
"""Status of platform and quoting enclave, advisories, and whether all is up to date; None for a refusal."""


@dataclass(frozen=True)
class Pair:
    """A quote, the parts of its collateral as dcap-qvl takes them, and a time."""

    kind: EvidenceFormat
    quote: bytes
    parts: dict[str, Any]
    now: datetime

    def ours(self, roots: Roots | None) -> Verdict:
        def response(name: str, key: str) -> bytes:
            return f'{{"{name}":{self.parts[key]},"signature":"{self.parts[f"{key}_signature"].hex()}"}}'.encode()

        collateral = IntelCollateral(
            tcb_info=response("tcbInfo", "tcb_info"),
            tcb_info_chain=self.parts["tcb_info_issuer_chain"].encode(),
            identity=response("enclaveIdentity", "qe_identity"),
            identity_chain=self.parts["qe_identity_issuer_chain"].encode(),
            platform_revocation_list=self.parts["pck_crl"],
            root_revocation_list=self.parts["root_ca_crl"],
        )
        verifier = Verifier() if roots is None else Verifier(roots)
        try:
            claims: Claims = verifier.verify(Evidence(self.kind, self.quote), collateral, self.now)
        except PeerError:
            return None
        tcb: Any = claims.tcb
        parts = [tcb.platform, tcb.quoting_enclave, *([tcb.module] if tcb.module else [])]
        statuses: list[str] = [part.value for part in parts]
        if "Revoked" in statuses:
            return None  # A policy refuses it here, and the verifier there.
        platform = WITH_OLD_MODULE.get(statuses[0], statuses[0]) if statuses[2:] == ["OutOfDate"] else statuses[0]
        return platform, statuses[1], tcb.advisories, set(statuses) == {"UpToDate"}

    def theirs(self, root: bytes | None) -> Verdict:
        seconds = int(self.now.timestamp())
        try:
            collateral = dcap.QuoteCollateralV3(**self.parts)
            policy = dcap.QuotePolicy.claims_only(seconds)
            found = dcap.QuoteVerifier(root).verify_with_policy(self.quote, collateral, seconds, policy)
        except ValueError:
            return None
        claims = json.loads(found.to_json())
        return (
            claims["platform"]["tcb_level"]["tcbStatus"],
            claims["qe"]["tcb_level"]["tcbStatus"],
            frozenset(claims["tcb"]["advisory_ids"]),
            claims["tcb"]["status"] == "UpToDate",
        )


@dataclass
class Tally:
    """Verdicts of both, and the differences by name."""

    both: Counter[str] = field(default_factory=Counter[str])
    known: Counter[str] = field(default_factory=Counter[str])
    unknown: list[str] = field(default_factory=list[str])

    def add(self, what: str, ours: Verdict, theirs: Verdict, names: dict[str, str]) -> None:
        if ours == theirs:
            self.both["refused" if ours is None else "accepted"] += 1
        elif ours is None and what in names:
            self.known[names[what]] += 1
        else:
            self.unknown.append(f"{what}: {ours} here, {theirs} there")

    def close(self, cases: int) -> None:
        print(f"\n{cases} pairs: {dict(self.both)}, stricter here: {dict(self.known)}")  # noqa: T201 -- the figure
        assert not self.unknown, self.unknown[:20]
        assert self.both.total() + self.known.total() == cases
        assert min(self.both["accepted"], self.both["refused"]) > cases // 20


class Altered:
    """Pairs in which fields of collateral are drawn near those that the quote reaches."""

    def __init__(self, made: ModuleType, seed: int) -> None:
        self._made, self._draw = made, random.Random(seed)  # noqa: S311 -- cases, not keys

    def pair(self) -> tuple[str, Pair]:
        intel, draw = self._made.intel, self._draw
        version, kind = draw.choice([(3, 2), (4, 2), (5, 2), (5, 3)])
        technology, name = ("SGX", "QE") if version == 3 else ("TDX", "TD_QE")
        module = draw.choice([0, 3, 3, 3, 4])
        if technology == "SGX":
            quote = intel.Quote(qe_patches=self._quoting_enclave(name))
        else:
            svn = bytes([draw.choice([2, 4, 5, 5, 6]), module, draw.choice([3, 4, 5]), *bytes(13)])
            report = intel.td_report(kind=kind, patches={0: svn, **({584: svn} if kind == 3 else {})})
            quote = intel.tdx_quote(version=version, kind=kind, body=report, qe_patches=self._quoting_enclave(name))
        info, identity = self._info(technology), self._identity(name)
        what = self._spoil(info, identity, technology)
        fields = intel.collateral(technology, info=info, identity=identity, **self._revoked())
        return what, Pair(EvidenceFormat[technology], quote.encode(), self._parts(fields), self._made.authority.NOW)

    def _parts(self, fields: dict[str, bytes]) -> dict[str, Any]:
        root, platform, _ = self._made.intel.authorities()

        def signed(response: bytes) -> tuple[str, bytes]:
            text, _, signature = response.decode().partition(":")[2].rpartition(',"signature":"')
            return text, bytes.fromhex(signature[:-2])

        (info, info_signature), (identity, identity_signature) = signed(fields["tcb_info"]), signed(fields["identity"])
        return {
            "pck_crl_issuer_chain": self._made.authority.pem(platform, root).decode(),
            "root_ca_crl": fields["root_revocation_list"],
            "pck_crl": fields["platform_revocation_list"],
            "tcb_info_issuer_chain": fields["tcb_info_chain"].decode(),
            "tcb_info": info,
            "tcb_info_signature": info_signature,
            "qe_identity_issuer_chain": fields["identity_chain"].decode(),
            "qe_identity": identity,
            "qe_identity_signature": identity_signature,
        }

    def _quoting_enclave(self, name: str) -> dict[int, bytes]:
        patches: dict[int, bytes] = self._made.intel.qe_patches(name)
        return patches | {258: self._draw.choice([4, 7, 8, 8, 9]).to_bytes(2, "little")}

    def _revoked(self) -> dict[str, bool]:
        names = ("platform_revoked", "authority_revoked", "signer_revoked")
        return {self._draw.choice(names): True} if self._draw.random() < 0.05 else {}

    def _level(self, statuses: tuple[str, ...] = STATUSES, **tcb: Any) -> dict[str, Any]:
        draw = self._draw
        advisories = tuple(sorted({f"INTEL-SA-{draw.randrange(5)}" for _ in range(draw.randrange(4))}))
        return dict(self._made.intel.level(draw.choice(statuses), advisories, **tcb))

    def _info(self, technology: str) -> dict[str, Any]:
        """List levels as Intel does, the highest first."""
        draw, intel = self._draw, self._made.intel
        versions = [min(255, version + (draw.random() < 0.1)) for version in (*intel.COMPONENTS[:7], 5, 3, 4, 14)]
        levels = list[dict[str, Any]]()
        for _ in range(draw.randint(1, 6)):
            tcb: dict[str, Any] = {"sgxtcbcomponents": intel.components(*versions[:7]), "pcesvn": versions[10]}
            if technology == "TDX":
                tcb["tdxtcbcomponents"] = intel.components(*versions[7:10])
            levels.append(self._level(**tcb))
            lowered = draw.randrange(len(versions))
            versions = [max(0, each - (place == lowered or draw.random() < 0.3)) for place, each in enumerate(versions)]
        info: dict[str, Any] = intel.tcb_info(technology, tcbLevels=levels, tcbEvaluationDataNumber=draw.randint(1, 30))
        for module in info.get("tdxModuleIdentities", ()):
            module["tcbLevels"] = self._isv_levels([6, 5, 4, 2])
        return info

    def _identity(self, name: str) -> dict[str, Any]:
        return dict(self._made.intel.qe_identity(name, tcbLevels=self._isv_levels([9, 8, 7, 4])))

    def _isv_levels(self, numbers: list[int]) -> list[dict[str, Any]]:
        return [self._level(ISV_STATUSES, isvsvn=number) for number in numbers if self._draw.random() < 0.8]

    def _spoil(self, info: dict[str, Any], identity: dict[str, Any], technology: str) -> str:
        """Make one field wrong, or leave all as they are."""
        draw = self._draw
        changes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "another id": (info, {"id": "TDX" if technology == "SGX" else "SGX"}),
            "another version": (info, {"version": 2}),
            "another FMSPC": (info, {"fmspc": "00a067110001"}),
            "another PCE": (info, {"pceId": "0001"}),
            "another type": (info, {"tcbType": 1}),
            "issued tomorrow": (info, {"issueDate": "2099-01-01T00:00:00Z"}),
            "out of date": (info, {"nextUpdate": "2001-01-01T00:00:00Z"}),
            "another identity": (identity, {"id": "QVE"}),
            "identity out of date": (identity, {"nextUpdate": "2001-01-01T00:00:00Z"}),
            "another signer": (identity, {"mrsigner": "00" * 32}),
            "another product": (identity, {"isvprodid": 9}),
            "other attributes": (identity, {"attributes": "03" + "00" * 15}),
            "another MISCSELECT": (identity, {"miscselect": "01000000"}),
            "no levels": (identity, {"tcbLevels": []}),
        }
        if draw.random() < 0.7:
            return "as it was drawn"
        what = draw.choice(list(changes))
        changed, fields = changes[what]
        changed.update(fields)
        return what


OWN_KNOWN = {
    "another PCE": "TCB info for another provisioning enclave than the certificate names",
    "another type": "TCB info of a type that orders its components otherwise",
    "another version": "TCB info of version 2, which Intel no longer serves",
}


def test_collateral_signed_again_is_judged_alike(self_made: ModuleType, roots: Roots) -> None:
    altered, tally, root = Altered(self_made, 1), Tally(), self_made.intel.authorities()[0].der
    for _ in range(PAIRS_OF_OUR_OWN):
        what, pair = altered.pair()
        tally.add(what, pair.ours(roots), pair.theirs(root), OWN_KNOWN)
    tally.close(PAIRS_OF_OUR_OWN)


_ROOT = "the root within a chain, in whose place dcap-qvl puts its own"
_END = "text after a chain"
_BETWEEN = "something other than a line break between two certificates"
VENDOR_KNOWN = {
    "quote, in the last certificate": _ROOT,
    "quote, behind a certificate": _BETWEEN,
    "tcb_info_issuer_chain, behind a certificate": _BETWEEN,
    "qe_identity_issuer_chain, behind a certificate": _BETWEEN,
    "tcb_info_issuer_chain, in the last certificate": _ROOT,
    "qe_identity_issuer_chain, in the last certificate": _ROOT,
    "tcb_info_issuer_chain, after the end": _END,
    "qe_identity_issuer_chain, after the end": _END,
}


def genuine(samples: Path) -> Iterator[tuple[EvidenceFormat, bytes, dict[str, Any], datetime]]:
    texts = ("tcb_info", "qe_identity", "pck_crl_issuer_chain", "tcb_info_issuer_chain", "qe_identity_issuer_chain")
    for kind, quote, collateral, now in (
        (EvidenceFormat.SGX, "sgx/quote_v3.bin", "sgx/collateral.json", "2025-07-01T00:00:00+00:00"),
        (EvidenceFormat.TDX, "tdx2/uptodate/quote.bin", "tdx2/uptodate/collateral.json", "2025-06-20T00:00:00+00:00"),
        (
            EvidenceFormat.TDX,
            "tdx2/uptodate_mrconfigid/quote.bin",
            "tdx2/uptodate_mrconfigid/collateral.json",
            "2025-09-03T00:00:00+00:00",
        ),
    ):
        found: dict[str, str] = json.loads((samples / collateral).read_text(encoding="utf-8"))
        names = (*texts, "root_ca_crl", "pck_crl", "tcb_info_signature", "qe_identity_signature")
        parts = {name: found[name] if name in texts else bytes.fromhex(found[name]) for name in names}
        yield kind, (samples / quote).read_bytes(), parts, datetime.fromisoformat(now)


def test_genuine_evidence_altered_byte_by_byte_is_judged_alike(samples: Path) -> None:
    draw, tally, pairs = random.Random(2), Tally(), list(genuine(samples))  # noqa: S311 -- cases, not keys
    for number in range(PAIRS_OF_VENDORS):
        kind, quote, parts, now = pairs[number % len(pairs)]
        if number < PAIRS_OF_VENDORS // 10:
            pair, what = Pair(kind, quote, parts, now), "nothing"
        else:
            name = draw.choice(["quote"] * 6 + list(parts))
            changed, what = altered(draw, name, quote if name == "quote" else parts[name])
            given = {"quote": quote, **parts} | {name: changed}
            pair = Pair(kind, given.pop("quote"), given, now)
        tally.add(what, pair.ours(None), pair.theirs(None), VENDOR_KNOWN)
    tally.close(PAIRS_OF_VENDORS)


def altered(draw: random.Random, name: str, whole: Any) -> tuple[Any, str]:
    """Cut, lengthen or flip a bit; return what came of it, and where it was."""
    changed = bytearray(whole.encode() if isinstance(whole, str) else whole)
    match draw.randrange(4):
        case 0:
            place = draw.randrange(len(changed))
            del changed[place:]
        case 1:
            place = len(changed)
            changed += draw.randbytes(draw.randint(1, 8))
        case _:
            place = draw.randrange(len(changed))
            changed[place] ^= 1 << draw.randrange(8)
    text = whole.encode() if isinstance(whole, str) else whole
    where = "in the last certificate"
    if not 0 <= text.rfind(b"-----BEGIN") <= place < len(text):
        behind = text[:place].endswith(b"-----END CERTIFICATE-----")
        where = "after the end" if place >= len(text) else "behind a certificate" if behind else "before"
    return changed.decode(errors="replace") if isinstance(whole, str) else bytes(changed), f"{name}, {where}"
