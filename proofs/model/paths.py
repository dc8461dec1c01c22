"""The complete message sequences of one client: every message of the catalogue, in every order that its state accepts.

Each client is offered every message with all signatures that can ever exist; a message that it refuses even then is
refused in every schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations

from sessions import AGAIN
from setups import GENUINE, IMPOSTOR, REPLAYED, TRANSPLANTED, Set, Setup, Shown, shown_as
from showing import World

Messages = tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """What the server sends to one client in one attempt; each object is made once and compared by identity."""

    shown: Shown
    sharers: Set
    signed: tuple[Set, ...]
    """The sets of contributors that it is asked to sign, in order."""
    asked: tuple[Set, ...]
    """The contributors whose shares it is asked for."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the server may vary; in everything else it follows the protocol."""

    rosters: str = "everyone"
    """``everyone``; ``subsets``: any clients; ``keys``: also other keys under any names."""
    sharers: Callable[[Setup, int, int], bool] | None = None
    """The client and attempt for which the set of sharers is varied; all of them if missing."""
    lists: Callable[[Setup, int, int], bool] | None = None
    """The same for its sets of contributors; otherwise all clients are contributors."""
    sizes: frozenset[int] | None = None
    """Allowed sizes of these sets; any size if missing."""
    agreed: bool = False
    """The server follows the protocol: one roster, one set of sharers, one set of contributors."""


@dataclass
class Paths:
    """All paths of each client."""

    world: World
    catalogue: Catalogue
    refused: int = 0
    """Number of single messages that some client refused, whatever else existed."""
    broken: dict[str, None] = field(default_factory=dict[str, None])
    """What no client may ever do, but one did."""

    @property
    def setup(self) -> Setup:
        """Choose the parties."""
        return self.world.setup

    def of(self, client: int, attempt: int) -> list[Path]:
        """Return every maximal path of the client, if all signatures exist."""
        taken = list[Path]()
        for shown in self._rosters(client, attempt):
            messages = (self.world.roster_message(shown, client),)
            if self._takes(client, attempt, messages):
                taken.extend(self._after_roster(client, shown, messages))
        # A client that accepts no roster has still advertised its keys.
        return taken or [Path(self.world.whole_roster(attempt), frozenset(), (), ())]

    def _rosters(self, client: int, attempt: int) -> Iterator[Shown]:
        setup, kind_of = self.setup, self.catalogue.rosters
        if kind_of == "everyone":
            yield self.world.whole_roster(attempt)
            return
        for clients in subsets(setup.everyone):
            if client in clients and len(clients) > 1:
                yield shown_as(attempt, tuple((number, GENUINE) for number in sorted(clients)))
        if kind_of == "keys":
            kinds = [IMPOSTOR, TRANSPLANTED, *([REPLAYED] if setup.attempts > 1 else [])]
            for replaced in subsets(setup.everyone - {client}):
                for kind in kinds if replaced else ():
                    keys = {number: kind if number in replaced else GENUINE for number in setup.everyone}
                    yield shown_as(attempt, tuple(sorted(keys.items())))

    def _after_roster(self, client: int, shown: Shown, messages: Messages) -> Iterator[Path]:
        varied = self.catalogue.sharers is None or self.catalogue.sharers(self.setup, client, shown.attempt)
        uploaded = list[tuple[Path, Messages]]()
        for sharers in subsets(shown.clients) if varied else (shown.clients,):
            delivered = (*messages, self.world.shares_message(shown, client, sharers))
            if not self._takes(client, shown.attempt, delivered):
                continue
            for other in sorted(sharers - {client}):
                junk = self.world.shares_message(shown, client, sharers, frozenset({other}))
                self._takes(client, shown.attempt, (*messages, junk))
            uploaded.append((Path(shown, sharers, (), ()), delivered))
        for path, delivered in uploaded:
            if any(self._takes_next(client, path, delivered, other[-1]) for _, other in uploaded if other != delivered):
                self.broken["uploads twice in one session"] = None
            yield from self._after_upload(client, path, delivered)

    def _after_upload(self, client: int, path: Path, messages: Messages) -> Iterator[Path]:
        shown, attempt = path.shown, path.shown.attempt
        candidates = self._lists(client, shown)
        if client not in self.world.committee(shown):
            yield from self._after_signing(client, path, messages, candidates)
            return
        signable = list[Set]()
        for contributors in candidates:
            survivors = self.world.survivors_message(shown, path.sharers, contributors)
            if self._takes(client, attempt, (*messages, survivors)):
                signable.append(contributors)
            for other in shown.clients if contributors == path.sharers else ():
                # A set of sharers with one client more, or one fewer.
                survivors = self.world.survivors_message(shown, path.sharers ^ {other}, contributors)
                if self._takes(client, attempt, (*messages, survivors)):
                    self.broken["signs other sharers than it masked under"] = None
        for first in signable:
            sequence, again = (*messages, self.world.survivors_message(shown, path.sharers, first)), False
            for second in signable:
                following = self.world.survivors_message(shown, path.sharers, second)
                if second != first and (longer := self._takes_next(client, path, sequence, following)):
                    signed, again = Path(shown, path.sharers, (first, second), ()), True
                    yield from self._after_signing(client, signed, longer, signable)
            if not again:
                yield from self._after_signing(client, Path(shown, path.sharers, (first,), ()), sequence, signable)

    def _lists(self, client: int, shown: Shown) -> list[Set]:
        """Return the sets of contributors that a client receives."""
        varied, sizes = self.catalogue.lists, self.catalogue.sizes
        if varied is not None and not varied(self.setup, client, shown.attempt):
            return [shown.clients]
        return [members for members in subsets(shown.clients) if sizes is None or len(members) in sizes]

    def _after_signing(self, client: int, path: Path, messages: Messages, candidates: list[Set]) -> Iterator[Path]:
        asked = list[Path]()
        for first in candidates:
            sequence = (*messages, self.perfect_request(client, path, first))
            if not self._takes(client, path.shown.attempt, sequence):
                continue
            pairs = [
                Path(path.shown, path.sharers, path.signed, (first, second))
                for second in candidates
                if second != first
                and self._takes_next(client, path, sequence, self.perfect_request(client, path, second))
            ]
            asked += pairs or [Path(path.shown, path.sharers, path.signed, (first,))]
        yield from asked or [path]

    def _takes(self, client: int, attempt: int, messages: Messages) -> bool:
        accepted = self.world.run((client, GENUINE), attempt, messages).accepted
        self.refused += not accepted
        return accepted

    def _takes_next(self, client: int, path: Path, messages: Messages, second: bytes) -> Messages:
        """Return the sequence with another message of the same kind as the last one, if the client accepts it."""
        longer = (*messages, *self.next(second, is_second=True))
        return longer if self._takes(client, path.shown.attempt, longer) else ()

    def next(self, message: bytes, *, is_second: bool) -> Messages:
        """Return the messages to send; with restarts, a second message of a kind follows the state before the first."""
        return (AGAIN, message) if is_second and self.setup.restarts else (message,)

    def perfect_request(self, client: int, path: Path, contributors: Set) -> bytes:
        """Return the request with every signature, whether or not it exists in a schedule."""
        world, shown, both = self.world, path.shown, (path.sharers, contributors)
        endorsements = {
            member: self._any_signature(shown, member, world.endorsement_statement(shown, member, *both))
            for member in self.endorsers(shown, contributors)
        }
        views = [
            self._any_signature(shown, other, world.view_statement(shown, other, path.sharers))
            for other in self.viewers(client, shown, contributors)
        ]
        return world.request_message(shown, contributors, endorsements, views)

    def _any_signature(self, shown: Shown, signer: int, statement: bytes) -> bytes:
        return self.world.signed_by_server(shown, signer, statement) or self.world.sign(signer, statement)

    def endorsers(self, shown: Shown, contributors: Set) -> list[int]:
        """Return the possible signers: committee members that contributed, and corrupted ones."""
        return sorted(self.world.committee(shown) & (contributors | self.setup.corrupted))

    def viewers(self, client: int, shown: Shown, contributors: Set) -> list[int]:
        """Return the clients whose views a request to this client contains."""
        return sorted((contributors & shown.clients) - {client}) if self.setup.quorum else []


def useful(choices: list[list[Path]]) -> list[list[Path]]:
    """Skip signatures on sets that are never unmasked or asked for, if the client can be asked for another set."""
    unmasked = {contributors for paths in choices for path in paths for contributors in path.asked}
    kept = list[list[Path]]()
    for paths in choices:
        asked = {(path.shown, path.sharers) for path in paths if path.asked}
        kept.append(
            [
                path
                for path in paths
                if path.asked or unmasked & {*path.signed} or (path.shown, path.sharers) not in asked
            ]
        )
    return kept


def subsets(members: Set) -> Iterator[Set]:
    """Yield every subset, largest first."""
    ordered = sorted(members)
    sizes = range(len(ordered), -1, -1)
    return map(frozenset, chain.from_iterable(combinations(ordered, size) for size in sizes))


def described(path: Path) -> str:
    """Describe what a client received."""
    keys = [client if kind == GENUINE else f"{client} ({kind})" for client, kind in path.shown.keys]
    lists = [sorted(contributors) for contributors in path.signed], [sorted(asked) for asked in path.asked]
    seen = f"attempt {path.shown.attempt}: roster {keys}, sharers {sorted(path.sharers)}"
    return f"{seen}, signs {lists[0]}, asked {lists[1]}"
