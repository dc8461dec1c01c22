"""The verifier, which turns evidence of all four formats into claims, and the policy, which accepts or refuses claims.

A client accepts programs that it pinned, on up-to-date hardware, with evidence bound to the enclave's keys. No setting
accepts a debug build, a migratable guest, an unpinned program, evidence with a wrong binding, or an Intel quote without
collateral.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, assert_never

from secagg.errors import InvalidParameters, Misuse, Reason

from .claims import (
    AZURE,
    CONFIDENTIAL_SPACE,
    FLAGS,
    PINNED_ROOTS,
    Claims,
    Evidence,
    EvidenceFormat,
    IntelTcb,
    Roots,
    SnpTcb,
    TcbStatus,
    malformed,
    refused,
    stale,
)
from .intel import IntelCollateral, verify_sgx, verify_tdx
from .nitro import verify_nitro
from .snp import SnpCollateral, verify_snp

Collateral = SnpCollateral | IntelCollateral | None

MAXIMUM_EVIDENCE_BYTES: Final = 1 << 16
OPENINGS: Final = MappingProxyType({b"HCLA": AZURE, b"eyJ": CONFIDENTIAL_SPACE})
"""First bytes of evidence that is refused; "eyJ" is the base64 of the start of a JSON web token."""


class Verifier:
    """Verifies evidence against the vendors' roots; it uses no clock, network or files."""

    def __init__(self, roots: Roots = PINNED_ROOTS) -> None:
        self._roots = roots

    def verify(self, evidence: Evidence, collateral: Collateral, now: datetime) -> Claims:
        """Verify evidence and return its claims, which ``Policy.check`` then accepts or refuses.

        Args:
            collateral: None for Nitro, ``SnpCollateral`` for SEV-SNP, and ``IntelCollateral`` for TDX and SGX; without
                it, their claims have no TCB.
            now: the time at which certificates and collateral must be valid, with a time zone.
        Raises:
            MalformedMessage: evidence or collateral does not decode.
            PeerMisbehaved: with reason ``attestation_invalid``, ``collateral_stale`` or, for evidence of an unsupported
                family, ``attestation_refused``.
        """
        if type(evidence) is not Evidence:
            raise refused(f"{type(evidence).__name__} is not hardware evidence")
        if type(now) is not datetime or now.utcoffset() is None:
            raise Misuse("now must be a datetime with a time zone")
        document = _checked(evidence.document)
        match evidence.format:
            case EvidenceFormat.NITRO:
                if collateral is not None:
                    raise Misuse("a Nitro document needs no collateral; pass None")
                return verify_nitro(document, self._roots.nitro, now)
            case EvidenceFormat.SNP:
                if type(collateral) is not SnpCollateral:
                    raise Misuse("an SEV-SNP report needs SnpCollateral")
                return verify_snp(document, collateral, self._roots.amd, now)
            case EvidenceFormat.TDX | EvidenceFormat.SGX:
                if collateral is not None and type(collateral) is not IntelCollateral:
                    raise Misuse("the collateral of an Intel quote must be IntelCollateral or None")
                verify = verify_tdx if evidence.format is EvidenceFormat.TDX else verify_sgx
                return verify(document, collateral, self._roots.intel, now)
            case _:
                assert_never(evidence.format)


def _checked(document: bytes) -> bytes:
    if len(document) > MAXIMUM_EVIDENCE_BYTES:
        raise malformed(
            f"the evidence has {len(document)} bytes; the limit is {MAXIMUM_EVIDENCE_BYTES}", Reason.LENGTH_OVER_LIMIT
        )
    for opening, family in OPENINGS.items():
        if document.startswith(opening):
            raise refused(family)
    return document


# --- Policy -----------------------------------------------------------------------------------------------------------

BIND_BYTES: Final = 64
ENDORSER_BYTES: Final = 32
MOST_ENDORSED_DAYS: Final = 90
_LONGEST_AGE: Final = timedelta(days=3660)

REQUIRED_PINS: Final[Mapping[EvidenceFormat, Mapping[str, int]]] = MappingProxyType(
    {
        EvidenceFormat.NITRO: dict.fromkeys(("PCR0", "PCR1", "PCR2"), 48),
        EvidenceFormat.SNP: {"MEASUREMENT": 48},
        EvidenceFormat.TDX: dict.fromkeys(("MRTD", "RTMR0", "RTMR1", "RTMR2", "RTMR3"), 48),
        EvidenceFormat.SGX: {"MRENCLAVE": 32},
    }
)
"""The registers that together measure a program, and their lengths; MRSIGNER is not one of them."""

OPTIONAL_PINS: Final[Mapping[EvidenceFormat, Mapping[str, int]]] = MappingProxyType(
    {
        EvidenceFormat.NITRO: {f"PCR{index}": 48 for index in range(3, 32)},
        EvidenceFormat.SNP: {
            "HOST_DATA": 32,
            "GUEST_SVN": 4,
            **dict.fromkeys(("POLICY", "PLATFORM_INFO"), 8),
            **dict.fromkeys(("FAMILY_ID", "IMAGE_ID"), 16),
            **dict.fromkeys(("ID_KEY_DIGEST", "AUTHOR_KEY_DIGEST"), 48),
        },
        EvidenceFormat.TDX: {
            **dict.fromkeys(("MRCONFIGID", "MROWNER", "MROWNERCONFIG", "MRSERVICETD"), 48),
            **dict.fromkeys(("ATTRIBUTES", "XFAM"), 8),
        },
        EvidenceFormat.SGX: {
            "CONFIGID": 64,
            "MISCSELECT": 4,
            **dict.fromkeys(("ATTRIBUTES", "XFRM"), 8),
            **dict.fromkeys(("CONFIGSVN", "ISVPRODID", "ISVSVN"), 2),
            **dict.fromkeys(("ISVEXTPRODID", "ISVFAMILYID"), 16),
        },
    }
)
"""Fields that the host chooses at launch. Unless pinned, they must be zero or meet the default of their ``Flags``;
Nitro's other PCRs are exempt, because they identify the instance, its role and signer but do not configure it."""


@dataclass(frozen=True, slots=True)
class PinnedMeasurement:
    """The measurement of one program that a policy accepts: every register that measures it."""

    format: EvidenceFormat
    registers: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if type(self.format) is not EvidenceFormat:
            raise InvalidParameters(f"format must be an EvidenceFormat; got {self.format!r}")
        required, optional = REQUIRED_PINS[self.format], OPTIONAL_PINS[self.format]
        missing = sorted(required.keys() - self.registers.keys())
        if missing:
            raise InvalidParameters(f"a {self.format} measurement must pin {', '.join(missing)}")
        for name, value in self.registers.items():
            size = required.get(name) or optional.get(name)
            if size is None:
                raise InvalidParameters(f"{name} measures nothing in {self.format} evidence; do not pin it")
            if type(value) is not bytes or len(value) != size:
                raise InvalidParameters(f"{name} must have {size} bytes")
        object.__setattr__(self, "registers", MappingProxyType(dict(self.registers)))

    def differences(self, claims: Claims) -> tuple[str, ...] | None:
        """Return the registers that differ from the pins or the defaults; None for evidence of a different format."""
        if claims.format is not self.format:
            return None
        names = self.registers.keys() | (claims.measurement.keys() if self.format is not EvidenceFormat.NITRO else ())
        return tuple(sorted(name for name in names if not self._admits(name, claims.measurement.get(name))))

    def _admits(self, name: str, value: bytes | None) -> bool:
        pinned, flags = self.registers.get(name), FLAGS[self.format].get(name)
        if value is None or pinned is not None:
            return value == pinned
        return not any(value) if flags is None else flags.admit(value)


@dataclass(frozen=True, slots=True)
class PinnedEndorser:
    """An Ed25519 key whose holder signs policies that pin the accepted programs of one format."""

    format: EvidenceFormat
    key: bytes
    days: int = 1
    """Maximum age of an endorsement, in days. It limits how old an endorsement a host can show to a new client."""

    def __post_init__(self) -> None:
        if (type(self.format), type(self.key), type(self.days)) != (EvidenceFormat, bytes, int):
            raise InvalidParameters("PinnedEndorser takes an EvidenceFormat, a key in bytes and a number of days")
        if len(self.key) != ENDORSER_BYTES or not 1 <= self.days <= MOST_ENDORSED_DAYS:
            raise InvalidParameters(
                f"an endorser needs {ENDORSER_BYTES} bytes of key and 1 to {MOST_ENDORSED_DAYS} days"
            )

    def differences(self, _: Claims) -> None:
        """Match nothing: the pins of the endorsement replace this one before claims are checked."""


def _formats_of(accepted: tuple[PinnedMeasurement | PinnedEndorser, ...]) -> set[EvidenceFormat]:
    if not accepted or any(type(pinned) not in (PinnedMeasurement, PinnedEndorser) for pinned in accepted):
        raise InvalidParameters("a policy must accept at least one PinnedMeasurement or PinnedEndorser")
    formats = {pinned.format for pinned in accepted}
    if len({(pinned.format, type(pinned)) for pinned in accepted}) > len(formats):
        raise InvalidParameters("a policy cannot pin both measurements and an endorser of one format")
    return formats


def _require_booleans(*values: object) -> None:
    # A string such as "no" would count as true.
    if any(type(value) is not bool for value in values):
        raise InvalidParameters("sibling_threads_accepted and snp_revocation_required must be true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A client's requirements on an enclave to which it seals updates.

    Security: pins must never come from the server, which would pin whatever it runs.
    """

    accepted: tuple[PinnedMeasurement | PinnedEndorser, ...]
    minimum_snp_tcb: SnpTcb | None = None
    accepted_tcb_statuses: frozenset[TcbStatus] = field(default=frozenset({TcbStatus.UP_TO_DATE}))
    accepted_advisories: frozenset[str] = frozenset()
    """Intel advisories that every accepted program mitigates; a platform with another advisory is refused, whatever its
    status."""
    minimum_tcb_evaluation: int = 0
    """Minimum Intel TCB evaluation number of the collateral; required if the host relays it."""
    lists_since: datetime | None = None
    """Earliest issue date of AMD's revocation list; required if the host relays it."""
    privilege_level: int = 0
    """The VMPL at which an SEV-SNP program runs."""
    sibling_threads_accepted: bool = False
    """Whether an SEV-SNP guest may share a core with other guests (SMT), as in all of today's clouds. Timing then leaks
    something about the program to them; on your own host you can disable SMT."""
    snp_revocation_required: bool = True
    """Whether SEV-SNP evidence needs AMD's revocation list; with ``lists_since`` it always does."""
    greatest_list_age: timedelta = timedelta(days=366)
    """Maximum age of the oldest revocation list. The default suits lists that vendors issue yearly."""

    def __post_init__(self) -> None:
        formats = _formats_of(self.accepted)
        if EvidenceFormat.SNP in formats and type(self.minimum_snp_tcb) is not SnpTcb:
            raise InvalidParameters(
                "a policy that accepts SEV-SNP evidence needs minimum_snp_tcb (in a file: minimum_tcb)"
            )
        if any(type(status) is not TcbStatus for status in self.accepted_tcb_statuses):
            raise InvalidParameters("accepted_tcb_statuses must contain members of TcbStatus")
        if TcbStatus.REVOKED in self.accepted_tcb_statuses:
            raise InvalidParameters("accepted_tcb_statuses cannot contain Revoked: Intel revoked the platform's keys")
        _require_booleans(self.sibling_threads_accepted, self.snp_revocation_required)
        if type(self.accepted_advisories) is not frozenset or not all(type(a) is str for a in self.accepted_advisories):
            raise InvalidParameters("accepted_advisories must be a frozenset of names such as INTEL-SA-00615")
        if type(self.minimum_tcb_evaluation) is not int or self.minimum_tcb_evaluation < 0:
            raise InvalidParameters(f"minimum_tcb_evaluation must be at least 0; got {self.minimum_tcb_evaluation!r}")
        if self.minimum_tcb_evaluation and {EvidenceFormat.TDX, EvidenceFormat.SGX} <= formats:
            raise InvalidParameters("Intel numbers TCB evaluations of TDX and SGX separately; use one policy for each")
        if self.lists_since is not None and self.lists_since.utcoffset() is None:
            raise InvalidParameters("lists_since must be a datetime with a time zone")
        if type(self.privilege_level) is not int or not 0 <= self.privilege_level <= 3:  # noqa: PLR2004 -- VMPL0 to 3
            raise InvalidParameters(f"privilege_level must be between 0 and 3; got {self.privilege_level!r}")
        if type(self.greatest_list_age) is not timedelta or not timedelta() < self.greatest_list_age <= _LONGEST_AGE:
            raise InvalidParameters(f"greatest_list_age must be over 0, up to 10 years; got {self.greatest_list_age!r}")

    def require_bounds(self, form: EvidenceFormat, *, is_remembered: bool) -> None:
        """Require limits on the age of collateral that the host relays: one in this policy, and a client's memory.

        Raises:
            InvalidParameters: the operator of this client must set a missing limit.
        """
        bound = self.lists_since if form is EvidenceFormat.SNP else self.minimum_tcb_evaluation
        if not bound or not is_remembered:
            name = "lists_since" if form is EvidenceFormat.SNP else "minimum_tcb_evaluation"
            missing = name if not bound else "newest= with a store"
            raise InvalidParameters(
                f"the host relayed the collateral of this {form} evidence and could choose the oldest that is still "
                f"valid: set {missing}, or give the judge your own collateral"
            )

    def check(self, claims: Claims, expected_bind: bytes, now: datetime) -> datetime:
        """Check claims against this policy and return when they expire.

        Args:
            expected_bind: the 64 bytes that the client computed from its own configuration and the enclave's keys.
            now: the time at which the claims were verified, with a time zone.
        Raises:
            PeerMisbehaved: with reason ``attestation_refused``, or ``collateral_stale`` for an old revocation list.
        Security: check before each use of the keys that the claims have not expired.
        """
        if type(expected_bind) is not bytes or len(expected_bind) != BIND_BYTES:
            raise Misuse(f"a binding must have {BIND_BYTES} bytes, computed by the client itself")
        if type(claims) is not Claims:
            raise refused(f"check takes the Claims of Verifier.verify; got {type(claims).__name__}")
        if claims.debug:
            raise refused("the enclave is a debug build, which its host can read; deploy a production build")
        if claims.migratable:
            raise refused("the enclave may be migrated to another host; deploy it without a migration agent")
        if claims.privilege_level not in (None, self.privilege_level):
            raise refused(f"the guest runs at VMPL {claims.privilege_level}; the policy pins {self.privilege_level}")
        if claims.sibling_threads and not self.sibling_threads_accepted:
            raise refused(
                "the guest policy allows SMT, so another guest on the same core may observe timing, as in all of "
                "today's clouds: accept this with sibling_threads_accepted=True, or deny SMT in the guest policy on a "
                "host that has SMT disabled"
            )
        self._check_tcb(claims)
        found = [pinned.differences(claims) for pinned in self.accepted]
        if () not in found:
            nearest = min((names for names in found if names is not None), key=len, default=())
            listed = ", ".join(f"{name} {claims.measurement.get(name, b'').hex() or 'missing'}" for name in nearest)
            raise refused(
                f"no pinned measurement matches this {claims.format} evidence; the closest one differs in "
                f"{listed or 'its format'}"
            )
        if claims.report_data != expected_bind:
            is_azure = claims.format is not EvidenceFormat.NITRO and not any(claims.report_data[32:])
            hint = f"; {AZURE}" if is_azure else ""
            raise refused(f"the evidence is bound to keys or a configuration that the client does not expect{hint}")
        return self._end(claims, now)

    def _end(self, claims: Claims, now: datetime) -> datetime:
        """Return when the claims expire or their revocation lists become too old."""
        if claims.revoked_as_of is None:
            return claims.not_after
        if self.lists_since is not None and claims.revoked_as_of < self.lists_since:
            raise stale(f"a revocation list was issued at {claims.revoked_as_of}; lists_since is {self.lists_since}")
        lists_end = claims.revoked_as_of + self.greatest_list_age
        if now > lists_end:
            raise stale(
                f"a revocation list was issued at {claims.revoked_as_of}, more than {self.greatest_list_age.days} days "
                f"before {now} (greatest_list_age): fetch the current one"
            )
        return min(claims.not_after, lists_end)

    def _check_tcb(self, claims: Claims) -> None:
        match claims.format, claims.tcb:
            case EvidenceFormat.NITRO, None:
                pass
            case EvidenceFormat.SNP, SnpTcb() as tcb:
                if self.minimum_snp_tcb is None or not tcb.reaches(self.minimum_snp_tcb):
                    raise refused(f"the firmware is {tcb}; minimum_snp_tcb is {self.minimum_snp_tcb}")
                if (self.snp_revocation_required or self.lists_since is not None) and claims.revoked_as_of is None:
                    raise refused("revocation was not checked; add AMD's revocation list to the collateral")
            case ((EvidenceFormat.TDX | EvidenceFormat.SGX), IntelTcb() as tcb):
                if not tcb.statuses <= self.accepted_tcb_statuses:
                    listed = ", ".join(sorted(tcb.statuses - self.accepted_tcb_statuses))
                    raise refused(
                        f"the platform is {listed} (advisories: {', '.join(sorted(tcb.advisories)) or 'none'})"
                    )
                if unmet := tcb.advisories - self.accepted_advisories:
                    raise refused(
                        f"the platform has open advisories: {', '.join(sorted(unmet))}; mitigate them in the program "
                        "and add them to accepted_advisories"
                    )
                if tcb.evaluation_number < self.minimum_tcb_evaluation:
                    raise refused(
                        f"the collateral has TCB evaluation number {tcb.evaluation_number}; minimum_tcb_evaluation is "
                        f"{self.minimum_tcb_evaluation}"
                    )
            case _:
                raise refused(f"{claims.format} evidence was verified without collateral, so its TCB is unknown")
