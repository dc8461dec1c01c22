"""What follows from the holders' receipts: whose upload counts, who is to blame, and which holder refuses too much.

A refusal is a holder's word. It can frame a client or empty a cohort, so more than ``corrupted`` of them make a client
bad, fewer leave it out and name nobody alone, and a holder that refuses more than a share counts as absent. The share
is never below the number of clients that may be bad, or these would have an honest holder put out by dealing badly to
it alone. No cryptography: a table of words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from secagg.errors import PeerMisbehaved, Reason
from secagg.identifiers import ClientId, HolderId

from .requests import DeliveredShare, Verdict

LEAST_REFUSALS = 2
REFUSAL_SHARE = 8
"""A holder refuses one in so many uploads alone, or ``LEAST_REFUSALS``, before it counts as absent."""
Verdicts = Mapping[int, Verdict]
"""What the holders that are present say of one upload, by their positions."""


@dataclass(slots=True)
class Pending:
    """An upload whose receipts are due."""

    kept: bytes
    """What the adder is given: the vector, where it lies nowhere else."""
    digest: bytes
    shares: tuple[DeliveredShare, ...]
    verdicts: dict[int, Verdict] = field(default_factory=dict[int, Verdict])


@dataclass(slots=True)
class Receipts:
    """The state that refusals leave behind."""

    corrupted: int
    """The most holders that lie."""
    corrupted_clients: int
    """The most clients that deal badly: a holder that alone refuses more of them lies."""
    delivered: int = 0
    absent: set[int] = field(default_factory=set[int])
    refused: dict[int, int] = field(default_factory=dict[int, int])

    def settle(
        self, uploads: Mapping[ClientId, Verdicts]
    ) -> tuple[dict[ClientId, PeerMisbehaved], list[PeerMisbehaved]]:
        """Judge a batch: return who is left out and why, and what holders did wrong; the others count."""
        faults = list[PeerMisbehaved]()
        self.delivered += len(uploads)
        for position in sorted({holder for verdicts in uploads.values() for holder in verdicts} - self.absent):
            said = [self._present(verdicts) for verdicts in uploads.values() if position in verdicts]
            if any(verdicts[position] is Verdict.NOT_AUTHENTIC for verdicts in said):
                faults.append(_lost(position, "says of an upload that verifies that it does not"))
                self.absent.add(position)
                continue
            alone = sum(
                verdicts[position] is not Verdict.ACCEPTED and len(_refusing(verdicts)) <= self.corrupted
                for verdicts in said
            )
            self.refused[position] = self.refused.get(position, 0) + alone
            if self.refused[position] > max(LEAST_REFUSALS, self.corrupted_clients, self.delivered // REFUSAL_SHARE):
                count = f"{self.refused[position]} uploads, and {self.corrupted_clients} clients may be bad"
                faults.append(_lost(position, f"alone refused {count}"))
                self.absent.add(position)
        left_out = dict[ClientId, PeerMisbehaved]()
        for client, verdicts in uploads.items():
            if refusing := _refusing(self._present(verdicts)):
                left_out[client] = self._left_out(client, refusing)
        return left_out, faults

    def _present(self, verdicts: Verdicts) -> Verdicts:
        return {position: verdict for position, verdict in verdicts.items() if position not in self.absent}

    def _left_out(self, client: ClientId, refusing: frozenset[int]) -> PeerMisbehaved:
        holders = frozenset(HolderId(position) for position in refusing)
        if len(refusing) > self.corrupted:
            return PeerMisbehaved(
                f"{client} dealt shares that {len(refusing)} holders refuse, more than can lie",
                reason=Reason.SHARE_OUT_OF_RANGE,
                culprits={client},
            )
        return PeerMisbehaved(
            f"{client} dealt badly, or {', '.join(map(str, sorted(holders)))} say so and lie",
            reason=Reason.SHARE_OUT_OF_RANGE,
            culprits={client, *holders},
        )


def who_is_away(count: int, there: Collection[int], refusals: Mapping[int, str]) -> str:
    """Say which of so many holders are not there: with what they said those that refused, and the others by name."""
    away = [position for position in range(count) if position not in there]
    said = [f"{HolderId(position)} refused: {refusals[position]}" for position in away if position in refusals]
    missing = ", ".join(str(HolderId(position)) for position in away if position not in refusals)
    return "; ".join([*said, f"missing: {missing}"] if missing else said)


def _refusing(verdicts: Verdicts) -> frozenset[int]:
    return frozenset(position for position, verdict in verdicts.items() if verdict is not Verdict.ACCEPTED)


def _lost(position: int, what: str) -> PeerMisbehaved:
    return PeerMisbehaved(
        f"{HolderId(position)} {what}, and counts as absent",
        reason=Reason.SHARE_OUT_OF_RANGE,
        culprits={HolderId(position)},
    )
