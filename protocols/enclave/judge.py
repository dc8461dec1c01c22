"""Judges attestation evidence by a client's policy; reads policy files and endorsements (signed policies)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from secagg.crypto.labels import Label
from secagg.declared import Message, fixed, unsigned, variable
from secagg.errors import AuthenticationFailed, InvalidParameters, Reason
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, SigningKey, Standing, verify_signature
from secagg.session.standings import CLOCKS_APART
from secagg.session.store import Store
from secagg.wire import MessageKind

from .attestation import (
    Collateral,
    Evidence,
    EvidenceFormat,
    PinnedEndorser,
    PinnedMeasurement,
    Policy,
    SnpTcb,
    TcbStatus,
    Verifier,
)
from .attestation.claims import Claims, invalid, refused, stale
from .attestation.policy import MOST_ENDORSED_DAYS
from .collateral import KINDS, decode_collateral
from .verified_enclave import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareJudge:
    """Accepts an enclave if its hardware vendor vouches for it and the client's policy pins it."""

    policy: Policy
    verifier: Verifier
    collateral: Collateral = None
    """The client's own collateral; None to use the collateral that the host relays."""
    newest: Store | None = None
    """Remembers the newest collateral, so that the host cannot return to older collateral that has not expired."""

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged here
        collateral, endorsement, is_relayed = self.collateral, b"", False
        if type(evidence) is Evidence and evidence.relayed:
            relayed, endorsement = decode_collateral(evidence.relayed, evidence.format)
            if collateral is None and relayed is not None:
                collateral, is_relayed = relayed, True
                self.policy.require_bounds(evidence.format, is_remembered=self.newest is not None)
        if type(evidence) is Evidence and collateral is not None and type(collateral) is not KINDS.get(evidence.format):
            raise refused(f"the evidence is {evidence.format}, but this client's collateral is for another family")
        if collateral is None and type(evidence) is Evidence and evidence.format is EvidenceFormat.SNP:
            raise stale("an SEV-SNP report needs collateral; the host relayed none and this client has none")
        claims = self.verifier.verify(evidence, collateral, now)
        policies, endorsed_until = _in_force(self.policy, claims.format, endorsement, now, self.newest)
        not_after = min(endorsed_until, *(policy.check(claims, binding, now) for policy in policies))
        if is_relayed and self.newest is not None:
            _require_newest(self.newest, claims)
        registers = ", ".join(f"{name} {value.hex()[:16]}" for name, value in sorted(claims.measurement.items()))
        return Judgement(f"{claims.format}: {registers}", not_after)


def _require_newest(store: Store, claims: Claims) -> None:
    """Refuse collateral older than what this client accepted before; otherwise remember it."""
    # Kept by issuer: a newer list of one authority does not make another authority's newest list stale.
    found = {b"revocation list of " + issuer: int(issued.timestamp()) for issuer, issued in claims.lists.items()}
    found[f"{claims.format} evaluation".encode()] = getattr(claims.tcb, "evaluation_number", 0)
    for place, number in found.items():
        if number < (seen := store.newest(place, 0)):
            what = "TCB evaluation" if place.endswith(b"evaluation") else "a revocation list issued at second"
            raise stale(f"the relayed collateral has {what} {number}, older than {seen}, which this client accepted")
    for place, number in found.items():
        store.reach(place, 0, number)


# --- Endorsements -----------------------------------------------------------------------------------------------------

_DAY: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement(Message):
    """A policy signed by a key that clients pin; says which programs to accept now, and on which hardware."""

    kind: ClassVar = MessageKind.ENCLAVE_ENDORSEMENT
    key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    number: Annotated[int, unsigned(8)]
    """Time of signing, in seconds since 1970, like the number of a standing."""
    until: Annotated[int, unsigned(8)]
    policy: Annotated[bytes, variable(1 << 16)]
    """A policy file that pins measurements."""
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = bytes(SIGNATURE_BYTES)

    @property
    def standing(self) -> Standing:
        """The standing that a client remembers; two different ones with the same number prove equivocation."""
        digest = hashlib.sha256(self.until.to_bytes(8, "big") + self.policy).digest()
        return Standing(number=self.number, digest=digest, signature=self.signature)

    def verified(self, days: int, now: datetime) -> datetime:
        """Verify the signature and return when the endorsement expires for a client with this limit on its age."""
        try:
            verify_signature(self.key, self.signature, Label.ENCLAVE_ENDORSEMENT, self.key, *self.standing.parts)
        except AuthenticationFailed:
            raise invalid(f"endorsement {self.number} is not signed by key {self.key.hex()}") from None
        longest = self.number + MOST_ENDORSED_DAYS * _DAY
        if self.number > now.timestamp() + CLOCKS_APART or self.until > longest:
            raise stale(f"endorsement {self.number} is dated in the future or lasts over {MOST_ENDORSED_DAYS} days")
        end = datetime.fromtimestamp(min(self.until, self.number + days * _DAY), UTC)
        if now >= end:
            raise stale(f"endorsement {self.number} expired at {end:%Y-%m-%d %H:%M} UTC; give the server a newer one")
        return end


def endorse(key: SigningKey, policy: bytes, *, days: int, now: datetime) -> Endorsement:
    """Sign a policy file, dated now.

    Raises:
        InvalidParameters: the file pins an endorser, or ``days`` is not between 1 and 90.
    """
    if any(isinstance(pinned, PinnedEndorser) for pinned in _policy_of(policy, "the policy").accepted):
        raise InvalidParameters("this policy pins an endorser; only a policy that pins measurements can be endorsed")
    if type(days) is not int or not 1 <= days <= MOST_ENDORSED_DAYS:
        raise InvalidParameters(f"an endorsement must last 1 to {MOST_ENDORSED_DAYS} days; got {days!r}")
    number = int(now.timestamp())
    made = Endorsement(key=key.public_key, number=number, until=number + days * _DAY, policy=policy)
    return replace(made, signature=key.sign(Label.ENCLAVE_ENDORSEMENT, key.public_key, *made.standing.parts))


def _in_force(
    policy: Policy, form: EvidenceFormat, relayed: bytes, now: datetime, newest: Store | None
) -> tuple[tuple[Policy, ...], datetime]:
    """Return policies that evidence must all satisfy: an endorsement names programs but relaxes no rule."""
    endorsers = [each for each in policy.accepted if isinstance(each, PinnedEndorser) and each.format is form]
    if not endorsers:
        return (policy,), datetime.max.replace(tzinfo=UTC)
    if newest is None:
        raise InvalidParameters("a client that pins an endorser must remember endorsements: set newest= to a store")
    if not relayed:
        raise refused(f"the {form} evidence has no endorsement; give the server the newest one of the pinned key")
    shown = Endorsement.decode(relayed)
    days = next((each.days for each in endorsers if each.key == shown.key), 0)
    if not days:
        raise refused(f"the endorsement is by key {shown.key.hex()}, which this client does not pin")
    end = shown.verified(days, now)
    endorsed = _policy_of(shown.policy, "the endorsement")
    if {each.format for each in endorsed.accepted} != {form}:
        raise refused(f"the endorsement must pin measurements of {form} evidence only")
    try:
        newest.see_standing(b"endorser of " + form.encode() + b" " + shown.key, shown.standing)
    except InvalidParameters as error:
        if error.reason is not Reason.BELOW_FLOOR:
            raise
        raise stale(f"endorsement {shown.number} is older than one seen before, or differs from it") from None
    return (replace(policy, accepted=endorsed.accepted), endorsed), end


# --- The file ---------------------------------------------------------------------------------------------------------

_KEYS: Final[Mapping[EvidenceFormat, frozenset[str]]] = {
    EvidenceFormat.NITRO: frozenset(),
    EvidenceFormat.SNP: frozenset({"minimum_tcb", "lists_since", "sibling_threads_accepted", "privilege_level"}),
    EvidenceFormat.TDX: frozenset({"minimum_tcb_evaluation", "accepted_tcb_statuses", "accepted_advisories"}),
    EvidenceFormat.SGX: frozenset({"minimum_tcb_evaluation", "accepted_tcb_statuses", "accepted_advisories"}),
}


def read_policy(path: Path) -> Policy:
    """Read the programs and hardware that the client's operator accepts. The file must never come from the server.

        {"format": "nitro", "accepted": [{"PCR0": "<96 hexadecimal digits>", "PCR1": "...", "PCR2": "..."}]}
        {"format": "sev-snp", "accepted": [{"MEASUREMENT": "..."}], "lists_since": "2026-06-01",
         "minimum_tcb": {"boot_loader": 4, "tee": 0, "snp": 22, "microcode": 213}}
        {"format": "tdx", "accepted": [{"MRTD": "...", "RTMR0": "...", ...}], "minimum_tcb_evaluation": 18}
        {"format": "nitro", "accepted": [{"endorser": "<64 hexadecimal digits>", "days": 7}]}

    Raises:
        InvalidParameters: the file cannot be read or is not a policy.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidParameters(f"cannot read the enclave policy {path} ({error.strerror})") from None
    return _policy_of(content, str(path))


def _policy_of(content: bytes, path: str) -> Policy:
    try:
        fields: dict[str, Any] = json.loads(content.decode("utf-8"), object_pairs_hook=_once)
        form = EvidenceFormat(fields.pop("format"))
        accepted = tuple(_pinned(form, pinned) for pinned in fields.pop("accepted"))
        if unknown := sorted(fields.keys() - _KEYS[form]):
            listed = ", ".join(sorted(_KEYS[form])) or "nothing else"
            raise InvalidParameters(f"{path} has {unknown[0]!r}; a policy for {form} evidence may also set {listed}")
        read = {
            _NAMES.get(name, name): _READ[name](value) if name in _READ else value for name, value in fields.items()
        }
        return Policy(accepted=accepted, **read)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidParameters(
            f"{path} is not an enclave policy ({error}); a policy names a format and the measurements it accepts"
        ) from None


def _pinned(form: EvidenceFormat, values: dict[str, Any]) -> PinnedMeasurement | PinnedEndorser:
    if "endorser" in values:
        return PinnedEndorser(form, bytes.fromhex(values.pop("endorser")), **values)
    return PinnedMeasurement(form, {name: bytes.fromhex(value) for name, value in values.items()})


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate names; Python's JSON parser would silently keep the last one."""
    if len(names := dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return names


def _listed(names: Any) -> frozenset[Any]:  # noqa: ANN401 -- the policy checks them
    if type(names) is not list:
        raise ValueError(f"{names!r} is not a list")
    return frozenset(names)  # pyright: ignore[reportUnknownArgumentType]


_NAMES: Final = {"minimum_tcb": "minimum_snp_tcb"}
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "accepted_advisories": _listed,
    "accepted_tcb_statuses": lambda names: frozenset(map(TcbStatus, _listed(names))),
    "lists_since": lambda day: datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC),
    "minimum_tcb": lambda parts: SnpTcb(**parts),
}
