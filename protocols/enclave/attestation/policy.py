"""The verifier, evidence in and claims out for all four formats; and the policy, which claims a client accepts.

A client accepts programs it has pinned, on hardware that is up to date, bound to its keys. There is no setting that
accepts a debug build, a migratable guest, a program that is not pinned, evidence bound to something else, or an Intel
quote without collateral.
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
"""How evidence of families begins that are refused; a JSON web token begins with a brace and a quote in base64."""


class Verifier:
    """Checks evidence against the vendors' roots; it reads no clock, no network and no file."""

    def __init__(self, roots: Roots = PINNED_ROOTS) -> None:
        self._roots = roots

    def verify(self, evidence: Evidence, collateral: Collateral, now: datetime) -> Claims:
        """Check that a vendor vouches for evidence, and return its claims, for a policy to judge.

        Args:
            collateral: nothing for Nitro, ``SnpCollateral`` for SEV-SNP, and ``IntelCollateral`` for TDX and SGX, whose
                claims have no TCB without it.
            now: the time at which certificates and collateral must hold, with a time zone.
        Raises:
            MalformedMessage: evidence or collateral does not decode.
            PeerMisbehaved: with reason ``attestation_invalid``, ``collateral_stale`` or, for evidence that is of no
                vendor's format, ``attestation_refused``.
        """
        if type(evidence) is not Evidence:
            raise refused(f"{type(evidence).__name__} is not evidence of hardware")
        if type(now) is not datetime or now.utcoffset() is None:
            raise Misuse("the time is a datetime with a time zone")
        document = _checked(evidence.document)
        match evidence.format:
            case EvidenceFormat.NITRO:
                if collateral is not None:
                    raise Misuse("a Nitro document carries all that it is verified with; pass None")
                return verify_nitro(document, self._roots.nitro, now)
            case EvidenceFormat.SNP:
                if type(collateral) is not SnpCollateral:
                    raise Misuse("an SEV-SNP report is verified with SnpCollateral")
                return verify_snp(document, collateral, self._roots.amd, now)
            case EvidenceFormat.TDX | EvidenceFormat.SGX:
                if collateral is not None and type(collateral) is not IntelCollateral:
                    raise Misuse("an Intel quote is verified with IntelCollateral, or with None")
                verify = verify_tdx if evidence.format is EvidenceFormat.TDX else verify_sgx
                return verify(document, collateral, self._roots.intel, now)
            case _:
                assert_never(evidence.format)


def _checked(document: bytes) -> bytes:
    if len(document) > MAXIMUM_EVIDENCE_BYTES:
        raise malformed(
            f"evidence holds at most {MAXIMUM_EVIDENCE_BYTES} bytes; this {len(document)}", Reason.LENGTH_OVER_LIMIT
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
"""The registers that together measure a program, and their lengths; MRSIGNER is in none of them."""

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
"""Fields that the host chooses at launch. Unless pinned they are zero, or keep to the default of their ``Flags``,
except in Nitro documents, whose further PCRs tell the instance, its role and signer, and do not configure it."""


@dataclass(frozen=True, slots=True)
class PinnedMeasurement:
    """One program that a policy accepts, by every register that measures it."""

    format: EvidenceFormat
    registers: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if type(self.format) is not EvidenceFormat:
            raise InvalidParameters(f"a measurement is of an EvidenceFormat; got {self.format!r}")
        required, optional = REQUIRED_PINS[self.format], OPTIONAL_PINS[self.format]
        missing = sorted(required.keys() - self.registers.keys())
        if missing:
            raise InvalidParameters(f"a {self.format} measurement must pin {', '.join(missing)}")
        for name, value in self.registers.items():
            size = required.get(name) or optional.get(name)
            if size is None:
                raise InvalidParameters(f"{name} measures nothing in {self.format} evidence; do not pin it")
            if type(value) is not bytes or len(value) != size:
                raise InvalidParameters(f"{name} is {size} bytes")
        object.__setattr__(self, "registers", MappingProxyType(dict(self.registers)))

    def differences(self, claims: Claims) -> tuple[str, ...] | None:
        """Return what tells claims from this program, launched as pinned or by default; None for another format."""
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
    """An Ed25519 key, whose holder signs policies that say which programs of one format are good."""

    format: EvidenceFormat
    key: bytes
    days: int = 1
    """Age of the oldest endorsement that is accepted. A new client has seen none, and a host would show it that one."""

    def __post_init__(self) -> None:
        if (type(self.format), type(self.key), type(self.days)) != (EvidenceFormat, bytes, int):
            raise InvalidParameters("an endorser has an EvidenceFormat, a key in bytes and a number of days")
        if len(self.key) != ENDORSER_BYTES or not 1 <= self.days <= MOST_ENDORSED_DAYS:
            raise InvalidParameters(f"an endorser has {ENDORSER_BYTES} bytes, and days in 1..{MOST_ENDORSED_DAYS}")

    def differences(self, _: Claims) -> None:
        """Match nothing: what an endorsement pins takes this place before claims are judged."""


def _formats_of(accepted: tuple[PinnedMeasurement | PinnedEndorser, ...]) -> set[EvidenceFormat]:
    if not accepted or any(type(pinned) not in (PinnedMeasurement, PinnedEndorser) for pinned in accepted):
        raise InvalidParameters("a policy accepts at least one PinnedMeasurement or PinnedEndorser")
    formats = {pinned.format for pinned in accepted}
    if len({(pinned.format, type(pinned)) for pinned in accepted}) > len(formats):
        raise InvalidParameters("a policy pins measurements of a format or who endorses them, and not both")
    return formats


def _require_booleans(*values: object) -> None:
    # "no" would count as true.
    if any(type(value) is not bool for value in values):
        raise InvalidParameters("sibling_threads_accepted and snp_revocation_required are true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Requirements of a client on an enclave, before it seals anything to it.

    Security: the pins are the client's own. Taken from the server, they accept whatever the server runs.
    """

    accepted: tuple[PinnedMeasurement | PinnedEndorser, ...]
    minimum_snp_tcb: SnpTcb | None = None
    accepted_tcb_statuses: frozenset[TcbStatus] = field(default=frozenset({TcbStatus.UP_TO_DATE}))
    accepted_advisories: frozenset[str] = frozenset()
    """The advisories of Intel's whose mitigations every accepted program has; a platform with another one is refused,
    whatever its status."""
    minimum_tcb_evaluation: int = 0
    """Least number of Intel's TCB evaluation that the collateral may come from; above 0 where a host relays it."""
    lists_since: datetime | None = None
    """Earliest day of AMD's revocation list; needed where a host relays it."""
    privilege_level: int = 0
    """The VMPL that an SEV-SNP program runs at."""
    sibling_threads_accepted: bool = False
    """Whether an SEV-SNP guest may share a core with other guests (SMT), as in every cloud of today. Their timing then
    tells something of what the program does; a host of your own can switch SMT off."""
    snp_revocation_required: bool = True
    """Whether SEV-SNP evidence without AMD's revocation list is refused, as it is with ``lists_since`` in any case."""
    greatest_list_age: timedelta = timedelta(days=366)
    """Limit on the age of the oldest revocation list. The default is the life of the vendors' yearly lists."""

    def __post_init__(self) -> None:
        formats = _formats_of(self.accepted)
        if EvidenceFormat.SNP in formats and type(self.minimum_snp_tcb) is not SnpTcb:
            raise InvalidParameters(
                "a policy that accepts SEV-SNP evidence needs minimum_snp_tcb (in a file: minimum_tcb)"
            )
        if any(type(status) is not TcbStatus for status in self.accepted_tcb_statuses):
            raise InvalidParameters("accepted_tcb_statuses holds members of TcbStatus")
        if TcbStatus.REVOKED in self.accepted_tcb_statuses:
            raise InvalidParameters("a platform whose keys Intel has revoked cannot be accepted")
        _require_booleans(self.sibling_threads_accepted, self.snp_revocation_required)
        if type(self.accepted_advisories) is not frozenset or not all(type(a) is str for a in self.accepted_advisories):
            raise InvalidParameters("accepted_advisories is a frozenset of names such as INTEL-SA-00615")
        if type(self.minimum_tcb_evaluation) is not int or self.minimum_tcb_evaluation < 0:
            raise InvalidParameters(f"minimum_tcb_evaluation is a number from 0; got {self.minimum_tcb_evaluation!r}")
        if self.minimum_tcb_evaluation and {EvidenceFormat.TDX, EvidenceFormat.SGX} <= formats:
            raise InvalidParameters("Intel numbers evaluations of TDX and of SGX apart; make a policy for each")
        if self.lists_since is not None and self.lists_since.utcoffset() is None:
            raise InvalidParameters("lists_since is a datetime with a time zone")
        if type(self.privilege_level) is not int or not 0 <= self.privilege_level <= 3:  # noqa: PLR2004 -- VMPL0 to 3
            raise InvalidParameters(f"privilege_level is in 0..3; got {self.privilege_level!r}")
        if type(self.greatest_list_age) is not timedelta or not timedelta() < self.greatest_list_age <= _LONGEST_AGE:
            raise InvalidParameters(f"greatest_list_age is above 0, ten years at most; got {self.greatest_list_age!r}")

    def require_bounds(self, form: EvidenceFormat, *, is_remembered: bool) -> None:
        """Refuse to judge by collateral that a host chose, unless this policy and the client's memory bound its age.

        Raises:
            InvalidParameters: a bound is missing, which the operator of this client sets.
        """
        bound = self.lists_since if form is EvidenceFormat.SNP else self.minimum_tcb_evaluation
        if not bound or not is_remembered:
            name = "lists_since" if form is EvidenceFormat.SNP else "minimum_tcb_evaluation"
            missing = name if not bound else "newest= with a store"
            raise InvalidParameters(
                f"the collateral of this {form} evidence comes from the host, which may choose the oldest that is "
                f"valid: set {missing}, or give the judge collateral of your own"
            )

    def check(self, claims: Claims, expected_bind: bytes, now: datetime) -> datetime:
        """Accept claims and return until when, or say which rule they break.

        Args:
            expected_bind: the 64 bytes that the client computed from its own configuration and the enclave's keys.
            now: the time at which the claims were verified, with a time zone.
        Raises:
            PeerMisbehaved: with reason ``attestation_refused``, or ``collateral_stale`` for an old revocation list.
        Security: check again before each use of the keys that nothing has ended.
        """
        if type(expected_bind) is not bytes or len(expected_bind) != BIND_BYTES:
            raise Misuse(f"a binding is {BIND_BYTES} bytes, computed by the client itself")
        if type(claims) is not Claims:
            raise refused(f"{type(claims).__name__} is not what Verifier.verify returns; nothing vouches for it")
        if claims.debug:
            raise refused("it is a debug build, which its host can read; deploy a production build")
        if claims.migratable:
            raise refused("it may be migrated to another host; deploy it without a migration agent")
        if claims.privilege_level not in (None, self.privilege_level):
            raise refused(f"it runs at VMPL {claims.privilege_level}; the policy asks for {self.privilege_level}")
        if claims.sibling_threads and not self.sibling_threads_accepted:
            raise refused(
                "its guest policy allows SMT, so another guest may run on the same core and observe its timing; all "
                "clouds of today launch guests so: accept it with sibling_threads_accepted=True, or launch the guest "
                "with SMT denied on a host that has it switched off"
            )
        self._check_tcb(claims)
        found = [pinned.differences(claims) for pinned in self.accepted]
        if () not in found:
            nearest = min((names for names in found if names is not None), key=len, default=())
            listed = ", ".join(f"{name} {claims.measurement.get(name, b'').hex() or 'missing'}" for name in nearest)
            raise refused(
                f"no pinned measurement is that of this {claims.format} evidence; the nearest differs in "
                f"{listed or 'its format'}"
            )
        if claims.report_data != expected_bind:
            is_azure = claims.format is not EvidenceFormat.NITRO and not any(claims.report_data[32:])
            hint = f"; {AZURE}" if is_azure else ""
            raise refused(f"it is bound to other keys or another configuration than the client's{hint}")
        return self._end(claims, now)

    def _end(self, claims: Claims, now: datetime) -> datetime:
        """Return when the claims end, or the lists that they rest on are too old."""
        if claims.revoked_as_of is None:
            return claims.not_after
        if self.lists_since is not None and claims.revoked_as_of < self.lists_since:
            raise stale(
                f"a revocation list is of {claims.revoked_as_of}; the policy takes none before {self.lists_since}"
            )
        lists_end = claims.revoked_as_of + self.greatest_list_age
        if now > lists_end:
            raise stale(
                f"a revocation list is of {claims.revoked_as_of} and it is {now}; the policy takes lists of at most "
                f"{self.greatest_list_age.days} days: fetch the current one"
            )
        return min(claims.not_after, lists_end)

    def _check_tcb(self, claims: Claims) -> None:
        match claims.format, claims.tcb:
            case EvidenceFormat.NITRO, None:
                pass
            case EvidenceFormat.SNP, SnpTcb() as tcb:
                if self.minimum_snp_tcb is None or not tcb.reaches(self.minimum_snp_tcb):
                    raise refused(f"its firmware is {tcb}; the policy asks for {self.minimum_snp_tcb}")
                if (self.snp_revocation_required or self.lists_since is not None) and claims.revoked_as_of is None:
                    raise refused("revocation was not checked; give AMD's revocation list as collateral")
            case ((EvidenceFormat.TDX | EvidenceFormat.SGX), IntelTcb() as tcb):
                if not tcb.statuses <= self.accepted_tcb_statuses:
                    listed = ", ".join(sorted(tcb.statuses - self.accepted_tcb_statuses))
                    raise refused(
                        f"its platform is {listed} (advisories: {', '.join(sorted(tcb.advisories)) or 'none'})"
                    )
                if unmet := tcb.advisories - self.accepted_advisories:
                    raise refused(
                        f"{', '.join(sorted(unmet))} is open on its platform; mitigate it in the program, and name it "
                        "in accepted_advisories"
                    )
                if tcb.evaluation_number < self.minimum_tcb_evaluation:
                    raise refused(
                        f"the collateral is of TCB evaluation {tcb.evaluation_number}; the policy asks for "
                        f"{self.minimum_tcb_evaluation}"
                    )
            case _:
                raise refused(f"{claims.format} evidence was verified without collateral, so its TCB is unknown")
