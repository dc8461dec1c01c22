"""One honest server of the two: every state that it was in, and what each call makes of it.

A server is a function of what it remembers, so each step of each of its states is taken once; worlds are made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from indexing_cast import REJECTIONS, MemoryJournal, Place, copied, memory_of, total_of
from secagg.errors import SecAggError
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.round_rules import RoundState, Standing
from secagg.protocols.two_servers.server import IndexingServer

if TYPE_CHECKING:
    from two_servers import Search

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
    """Something that happened at a server, and is not undone when its process ends."""

    place: int
    server: int
    kind: str
    what: Any


class Step(NamedTuple):
    """What an action leads to."""

    name: str
    state: int
    facts: int


class Driven:
    """One honest server: every state that it was in, and what each action makes of it."""

    def __init__(self, search: Search, place: int, index: int, journal: type[MemoryJournal]) -> None:
        """Begin with a server to which nothing has happened."""
        self.search, self.place, self.index = search, place, index
        self.at: Place = search.places[place]
        self.actions = list[Action]()
        """What can be done to it at any time."""
        self._servers = list[IndexingServer]()
        self._known = dict[Any, int]()
        self._steps = dict[tuple[int, Action], Step]()
        self._moves = dict[int, list[Step]]()
        self._replies = dict[tuple[int, int], list[Step]]()
        self.faults = dict[int, str]()
        self.start = self._state_of(self.at.server(index, journal()))

    def moves(self, state: int, heard: int) -> list[Step]:
        """Return the steps that change something: those that can be taken at any time, and on what was said."""
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
        """Return what can be handed to this server: whatever was said, by whomever."""
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
                kept: Any = server
                server = self.at.server(self.index, kept._state._journal)  # noqa: SLF001
                said = None
            else:
                said = getattr(server, action.method)(*action.arguments)
        except (SecAggError, KeyError):
            # What no rule refuses can fail all the same.
            self.search.report.refused += 1
        else:
            if action.method in SAYS:
                facts.append(noted(SAYS[action.method], _plain(said)))
            if action.method in ("agree", "open"):
                facts.append(noted("heard", (HEARS_AT[action.method], action.arguments[0])))
        kept = server
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

    def _fault_in(self, server: Any) -> str | None:  # noqa: ANN401 -- a server, with what it remembers
        """Say what is wrong with what a server remembers."""
        rules, state = server._rules, server._state  # noqa: SLF001
        if rules.state is RoundState.FAILED:
            return None
        taken, modulus = rules.taken(), 1 << self.at.layout.segments[0].modulus_bits
        values = {sent.entry.upload_id: sent.values[self.index] for sent in self.at.sent.values()}
        for weight in self.at.configuration.weights:
            due = sum(values[entry.upload_id] for entry in taken if entry.weight == weight) % modulus
            if total_of(state.totals, weight) != due:
                return "has added something else than each upload that it took, once"
        if server._release.signed_list is not None:  # noqa: SLF001
            counted = {entry.weight for entry in rules.counted}
            if {entry for entry in taken if entry.weight in counted} != set(rules.counted):
                return "took an upload after it had signed its list"
            if rules.number_of(Standing.REJECTED) > REJECTIONS:
                return "closed a round in which too many were rejected"
        return None


def _plain(said: Any) -> Any:  # noqa: ANN401 -- a message or a result
    if isinstance(said, RoundResult):
        return int(said.aggregate.values[0][0]), said.counted
    return said
