"""What simulations of protocols share: keys of clients, and the cost of a session by a protocol's own formulas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from secagg.contract.layout import RingSegment, Segment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId

from .certificates import Authority, Certificate, SigningKey, issue_certificate, new_signing_key
from .standings import Clock, Standing


class SimulatedKeys(Confined):
    """An authority that nobody else holds, and the keys of clients, each drawn when it is first asked for."""

    def __init__(self, coins: Coins) -> None:
        self._coins, self._root = coins, new_signing_key(coins)
        self._keys = dict[ClientId, tuple[SigningKey, Certificate]]()

    @property
    def authority(self) -> Authority:
        return Authority(self._root.public_key)

    def standing(self, clock: Clock) -> Standing:
        """Return the head of a roster of now, in which nobody was revoked."""
        return Standing(number=int(clock().timestamp())).signed(self._root)

    def of(self, client: ClientId) -> tuple[SigningKey, Certificate]:
        if client not in self._keys:
            key = new_signing_key(self._coins)
            self._keys[client] = key, issue_certificate(self._root, client, key.public_key)
        return self._keys[client]

    def __repr__(self) -> str:
        return f"<SimulatedKeys of {len(self._keys)} clients>"


AES_BLOCK_BYTES: Final = 16
ONE_IN: Final = 20
"""A planned session withstands one corrupted client in so many, and as many that drop out."""
_WORDS_OF_A_CALL: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Counted computation of one party in a session."""

    cipher_calls: int = 0
    """Blocks of 16 bytes that AES expands masks, shares or indices into."""
    word_operations: int = 0
    """Additions of words; also multiplications with additions where clients are checked."""
    steps: int = 1
    """Work independent of the layout, in units of the protocol's own: clients, or edges of its graph."""

    @property
    def words(self) -> int:
        """Work that grows with the layout, in one number: a cipher call takes about as long as two words."""
        return _WORDS_OF_A_CALL * self.cipher_calls + self.word_operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """One form of a protocol, for one layout and cohort; bytes are those of one client."""

    plan: str
    """The parameters and the omissions, in a sentence."""
    payload_bytes: int
    """The values alone, packed."""
    up_bytes: int
    down_bytes: int
    between_bytes: int = 0
    """Bytes between the server and its helpers, for one client."""
    client: Work
    server: Work
    """Work of the server for all clients together, with that of its helpers."""
    variant: str = ""
    """Which of several forms of the protocol."""
    is_checked: bool = True
    """Whether a client cannot vote more than once, where it votes at all."""
    reveals_counts: bool = False
    """Whether the server learns how often each index was chosen, even where only the sum is asked for."""


def mask_cipher_calls(segments: Iterable[Segment]) -> int:
    """Return how many cipher calls one mask takes: its words have the bytes of the machine's, not of the wire's."""
    return sum(-(-ring.length * ring.ring.word_bytes // AES_BLOCK_BYTES) for ring in _rings(segments))


def ring_length(segments: Iterable[Segment]) -> int:
    """Return how many ring elements there are."""
    return sum(ring.length for ring in _rings(segments))


def _rings(segments: Iterable[Segment]) -> Iterable[RingSegment]:
    return (segment for segment in segments if isinstance(segment, RingSegment))
