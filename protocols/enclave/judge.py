"""A client's judge of evidence, which keeps to the client's own policy; and the file that an operator writes for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.store import Store

from .attestation import (
    Collateral,
    Evidence,
    EvidenceFormat,
    PinnedMeasurement,
    Policy,
    SnpTcb,
    TcbStatus,
    Verifier,
)
from .attestation.claims import Claims, stale
from .collateral import decode_collateral
from .verified_enclave import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareJudge:
    """Accepts what a hardware vendor vouches for and the client's own policy pins."""

    policy: Policy
    verifier: Verifier
    collateral: Collateral = None
    """The client's own; without it, what the host relays."""
    newest: Store | None = None
    """Remembers the newest collateral that a host relayed, which would otherwise be the oldest that is valid."""

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged here
        collateral, is_relayed = self.collateral, False
        if collateral is None and type(evidence) is Evidence and evidence.relayed:
            collateral, is_relayed = decode_collateral(evidence.relayed, evidence.format), True
            self.policy.require_bounds(evidence.format, is_remembered=self.newest is not None)
        if collateral is None and type(evidence) is Evidence and evidence.format is EvidenceFormat.SNP:
            raise stale("an SEV-SNP report came without collateral, and this client has none of its own")
        claims = self.verifier.verify(evidence, collateral, now)
        not_after = self.policy.check(claims, binding, now)
        if is_relayed and self.newest is not None:
            _require_newest(self.newest, claims)
        registers = ", ".join(f"{name} {value.hex()[:16]}" for name, value in sorted(claims.measurement.items()))
        return Judgement(f"{claims.format}: {registers}", not_after)


def _require_newest(store: Store, claims: Claims) -> None:
    """Refuse collateral that is older than some that this client has accepted, and remember it."""
    # By issuer: what one authority has issued since is no reason to refuse the newest list of another.
    found = {b"revocation list of " + issuer: int(issued.timestamp()) for issuer, issued in claims.lists.items()}
    found[f"{claims.format} evaluation".encode()] = getattr(claims.tcb, "evaluation_number", 0)
    for place, number in found.items():
        if number < (seen := store.newest(place, 0)):
            what = "TCB evaluation" if place.endswith(b"evaluation") else "a revocation list of second"
            raise stale(f"the relayed collateral has {what} {number}, and this client has seen {seen}")
    for place, number in found.items():
        store.reach(place, 0, number)


# --- The file ---------------------------------------------------------------------------------------------------------

_KEYS: Final[Mapping[EvidenceFormat, frozenset[str]]] = {
    EvidenceFormat.NITRO: frozenset(),
    EvidenceFormat.SNP: frozenset({"minimum_tcb", "lists_since", "sibling_threads_accepted"}),
    EvidenceFormat.TDX: frozenset({"minimum_tcb_evaluation", "accepted_tcb_statuses", "accepted_advisories"}),
    EvidenceFormat.SGX: frozenset({"minimum_tcb_evaluation", "accepted_tcb_statuses", "accepted_advisories"}),
}


def read_policy(path: Path) -> Policy:
    """Read which programs a client's operator accepts, on which hardware. The file never comes from the server.

        {"format": "nitro", "accepted": [{"PCR0": "<96 hexadecimal digits>", "PCR1": "...", "PCR2": "..."}]}
        {"format": "sev-snp", "accepted": [{"MEASUREMENT": "..."}], "lists_since": "2026-06-01",
         "minimum_tcb": {"boot_loader": 4, "tee": 0, "snp": 22, "microcode": 213}}
        {"format": "tdx", "accepted": [{"MRTD": "...", "RTMR0": "...", ...}], "minimum_tcb_evaluation": 18}

    Raises:
        InvalidParameters: there is no such file, or it is not a policy.
    """
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
        form = EvidenceFormat(fields.pop("format"))
        accepted = tuple(
            PinnedMeasurement(form, {name: bytes.fromhex(value) for name, value in pinned.items()})
            for pinned in fields.pop("accepted")
        )
        if unknown := sorted(fields.keys() - _KEYS[form]):
            listed = ", ".join(sorted(_KEYS[form])) or "nothing more"
            raise InvalidParameters(f"{path} has {unknown[0]!r}; a policy for {form} evidence may have {listed}")
        read = {
            _NAMES.get(name, name): _READ[name](value) if name in _READ else value for name, value in fields.items()
        }
        return Policy(accepted=accepted, **read)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParameters(
            f"{path} is not a readable enclave policy ({error}); it names a format and the measurements it accepts"
        ) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice: the last one would hold."""
    if len(names := dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return names


def _listed(names: Any) -> frozenset[Any]:  # noqa: ANN401 -- the policy checks them
    if type(names) is not list:
        raise ValueError(f"{names!r} is no list")
    return frozenset(names)  # pyright: ignore[reportUnknownArgumentType]


_NAMES: Final = {"minimum_tcb": "minimum_snp_tcb"}
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "accepted_advisories": _listed,
    "accepted_tcb_statuses": lambda names: frozenset(map(TcbStatus, _listed(names))),
    "lists_since": lambda day: datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC),
    "minimum_tcb": lambda parts: SnpTcb(**parts),
}
