"""The two servers under any scheduler: a network that repeats and drops messages, or one corrupted server.

The search runs the library's own ``IndexingServer`` with its state and rules, and its ``Client`` with a ledger. The
scheduler may deliver each existing message at any time and any number of times, restart a server's process with another
root, and send everything that a corrupted server or client could send.
Every sequence is tried until nothing new is reached; sequences that lead to the same state are continued once. A
server is a function of its memory: each step of each of its states is run once, and worlds are composed of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

from indexing_cast import COHORT, HONEST, REJECTIONS, Place, copied, memory_of, total_of
from report import Report, steps_to
from secagg.errors import SecAggError
from secagg.protocols.two_servers.offers import Entry, RoundState, Standing
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import AcceptedList, decode_batch
from secagg.session.ledger import Spent, SpentUpdates
from secagg.wire import MessageKind

Entries = tuple[Entry, ...]
BATCHES = {"answer": MessageKind.INDEXING_ANSWER}
STARTS_AGAIN = "start again"
SAYS = {
    "propose": "proposal",
    "answer": "answer",
    "conclude": "conclusion",
    "close": "list",
    "agree": "commitment",
    "open": "share",
    "combine": "result",
}
HEARS = {
    "proposal": (0, "answer"),
    "answer": (1, "conclude"),
    "conclusion": (0, "settle"),
    "list": (None, "agree"),
    "commitment": (None, "open"),
    "share": (None, "combine"),
}
HEARS_AT = {"agree": "list", "open": "commitment"}


class Action(NamedTuple):
    """One call of one server."""

    name: str
    method: str
    arguments: tuple[Any, ...] = ()


class Fact(NamedTuple):
    """Something that a server did, which is not undone when its process ends."""

    place: int
    server: int
    kind: str
    what: Any


class Step(NamedTuple):
    """The result of an action."""

    name: str
    state: int
    facts: int


class Driven:
    """One honest server: every state that it reached, and the result of each action in it."""

    def __init__(self, search: Search, place: int, index: int) -> None:
        """Start with a new server."""
        self.search, self.place, self.index = search, place, index
        self.at: Place = search.places[place]
        self.actions = list[Action]()
        """The actions that are possible at any time."""
        self._servers = list[IndexingServer]()
        self._known = dict[Any, int]()
        self._steps = dict[tuple[int, Action], Step]()
        self._moves = dict[int, list[Step]]()
        self._replies = dict[tuple[int, int], list[Step]]()
        self.faults = dict[int, str]()
        self.start = self._state_of(self.at.server(index))

    def moves(self, state: int, heard: int) -> list[Step]:
        """Return the steps that change something: those possible at any time, and those that messages cause."""
        if state not in self._moves:
            self._moves[state] = self._telling(state, self.actions)
        heard &= self.search.hearable[self.place]
        if (state, heard) not in self._replies:
            self._replies[state, heard] = self._moves[state] + self._telling(state, self._deliveries(heard))
        return self._replies[state, heard]

    def _telling(self, state: int, actions: Iterable[Action]) -> list[Step]:
        steps = [self.step(state, action) for action in actions]
        return [step for step in steps if step.facts or step.state != state]

    def _deliveries(self, heard: int) -> Iterator[Action]:
        """Return what can be delivered to this server: any message of any party."""
        for fact in self.search.facts(heard):
            if fact.kind == "upload":
                yield Action(f"receive {fact.what[0]}", "receive", (fact.what[1][self.index],))
                continue
            whom, method = HEARS[fact.kind]
            if whom in (None, self.index):
                who = self.search.title(fact.place, fact.server)
                yield Action(f"{method} (the {fact.kind} of {who})", method, (fact.what,))

    def step(self, state: int, action: Action) -> Step:
        """Take one step, once."""
        if (state, action) not in self._steps:
            self._steps[state, action] = self._take(state, action)
        return self._steps[state, action]

    def _take(self, state: int, action: Action) -> Step:
        self.search.report.calls += 1
        server, facts = copied(self._servers[state]), list[Fact]()
        noted = partial(Fact, self.place, self.index)
        try:
            if action.method == STARTS_AGAIN:
                # As if the file of started rounds was restored from a backup.
                server, said = self.at.server(self.index, life=1), None
            else:
                said = getattr(server, action.method)(*action.arguments)
        except (SecAggError, KeyError):
            # A call that no rule refuses can still fail.
            self.search.report.refused += 1
        else:
            if action.method in SAYS:
                facts.append(noted(SAYS[action.method], _plain(said)))
            if action.method in ("agree", "open"):
                facts.append(noted("heard", (HEARS_AT[action.method], action.arguments[0])))
        kept: Any = server
        if kept._rules.state is RoundState.FAILED:  # noqa: SLF001
            facts.append(noted("gave up", None))
        mask = sum(1 << self.search.number_of(fact) for fact in facts)
        return Step(f"{self.search.title(self.place, self.index)}: {action.name}", self._state_of(server), mask)

    def _state_of(self, server: IndexingServer) -> int:
        key = memory_of(server)
        if key not in self._known:
            number = self._known[key] = len(self._servers)
            self._servers.append(server)
            fault = self._fault_in(server)
            if fault is not None:
                self.faults[number] = f"{self.search.title(self.place, self.index)} {fault}"
        return self._known[key]

    def _fault_in(self, server: Any) -> str | None:  # noqa: ANN401 -- a server, with its memory
        """Return the fault in what a server remembers."""
        rules, totals = server._rules, server._totals  # noqa: SLF001
        if rules.state is RoundState.FAILED:
            return None
        taken, modulus = rules.taken(), 1 << self.at.layout.segments[0].modulus_bits
        values = {sent.entry.upload_id: sent.values[self.index] for sent in self.at.sent.values()}
        if total_of(totals) != sum(values[entry.upload_id] for entry in taken) % modulus:
            return "has added something else than each upload that it took, once"
        if server._release.signed_list is not None:  # noqa: SLF001
            if set(taken) != set(rules.counted):
                return "took an upload after it had signed its list"
            if rules.number_of(Standing.REJECTED) > REJECTIONS:
                return "closed a round in which too many were rejected"
        return None


def _plain(said: Any) -> Any:  # noqa: ANN401 -- a message or a result
    if isinstance(said, RoundResult):
        return int(said.aggregate.values[0][0]), said.counted
    return said


class Stored(SpentUpdates):
    """A client's ledger, with its stored content; a model has one attempt."""

    def __init__(self, stored: tuple[Spent, ...]) -> None:
        """Continue from stored content."""
        super().__init__(attempts=1)
        self.stored: tuple[Spent, ...] = ()
        for spent in stored:
            self.charge(spent)

    def charge(self, spent: Spent, *, is_repeat_allowed: bool = False, maximum: int | None = None) -> None:
        """Store the upload as well."""
        super().charge(spent, is_repeat_allowed=is_repeat_allowed, maximum=maximum)
        self.stored = tuple(dict.fromkeys((*self.stored, spent)))


class World(NamedTuple):
    """The states of all servers, their actions so far, and the clients' stored ledgers."""

    states: tuple[int, ...]
    facts: int
    ledgers: tuple[tuple[Spent, ...], ...]


@dataclass
class Search:
    """One case: the rounds, the honest servers, and the possible actions."""

    places: list[Place]
    honest: tuple[tuple[int, int], ...]
    """The honest servers: the round of each, and its index."""
    asked: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """Honest clients that are asked to upload, anywhere, and their updates."""
    limit: int = 10**7
    report: Report = field(default_factory=Report)
    driven: list[Driven] = field(init=False)
    genuine: set[bytes] = field(default_factory=set[bytes])
    """Lists that a corrupted server can sign."""

    def __post_init__(self) -> None:
        self._facts = list[Fact]()
        self._numbers = dict[Fact, int]()
        self._judged = dict[tuple[int, int], tuple[str | None, Entries | None]]()
        self.hearable, self._happened, self._shares = [0] * len(self.places), [0] * len(self.places), 0
        self._shared = dict[tuple[int, tuple[Spent, ...], int, str], tuple[tuple[Spent, ...], list[Fact]] | None]()
        self.driven = [Driven(self, place, index) for place, index in self.honest]

    # --- Facts ----------------------------------------------------------------------------------------------------

    def number_of(self, fact: Fact) -> int:
        """Return the number of a fact; a new fact gets the next number."""
        if fact not in self._numbers:
            self._numbers[fact] = len(self._facts)
            self._facts.append(fact)
            bit = 1 << self._numbers[fact]
            self._happened[fact.place] |= bit
            if fact.kind in HEARS or fact.kind == "upload":
                self.hearable[fact.place] |= bit
            if fact.kind == "share":
                self._shares |= bit
        return self._numbers[fact]

    def facts(self, mask: int) -> Iterator[Fact]:
        """Return the facts of a world."""
        while mask:
            lowest = mask & -mask
            yield self._facts[lowest.bit_length() - 1]
            mask ^= lowest

    def title(self, place: int, index: int) -> str:
        """Return the name of a server."""
        return f"server {index}" + (f" of round {'ab'[place]}" if len(self.places) > 1 else "")

    # --- The search -----------------------------------------------------------------------------------------------

    def explore(self) -> Report:
        """Try everything, up to the first fault."""
        report = self.report
        start = World(tuple(driven.start for driven in self.driven), 0, ((),) * len(self.asked))
        came_from: dict[World, tuple[World, str] | None] = {start: None}
        frontier = [start]
        while frontier:
            following = list[World]()
            for world in frontier:
                for name, after in self._after(world):
                    if after in came_from:
                        continue
                    came_from[after] = world, name
                    following.append(after)
                    fault = self._fault(world, after)
                    if fault is not None or len(came_from) > self.limit:
                        report.fault = fault or "the search was cut off"
                        report.trace = steps_to(came_from, after)
                        report.schedules = len(came_from)
                        return report
            frontier = following
        report.schedules = len(came_from)
        return report

    def _after(self, world: World) -> Iterator[tuple[str, World]]:
        for number, driven in enumerate(self.driven):
            for step in driven.moves(world.states[number], world.facts):
                states = (*world.states[:number], step.state, *world.states[number + 1 :])
                yield step.name, World(states, world.facts | step.facts, world.ledgers)
        for number, (client, updates) in enumerate(self.asked.items()):
            for place, update in ((place, update) for place in range(len(self.places)) for update in updates):
                shared = self._share(client, world.ledgers[number], place, update)
                if shared is not None:
                    ledgers = (*world.ledgers[:number], shared[0], *world.ledgers[number + 1 :])
                    mask = world.facts | sum(1 << self.number_of(fact) for fact in shared[1])
                    yield f"client {client} uploads {update} in round {'ab'[place]}", World(world.states, mask, ledgers)

    def _share(
        self, client: int, ledger: tuple[Spent, ...], place: int, update: str
    ) -> tuple[tuple[Spent, ...], list[Fact]] | None:
        """Ask an honest client to upload, with its stored ledger."""
        key = client, ledger, place, update
        if key not in self._shared:
            self.report.calls += 1
            kept = Stored(ledger)
            at = self.places[place]
            try:
                at.shared(client, update, kept)
            except SecAggError:
                self.report.refused += 1
                self._shared[key] = None
            else:
                # Coins repeat, so these are the halves that the round knows.
                sent = at.sent[f"{client}{update}"]
                self._shared[key] = kept.stored, [Fact(place, 0, "upload", (sent.name, sent.halves))]
        return self._shared[key]

    # --- Faults ---------------------------------------------------------------------------------------------------

    def _fault(self, before: World, after: World) -> str | None:
        """Return the fault of a world that its predecessor did not have."""
        for driven, state in zip(self.driven, after.states, strict=True):
            if state in driven.faults:
                return driven.faults[state]
        if before.facts == after.facts:
            return None
        new_shares = after.facts & ~before.facts & self._shares
        self.report.revealing += new_shares > 0
        for fact in self.facts(new_shares):
            if before.facts >> self.number_of(fact._replace(kind="gave up", what=None)) & 1:
                return "a share of a round that was given up"
        sums = list[tuple[Place, Entries]]()
        for number, driven in enumerate(self.driven):
            fault, released = self._judge(number, after.facts & self._happened[driven.place])
            if fault is not None:
                return f"{self.title(driven.place, driven.index)} {fault}"
            if released is not None:
                sums.append((driven.at, released))
        return _fault_between(sums) if len(sums) > 1 else None

    def _judge(self, number: int, mask: int) -> tuple[str | None, Entries | None]:
        """Report what a server did wrong, given its earlier actions, and the clients in the sum that it released."""
        if (number, mask) not in self._judged:
            driven, facts = self.driven[number], list(self.facts(mask))
            mine = [fact for fact in facts if fact.server == driven.index]
            fault = self._fault_of(driven, mine, facts) or self._fault_in_results(mine)
            signed = [fact.what for fact in mine if fact.kind == "list"]
            has_released = not fault and any(fact.kind == "share" for fact in mine)
            released = self._entries(driven.at, driven.index, signed[0]) if has_released else None
            self._judged[number, mask] = fault, released
        return self._judged[number, mask]

    def _fault_of(self, driven: Driven, mine: list[Fact], facts: list[Fact]) -> str | None:
        at, index = driven.at, driven.index
        said = {kind: [fact.what for fact in mine if fact.kind == kind] for kind in SAYS.values()}
        heard = [fact.what for fact in mine if fact.kind == "heard"]
        for kind in ("list", "share"):
            if len(said[kind]) > 1:
                return f"has given away two {kind}s"
        for kind, wire_kind in BATCHES.items():
            answers = {
                item for message in said[kind] for item in decode_batch(message, wire_kind, at.stamp(index)) if item[1]
            }
            if len({upload_id for upload_id, _ in answers}) < len(answers):
                return f"gave two {kind}s about one upload"
        for signed in said["list"]:
            found = self._fault_in_list(at, self._entries(at, index, signed))
            if found is not None:
                return found
        return self._fault_in_share(driven, said, heard, facts) if said["share"] else None

    def _fault_in_share(
        self, driven: Driven, said: dict[str, list[Any]], heard: list[Any], facts: list[Fact]
    ) -> str | None:
        at, index = driven.at, driven.index
        if not said["list"]:
            return "released a share without a list"
        entries = self._entries(at, index, said["list"][0])
        lists = {fact.what for fact in facts if fact.kind == "list" and fact.server != index} | self.genuine
        agreed = [what for kind, what in heard if kind == "list" and what in lists]
        if not any(self._names(at, 1 - index, what) == entries for what in agreed):
            return "released a share before the other server had signed the same list"
        if len({what for kind, what in heard if kind == "commitment"}) != 1:
            return "opened its share against two commitments"
        value = int(at.values(said["share"][0], index)[0][0])
        names = {sent.entry: sent.name for sent in at.sent.values()}
        if at.addends[index].get(value) != {names[entry]: 1 for entry in entries}:
            return f"released a sum over {at.addends[index].get(value)}, and its list is of others"
        return None

    def _fault_in_list(self, at: Place, entries: Entries) -> str | None:
        sent = {one.entry: one for one in at.sent.values()}
        clients = [entry.client for entry in entries]
        if not 0 < len(entries) <= at.configuration.maximum_cohort:
            return f"signed a list of {'more uploads than the round has room for' if entries else 'nobody that exists'}"
        if len(set(clients)) < len(clients):
            return "counts one client twice"
        if len(entries) < COHORT:
            return "signed a list of too few"
        if any(not sent[entry].is_authentic for entry in entries):
            return "counts an upload in the name of a client that did not make it"
        if len(self.honest) > len(self.places) and any(not sent[entry].is_unit for entry in entries):
            return "counts an upload that is of no unit vectors"
        return None

    def _fault_in_results(self, facts: list[Fact]) -> str | None:
        if len(self.honest) == len(self.places):
            return None  # With a corrupted server nothing is claimed about the result.
        for fact in facts:
            if fact.kind == "result":
                value, counted = fact.what
                at = self.places[fact.place]
                entries = [one for one in at.sent.values() if one.entry.client in counted]
                due = sum(sum(one.values) for one in entries if one.is_unit)
                if value != due % (1 << at.layout.segments[0].modulus_bits):
                    return "a result that is not the sum over those who were counted"
        return None

    def _entries(self, at: Place, index: int, message: bytes) -> Entries:
        return self._names(at, index, message) or ()

    @staticmethod
    def _names(at: Place, index: int, message: bytes) -> Entries | None:
        try:
            read = AcceptedList.verified(message, at.configuration, at.stamp(index))
        except SecAggError:
            return None
        return at.named_by.get(read.entries_digest)


def _fault_between(sums: list[tuple[Place, Entries]]) -> str | None:
    """Return the fault in what two sums reveal together."""
    for (one, ours), (other, theirs) in combinations(sums, 2):
        if one is other:
            if ours != theirs:
                return "two servers released shares of sums over different clients"
            continue
        updates = [
            {
                (sent.client, sent.update)
                for sent in place.sent.values()
                if sent.entry in entries and sent.client in HONEST
            }
            for place, entries in ((one, ours), (other, theirs))
        ]
        if updates[0] & updates[1]:
            return "one update of an honest client in two sums"
        clients = [{client for client, _ in found} for found in updates]
        if one.round_number == other.round_number and clients[0] & clients[1]:
            return "one honest client in two sums of one round"
    return None
