"""The law of silence: whatever data a client has, its server sees the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from secagg.contract import Layout, Payload, RingSegment
from secagg.errors import ContractViolation, SecAggError
from secagg.identifiers import ClientId
from secagg.session.roles import ClientSession, LateUpdate, ServerSession, Update

from .rehearsal import SessionCandidate

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
