"""The laws of conduct: what the network, a stranger or a second attempt can change, which is nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from secagg.conformance.candidate import require_refused
from secagg.conformance.sessions.messages import altered, rehearsals
from secagg.conformance.sessions.rehearsal import Rehearsal, SessionCandidate
from secagg.contract import Layout, Payload, RingSegment
from secagg.errors import ContractViolation, PeerError, PeerMisbehaved, SecAggError
from secagg.identifiers import ClientId
from secagg.session.roles import ClientSession, LateUpdate, ServerSession, Update

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
            raise ContractViolation(f"an unverified message changes whom a stage awaits: {error}") from error
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
                raise ContractViolation("a refused second answer must be a recorded fault") from error
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


# --- Silence ----------------------------------------------------------------------------------------------------------

ROUNDS: Final = 3
Seen = list[tuple[object, ...]]
"""A server's view of a client: its stages, the lengths of its answers, and whether they count."""


def silence(candidate: SessionCandidate) -> None:
    """Give a client hostile data in three rounds; its server sees what it sees of any other data."""
    due = _seen(candidate, HOSTILE["none"])
    for name, spoil in HOSTILE.items():
        if (found := _seen(candidate, spoil)) != due:
            raise ContractViolation(f"of a client with {name} the server sees {found}, and of another one {due}")


Spoil = Callable[[Payload, bytes, int], Any]


def _failing(payload: Payload, model: bytes, number: int) -> Update:
    raise FloatingPointError(f"training on {payload} from {model!r} diverges in round {number}")


def _exiting(payload: Payload, model: bytes, number: int) -> Update:
    raise SystemExit(f"training on {payload} from {model!r} gives up in round {number}")


def _extreme(payload: Payload, model: bytes, number: int) -> Update:
    del number
    pairs = zip(payload.layout.segments, payload.values, strict=True)
    ends = (s.ring.greatest if isinstance(s, RingSegment) else s.codewords - 1 for s, _ in pairs)
    values = tuple(np.full_like(each, end) for each, end in zip(payload.values, ends, strict=True))
    return Update(Payload(payload.layout, values), model)


def _of_another_layout(payload: Payload, model: bytes, number: int) -> Update:
    del number
    return Update(Payload(Layout(payload.layout.segments, bytes([7]) * 32), payload.values), model)


def _varied(payload: Payload, model: bytes, number: int) -> Update:
    return Update(Payload(payload.layout, tuple(np.roll(each, number) for each in payload.values)), model)


def _weighing(weight: int, payload: Payload, model: bytes, number: int) -> Update:
    return replace(_varied(payload, model, number), weight=weight)


HOSTILE: Final[Mapping[str, Spoil]] = {
    "none": _varied,
    "values that repeat": lambda payload, model, _: Update(payload, model),
    "the greatest values": _extreme,
    "a training that raises": _failing,
    "a training that exits": _exiting,
    "a training that returns nothing": lambda payload, model, number: None,  # noqa: ARG005
    "values of another layout": _of_another_layout,
    "values from another model": lambda payload, _, number: _varied(payload, bytes([9]) * 32, number),
    **{f"a weight of {weight}": partial(_weighing, weight) for weight in (0, -1, 2, 1 << 40)},
}
"""Updates of a hostile or faulty client, by name; each returns the result of training for one round."""


def _seen(candidate: SessionCandidate, spoil: Spoil) -> Seen:
    """Return what a server sees of the first client in rounds of different models."""
    world, seen = candidate.world(), Seen()
    for number in range(ROUNDS):
        model = bytes([number + 1]) * 32
        subject = replace(candidate.subject, round_number=candidate.subject.round_number + number, model_digest=model)
        server = world.open(subject, frozenset(candidate.clients))
        sessions = dict[ClientId, ClientSession]()
        for client in candidate.clients:
            make = spoil if client == candidate.clients[0] else _varied
            update = LateUpdate(partial(make, candidate.payload(client), model, number), model)
            sessions[client] = world.member(client).join(subject, update)
        while server.stage is not None:
            for client, session in sessions.items():
                said = _exchanged(server, client, session)
                if client == candidate.clients[0]:
                    seen.append((number, server.stage.name, *said))
            server.close_stage()
        released = server.release()
        seen.append((number, candidate.clients[0] in released.counted, len(released.left_out)))
    return seen


def _exchanged(server: ServerSession, client: ClientId, session: ClientSession) -> tuple[object, ...]:
    message = server.message_to(client)
    if message is None:
        return ()
    try:
        answer = session.answer(message)
    except SecAggError as error:
        session.abort()
        server.drop(client)
        return ("left", type(error).__name__, error.reason)
    try:
        server.receive(client, answer)
    except SecAggError as error:
        return ("refused", error.reason)
    return (len(answer),)
