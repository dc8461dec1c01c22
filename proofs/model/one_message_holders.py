"""Holders of one message under a server that deviates arbitrarily: what it can learn.

The search runs the library's own ``Holder``. The server may send each existing message at any time and any number of
times, show different lists to different holders, withhold shares, and restart processes, which then have other keys.
Every sequence is tried until nothing new is reached.

A holder's actions depend only on the messages that it receives. So one holder is searched by itself, with certificates
that have the signatures they need; the others behave alike, at other points. Then everything that holders revealed is
combined in every way, where an answer counts if the signatures of its certificate exist. Whether some order of events
leads to a combination is not checked, so the server is stronger than a real one. Clients that upload for the same sums
are interchangeable, and states that only differ by a permutation of clients are continued once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from one_message_cast import Cast, Names, copied
from one_message_catalogue import Asked, Catalogue, ListName, Need, renamed
from one_message_knowledge import Knowledge
from report import Report, steps_to
from secagg.errors import SecAggError
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.parameters import FIELD
from secagg.protocols.one_message.requests import Answer, ListSignature
from secagg.protocols.one_message.sharing import holder_point, multiply, transfer_matrix
from secagg.wire import MessageKind, message_kind
from two_servers import STARTS_AGAIN

MOST_FACTS = 4
"""Limit on what a holder reveals: two signatures and two answers. A holder that reveals more is not continued; a search
that was cut off without finding a fault is a fault itself.
"""


class Fact(NamedTuple):
    """Something that a holder has revealed and cannot take back."""

    kind: str
    what: ListName
    names: Names = frozenset()
    """The uploads that an answer adds."""


Facts = frozenset[Fact]
Done = tuple[Asked | str, str]
"""A request or another event, and its outcome."""
Story = tuple[Facts, tuple[Done, ...]]
"""Everything that was revealed, with the events that led to it."""
CameFrom = dict[tuple[int, Facts], tuple[tuple[int, Facts], Done] | None]


# --- One holder -------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """The result of a request."""

    done: Done
    state: int
    facts: Facts


class Driven:
    """One honest holder: its reachable states, and the result of each request in each state."""

    def __init__(self, cast: Cast, position: int, report: Report) -> None:
        """Start with a new holder."""
        self.cast, self.position, self.report = cast, position, report
        self.catalogue = Catalogue(cast, position)
        self.fault: str | None = None
        self.is_cut_off = False
        self.needs = dict[ListName, set[Need]]()
        """Certificates that sufficed for an answer to a list; an answer that is stored is sent to anybody."""
        self._holders, self._known = list[Holder](), dict[frozenset[Any], int]()
        self._tokens = list[frozenset[Any]]()
        self._numbers, self._numbered = dict[Any, int](), list[Any]()
        self._moved = [dict[int, int]() for _ in self.catalogue.renamings]
        self._steps = dict[int, list[Step]]()
        first = cast.holder(position)
        first.respond(cast.elsewhere.encode())
        self.start, self._again = self._state_of(first), self._state_of(cast.restarted(position))

    def explore(self) -> list[Story]:
        """Try everything; return the maximal sets of revealed facts, for any permutation of the clients."""
        start = self.start, Facts()
        came_from: CameFrom = {start: None}
        seen, frontier = {self._alike(*start)}, [start]
        while frontier:
            following = list[tuple[int, Facts]]()
            for world in frontier:
                for step in self._after(world[0]):
                    after = step.state, world[1] | step.facts
                    if after in came_from or (alike := self._alike(*after)) in seen:
                        continue
                    if len(after[1]) > MOST_FACTS:
                        self.is_cut_off = True
                        continue
                    seen.add(alike)
                    came_from[after] = world, step.done
                    following.append(after)
                    self._note(_wrong(after[1], self.cast.setting.cohort), came_from, after)
            frontier = following
        self.report.schedules += len(came_from)
        ends = dict[Facts, tuple[int, Facts]]()
        for world in came_from:
            ends.setdefault(world[1], world)
        stories = {facts: steps_to(came_from, world) for facts, world in ends.items()}
        found = dict[Facts, tuple[Done, ...]]()
        for facts, trace in stories.items():
            for clients in self.catalogue.renamings:
                if (facts_of_others := renamed(facts, clients)) not in found:
                    found[facts_of_others] = renamed(trace, clients)
        return [(facts, found[facts]) for facts in _largest(found)]

    def _note(self, fault: str | None, came_from: CameFrom, world: tuple[int, Facts]) -> None:
        if fault is not None and self.fault is None:
            self.fault = f"a holder {fault}"
            self.report.trace = _shown(steps_to(came_from, world))

    def _alike(self, state: int, facts: Facts) -> tuple[int, ...]:
        """Return a representative of a state and its facts under permutations of clients."""
        numbers = [self._number(token) for token in (*self._tokens[state], *facts)]
        return min(tuple(sorted(self._renumbered(at, number) for number in numbers)) for at in range(len(self._moved)))

    def _number(self, token: Any) -> int:  # noqa: ANN401 -- anything that names uploads
        if token not in self._numbers:
            self._numbers[token] = len(self._numbered)
            self._numbered.append(token)
        return self._numbers[token]

    def _renumbered(self, at: int, number: int) -> int:
        moved = self._moved[at]
        if number not in moved:
            moved[number] = self._number(renamed(self._numbered[number], self.catalogue.renamings[at]))
        return moved[number]

    def _after(self, state: int) -> list[Step]:
        if state not in self._steps:
            steps = list(self._taken(state))
            steps.append(Step((STARTS_AGAIN, ""), self._again, Facts()))
            self._steps[state] = [step for step in steps if step.facts or step.state != state]
        return self._steps[state]

    def _taken(self, state: int) -> Iterator[Step]:
        """Send every request."""
        holder = copied(self._holders[state])
        for asked, message in self.catalogue.requests.items():
            self.report.calls += 1
            try:
                reply = holder.respond(message)
            except SecAggError:
                self.report.refused += 1
                if self._tokens_of(holder) != self._tokens[state]:
                    self.fault = self.fault or "a holder refused a request, and remembers it"
                    holder = copied(self._holders[state])
                continue
            after = self._state_of(holder)
            yield Step((asked, ""), after, self._facts(asked, reply, is_new=after != state))
            if after == state:
                continue
            holder = copied(self._holders[state])

    def _facts(self, asked: Asked, reply: bytes, *, is_new: bool) -> Facts:
        kind, name = self._said(reply)
        if kind == "":
            return Facts()
        if kind == "signed":
            return Facts({Fact("signed", name)})
        if is_new and asked in self.catalogue.needs:
            for clients in self.catalogue.renamings:
                need = renamed(self.catalogue.needs[asked], clients)
                self.needs.setdefault(renamed(name, clients), set()).add(need)
        return Facts({Fact("answered", name, self._added(reply))})

    def _said(self, reply: bytes) -> tuple[str, Any]:
        match message_kind(reply):
            case MessageKind.ONE_MESSAGE_LIST_SIGNATURE:
                return "signed", self.catalogue.named[ListSignature.decode(reply).upload_list]
            case MessageKind.ONE_MESSAGE_ANSWER:
                return "answered", self.catalogue.named[Answer.decode(reply).upload_list]
            case _:
                return "", None

    def _added(self, reply: bytes) -> Names:
        """Return the uploads whose shares are in an answer; words that match no sum end the case with a KeyError."""
        return self.catalogue.words[Answer.decode(reply).sums]

    # --- States -------------------------------------------------------------------------------------------------------

    def _state_of(self, holder: Holder) -> int:
        tokens = self._tokens_of(holder)
        if tokens not in self._known:
            self._known[tokens] = len(self._holders)
            self._holders.append(holder)
            self._tokens.append(tokens)
        return self._known[tokens]

    def _tokens_of(self, holder: Any) -> frozenset[Any]:  # noqa: ANN401 -- a holder, with its memory
        """Return everything that a holder remembers, without the order of arrival."""
        named, uploads, found = self.catalogue.named, self.catalogue.uploads, list[Any]()
        for t0, work in holder._work.items():  # noqa: SLF001
            found.append(("knows", t0))
            for upload, one in work.accepted.items():
                found.append(("accepted", uploads[upload], one.share.size > 0, one.terms))
            found += [("signed", named[digest], *self._said(reply)) for digest, reply in work.signed.items()]
            found += [
                ("answered", named[digest], *self._said(reply), self._added(reply))
                for digest, reply in work.answered.items()
            ]
        found += [("upload", uploads[upload], named[digest]) for upload, digest in holder._list_of.items()]  # noqa: SLF001
        # It refuses alike everything that was made for other keys.
        return frozenset([*found, ("keys", holder.keys)])


def _wrong(facts: Facts, cohort: int) -> str | None:
    """Return the fault in what one holder revealed, independently of others."""
    for fact in facts:
        if (fault := _wrong_alone(fact, cohort)) is not None:
            return fault
    for one, other in combinations(sorted({fact.what for fact in facts}, key=str), 2):
        if one.names & other.names:
            return "put an upload on two lists"
    return None


def _wrong_alone(fact: Fact, cohort: int) -> str | None:
    did, names = "signed" if fact.kind == "signed" else "answered", fact.what.names
    if fact.kind == "answered" and fact.names != names:
        return f"answered the list {fact.what} with {len(fact.names)} shares"
    if len({name.client for name in names}) < cohort:
        return f"{did} a list below the cohort"
    if {name.place for name in names} != {fact.what.place}:
        return f"{did} a list of uploads for another round or model"
    if any(name.is_forged for name in names):
        return f"{did} a list with an upload that nobody vouches for"
    return None


def _shown(trace: Iterable[Done]) -> tuple[str, ...]:
    return tuple(f"{what}{end}" for what, end in trace)


def _largest(sets: Iterable[Facts]) -> list[Facts]:
    """Return the sets that no other set contains, and the empty set, because a holder may be silent."""
    found = list[Facts]()
    for one in sorted(dict.fromkeys(sets), key=len, reverse=True):
        if not one or not any(one < other for other in found):
            found.append(one)
    return found


# --- All holders ----------------------------------------------------------------------------------------------------


def explore(cast: Cast, *, every: bool = False) -> Report:
    """Search one holder or all of them, and combine what they revealed; up to the first fault."""
    report = Report()
    cast.send()
    positions = cast.setting.honest
    driven = {position: Driven(cast, position, report) for position in (positions if every else positions[-1:])}
    told = {position: one.explore() for position, one in driven.items()}
    stories = [told.get(position) or told[positions[-1]] for position in positions]
    needs = [driven.get(position, driven[positions[-1]]).needs for position in positions]
    _put_together(cast, stories, needs, report)
    local = next((one.fault for one in driven.values() if one.fault), None)
    report.fault = report.fault or local or _uneven(cast)
    if report.fault is None and any(one.is_cut_off for one in driven.values()):
        report.fault = "the search was cut off"
    return report


def _put_together(
    cast: Cast, stories: list[list[Story]], needs: list[dict[ListName, set[Need]]], report: Report
) -> None:
    knowledge, positions = Knowledge(cast), cast.setting.honest
    signed = [[{fact.what for fact in facts if fact.kind == "signed"} for facts, _ in told] for told in stories]
    answered = [[[fact for fact in facts if fact.kind == "answered"] for facts, _ in told] for told in stories]
    for chosen in product(*(range(len(told)) for told in stories)):
        counts = dict[ListName, int]()
        for holder, number in enumerate(chosen):
            for name in signed[holder][number]:
                counts[name] = counts.get(name, 0) + 1
        answers = {
            position: frozenset(
                fact.names
                for fact in answered[holder][chosen[holder]]
                if any(
                    counts.get(name, 0) + cast.setting.lying >= size
                    for size, name in needs[holder].get(fact.what, [(0, fact.what)])
                )
            )
            for holder, position in enumerate(positions)
        }
        report.schedules += 1
        revealing, fault = knowledge.judge(answers)
        report.revealing += revealing
        if fault is not None:
            report.fault = fault
            report.trace = tuple(
                f"holder {position}: {', '.join(_shown(told[number][1])) or 'nothing'}"
                for position, told, number in zip(positions, stories, chosen, strict=True)
            )
            return


def _uneven(cast: Cast) -> str | None:
    """Return whose accepted shares are on no polynomial with T coefficients."""
    accepted = {position: cast.accepted(position) for position in cast.setting.honest}
    threshold = cast.agreement.parameters.threshold
    for name in cast.sent:
        words = {position: held[name] for position, held in accepted.items() if name in held}
        base, rest = list(words)[:threshold], list(words)[threshold:]
        if rest:
            points = [tuple(map(holder_point, some)) for some in (base, rest)]
            due = multiply(transfer_matrix(*points), np.array([words[position] for position in base]))
            if (due % FIELD != np.array([words[position] for position in rest])).any():
                return f"honest holders accepted shares of {name} that lie on no polynomial"
    return None
