"""Defects of the two servers: each check removed by itself, and functions that forget."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from defects import Replacement, altered
from secagg.errors import PeerError
from secagg.protocols.two_servers.offers import Entry, RoundRules, RoundState
from secagg.protocols.two_servers.release import Release
from secagg.protocols.two_servers.server import IndexingServer
from secagg.simulation.insecure_coins import InsecureSeededCoins

# --- Checks -----------------------------------------------------------------------------------------------------------

CHECKS: dict[str, tuple[type, str, str, str]] = {
    "a client has one upload": (RoundRules, "require_new", "known is not None", "False"),
    "the round has room": (
        RoundRules,
        "require_new",
        "len(self._entries) - self.number_of(Standing.REJECTED) >= self.maximum_cohort",
        "False",
    ),
    "an upload comes while the round collects": (
        IndexingServer,
        "_require_collecting",
        "self._rules.state is not RoundState.COLLECTING",
        "False",
    ),
    "the rules collect": (RoundRules, "require_new", "self.require(RoundState.COLLECTING)", "pass"),
    "few uploads are rejected": (RoundRules, "list_to_sign", "rejected > self.maximum_rejections", "False"),
    "enough uploads": (RoundRules, "list_to_sign", "len(counted) < self.minimum_cohort", "False"),
    "a decision comes in its turn": (
        IndexingServer,
        "settle",
        'self._require_turn("a conclusion", RoundState.COLLECTING)',
        "pass",
    ),
    "uploads move while the rules collect": (RoundRules, "_move", "self.require(RoundState.COLLECTING)", "pass"),
    "an upload that was asked about is decided": (
        IndexingServer,
        "settle",
        "self._rules.standing(item[0]) is Standing.ASKED",
        "item[0] in self._pending",
    ),
    "an upload is added that was asked about": (
        RoundRules,
        "require_asked",
        "self._standing.get(upload_id) is not Standing.ASKED",
        "False",
    ),
    "one list is signed": (IndexingServer, "close", "self._release.signed_list is None", "True"),
    "the rules list while they collect": (RoundRules, "list_to_sign", "self.require(RoundState.COLLECTING)", "pass"),
    "lists are the same": (
        Release,
        "require_same_list",
        "(theirs.entries_digest, theirs.contributors) != (ours.entries_digest, ours.contributors)",
        "False",
    ),
    "lists are of one length": (
        Release,
        "require_same_list",
        "(theirs.entries_digest, theirs.contributors) != (ours.entries_digest, ours.contributors)",
        "theirs.entries_digest != ours.entries_digest",
    ),
    "a share follows an agreement": (
        IndexingServer,
        "open",
        'self._require_turn("a commitment", RoundState.AGREED)',
        "pass",
    ),
    "one commitment is heard": (Release, "read_commitment", "self.peer_commitment not in (None, theirs)", "False"),
    "an upload is asked about once": (IndexingServer, "_say", "pending.asked not in (None, question)", "False"),
}
"""Checks of the rules and of the operator, by what each ensures: its place, and the replacement that removes it."""


def without(*names: str) -> tuple[Replacement, ...]:
    """Remove checks, possibly several in one function."""
    changes = dict[tuple[type, str], list[tuple[str, str]]]()
    for name in names:
        place, function, old, new = CHECKS[name]
        changes.setdefault((place, function), []).append((old, new))
    return tuple(altered(place, function, *pairs) for (place, function), pairs in changes.items())


# --- Functions that forget --------------------------------------------------------------------------------------------

_REQUIRE, _OPEN, _LIST = RoundRules.require, IndexingServer.open, RoundRules.list_to_sign
_ONLY_ASKED = IndexingServer._take  # noqa: SLF001


def still_collecting(self: RoundRules, *states: RoundState) -> None:
    """Collect after the list was signed."""
    if RoundState.COLLECTING not in states or self.state is not RoundState.SIGNED:
        _REQUIRE(self, *states)


def still_its_turn(self: Any, received: str, *states: RoundState) -> None:  # noqa: ANN401 -- a server
    """Accept messages about uploads after the list was signed."""
    if RoundState.COLLECTING not in states or self._rules.state is not RoundState.SIGNED:
        _TURN(self, received, *states)


def close_again(self: Any) -> bytes:  # noqa: ANN401 -- a server
    """Sign the current list, whatever it is."""
    self._release.signed_list = self._release.sign(self._rules.list_to_sign())
    self._rules.sign()
    return self._release.signed_list  # type: ignore[no-any-return]


def everybody(self: RoundRules) -> tuple[Entry, ...]:
    """List every accepted client."""
    self.require(RoundState.COLLECTING)
    return tuple(sorted(self.taken())) or _LIST(self)


def open_early(self: Any, peer_commitment: bytes) -> bytes:  # noqa: ANN401 -- a server
    """Open the share before the other server has signed."""
    if self._rules.state is RoundState.SIGNED:
        self._release.share = self._release.encode_share(self._nonce_key, self._totals)
        self._rules.agree()
    return _OPEN(self, peer_commitment)


def another_of_the_client(self: RoundRules, entry: Entry) -> bool:
    """Accept any upload that is not yet known."""
    self.require(RoundState.COLLECTING)
    return entry.upload_id not in self._entries


def take_again(self: Any, upload_id: bytes) -> None:  # noqa: ANN401 -- a server
    """Add an upload twice."""
    self._pending[upload_id].add_to(self._totals)
    _ONLY_ASKED(self, upload_id)


def ask_again(self: Any, upload_id: bytes, heard: bytes, say: Callable[[], bytes]) -> bytes | None:  # noqa: ANN401
    """Forget what was asked."""
    self._pending[upload_id].asked = None
    return _SAID(self, upload_id, heard, say)


def take_anyway(self: Any, upload_id: bytes, heard: bytes | None, decide: Callable[..., bytes]) -> bytes | None:  # noqa: ANN401
    """Accept an upload whatever the check says."""
    if heard is None:
        return _DECIDED(self, upload_id, heard, decide)
    with suppress(PeerError):
        return _decided_by(self, upload_id, heard, decide)
    return heard


def _decided_by(self: Any, upload_id: bytes, heard: bytes, decide: Callable[..., bytes]) -> bytes:  # noqa: ANN401
    return decide(self._pending[upload_id].exchange, heard)


_TURN: Any = IndexingServer._require_turn  # noqa: SLF001
_SAID: Any = IndexingServer._say  # noqa: SLF001
_DECIDED: Any = IndexingServer._decide  # noqa: SLF001


def one_root(_: object, index: int, __: int) -> InsecureSeededCoins:
    """Start every run of a server with the root of the first."""
    return InsecureSeededCoins(bytes([index, 0]))
