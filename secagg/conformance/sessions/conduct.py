"""The laws of conduct: what the network, a stranger or a second attempt can change, which is nothing."""

from __future__ import annotations

from typing import Final

from secagg.conformance.refusals import require_refused
from secagg.errors import ContractViolation, PeerError, PeerMisbehaved
from secagg.identifiers import ClientId

from .messages import altered, rehearsals
from .rehearsal import Rehearsal, SessionCandidate

_PLACES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 0.999)
_STRANGERS: Final = 50
_AGAIN: Final = 3


def refused_then_true(candidate: SessionCandidate) -> None:
    """Alter an answer on its way; if it is refused, its sender is awaited, and its true answer is taken (R1)."""
    for part in _PLACES:
        for _, rehearsal in rehearsals(candidate):
            answers = rehearsal.all_answers()
            client = next(iter(answers))
            if _is_refused(rehearsal, client, altered(answers[client], part)):
                rehearsal.deliver(answers)
                rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def replayed_then_true(candidate: SessionCandidate) -> None:
    """Replay what a client signed in another session; it is refused, and the client's true answer is taken (R1)."""
    rounds = candidate.subject.round_number
    for number, other in rehearsals(candidate):
        foreign = other.all_answers()
        rehearsal = Rehearsal.begin(candidate, round_number=rounds + 1)
        rehearsal.reach(number)
        client = next(iter(foreign))
        if not _is_refused(rehearsal, client, foreign[client]):
            raise ContractViolation("an answer to another session is taken")
        rehearsal.deliver(rehearsal.all_answers())
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def _is_refused(rehearsal: Rehearsal, client: ClientId, wrong: bytes) -> bool:
    before = rehearsal.server.turnout, rehearsal.server.awaited
    try:
        rehearsal.server.receive(client, wrong)
    except PeerError as error:
        if (rehearsal.server.turnout, rehearsal.server.awaited) != before:
            raise ContractViolation(f"what was not verified changes whom a stage awaits: {error}") from error
        return True
    return False


def one_fault_for_each_reason(candidate: SessionCandidate) -> None:
    """Hand over the same refused bytes again; they are one fault, which nobody can make into a thousand (R1)."""
    for _, rehearsal in rehearsals(candidate):
        client, answer = next(iter(rehearsal.all_answers().items()))
        found = list[int]()
        for length in range(1, _AGAIN + 1):
            require_refused("an answer that is cut short", rehearsal.server.receive, client, answer[:-length])
            found.append(len(rehearsal.server.faults))
        if found != [1] * _AGAIN:
            raise ContractViolation(f"one fault, {_AGAIN} times, is recorded as {found}")


def second_answer_is_a_fault(candidate: SessionCandidate) -> None:
    """Hand over a second answer that was refused as such; it is recorded, and names its sender (R3)."""
    for _, rehearsal in rehearsals(candidate):
        answers = rehearsal.all_answers()
        rehearsal.deliver(answers)
        client = next(iter(answers))
        try:
            rehearsal.server.receive(client, altered(answers[client], 0.999))
        except PeerError as error:
            if client not in error.culprits or error.reason not in {each.reason for each in rehearsal.server.faults}:
                raise ContractViolation("a second answer that was refused is no fault of anybody's") from error
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def strangers(candidate: SessionCandidate) -> None:
    """Drop, and let answer, fifty names that nobody invited; nothing changes (R3)."""
    names = [ClientId((1 << 60) + number) for number in range(_STRANGERS)]
    for _, rehearsal in rehearsals(candidate):
        server, answer = rehearsal.server, next(iter(rehearsal.all_answers().values()))
        before = server.turnout, server.awaited, server.faults
        for name in names:
            require_refused("an answer of a stranger", server.receive, name, answer, by=(PeerMisbehaved,))
            server.drop(name)
        if (server.turnout, server.awaited, server.faults) != before:
            raise ContractViolation("a name that was not invited changes whom a stage awaits, or leaves a fault")
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)
