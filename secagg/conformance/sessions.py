"""Conformance tests of protocols: laws for every ``ServerSession`` and ``ClientSession``.

check_sessions(SessionCandidate(entry=find("enclave"), settings=..., subject=..., clients=..., payload=..., ...))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from secagg.contract import Layout, Payload, RingSegment
from secagg.errors import (
    ContractViolation,
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    SecAggError,
    ThresholdNotMet,
)
from secagg.identifiers import ClientId
from secagg.session.roles import ClientSession, LazyUpdate, Participation, ServerSession, Update

from .candidate import require_refused
from .rehearsal import MODEL, Rehearsal, SessionCandidate, rehearsals, two_copies, update_stages
from .transit import (
    altered,
    altered_answer,
    altered_between,
    altered_message,
    another_sender,
    another_session,
    one_fault_for_each_reason,
)

_THREADS: Final = 8


# --- Messages ---------------------------------------------------------------------------------------------------------


def sum_of_all(candidate: SessionCandidate) -> None:
    """If all clients answer, the sum is theirs, and each update was made once, in the stage that takes updates."""
    rehearsal = Rehearsal.begin(candidate)
    while (stage := rehearsal.server.stage) is not None:
        rehearsal.all_answers()
        if stage.takes_update != (len(rehearsal.made) == len(candidate.clients)) and not _taken(rehearsal):
            raise ContractViolation(f"updates are not made in {stage.name!r}, or in a stage that takes none")
        rehearsal.step()
    released = rehearsal.server.release()
    rehearsal.require_exact(released, candidate.clients)
    if released.revealed != frozenset({released.counted}) or released.left_out:
        raise ContractViolation("without dropouts, sums other than the expected one are revealed")
    if set(rehearsal.made.values()) != {1}:
        raise ContractViolation("an update is made more than once")


def _taken(rehearsal: Rehearsal) -> bool:
    return rehearsal.stage in list(rehearsal.answers)[1:] and bool(rehearsal.made)


def same_bytes_again(candidate: SessionCandidate) -> None:
    """Repeat each request for a message and each answer; repetitions change nothing."""
    for _, rehearsal in rehearsals(candidate):
        server = rehearsal.server
        for client in candidate.clients:
            if server.message_to(client) != server.message_to(client):
                raise ContractViolation("a message changes when it is requested again")
        answers = rehearsal.all_answers()
        rehearsal.deliver(answers)
        before = server.participation, server.awaited, server.faults
        rehearsal.deliver(answers)
        if (server.participation, server.awaited, server.faults) != before:
            raise ContractViolation("a repeated answer changes something")
        server.close_stage()
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def second_answer(candidate: SessionCandidate) -> None:
    """Submit a second answer; it is refused as its sender's fault, and the first one counts (R3)."""
    for _, rehearsal in rehearsals(candidate):
        answers = rehearsal.all_answers()
        rehearsal.deliver(answers)
        client, answer = next(iter(answers.items()))
        if (second := _second(rehearsal, client, answer)) is not None:
            require_refused("a second answer", rehearsal.server.receive, client, second)
        for part in (0.7, 0.999):
            # With a change outside the signed part, it may equal the first answer.
            try:
                rehearsal.server.receive(client, altered(answer, part))
            except PeerError as error:
                recorded = {each.reason for each in rehearsal.server.faults}
                if client not in error.culprits or error.reason not in recorded:
                    raise ContractViolation("a refused second answer must be a recorded fault") from error
        rehearsal.server.close_stage()
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def _second(rehearsal: Rehearsal, client: ClientId, answer: bytes) -> bytes | None:
    """Return a second valid answer of a client with other bytes, if it makes one."""
    other = rehearsal.candidate.clients[-1]
    update = LazyUpdate(lambda: Update(rehearsal.candidate.payload(other), MODEL))
    session, message = (
        rehearsal.world.member(client).join(rehearsal.subject, update),
        rehearsal.server.message_to(client),
    )
    with suppress(SecAggError):
        if (made := session.answer(message or b"")) != answer:
            return made
    return None


def any_order(candidate: SessionCandidate) -> None:
    """Submit the answers in the opposite order."""
    rehearsal = Rehearsal.begin(candidate)
    while rehearsal.server.stage is not None:
        answers = rehearsal.all_answers()
        rehearsal.deliver(dict(reversed(answers.items())))
        rehearsal.server.close_stage()
    rehearsal.require_exact(rehearsal.server.release(), candidate.clients)


def other_stage(candidate: SessionCandidate) -> None:
    """Submit an answer to another stage; the network's action must not exclude its sender."""
    ahead = Rehearsal.begin(candidate)
    ahead.require_exact(ahead.finish(), candidate.clients)
    if len(ahead.answers) == 1:
        return
    for _, rehearsal in rehearsals(candidate):
        client = candidate.clients[0]
        for stage, answers in {**ahead.answers, **rehearsal.answers}.items():
            if stage == rehearsal.stage or client not in answers:
                continue
            before = rehearsal.server.participation, rehearsal.server.awaited
            with suppress(PeerError):
                rehearsal.server.receive(client, answers[client])
            if (rehearsal.server.participation, rehearsal.server.awaited) != before:
                raise ContractViolation(f"an answer to {stage!r} changes {rehearsal.stage!r}")
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def late_answer(candidate: SessionCandidate) -> None:
    """Answer after a stage is closed; it is refused, and its client is in the sum only if it uploaded before."""
    late = candidate.clients[1]
    for _, rehearsal in rehearsals(candidate):
        takes_update, uploaded = update_stages(rehearsal)
        answers = rehearsal.all_answers()
        if late not in answers:
            continue
        withheld = answers.pop(late)
        rehearsal.deliver(answers)
        rehearsal.server.close_stage()
        require_refused("an answer to a stage that is closed", rehearsal.server.receive, late, withheld)
        is_counted = uploaded and not takes_update
        due = [client for client in candidate.clients if client != late or is_counted]
        rehearsal.require_exact(rehearsal.finish(frozenset() if is_counted else frozenset({late})), due)


def from_many_threads(candidate: SessionCandidate) -> None:
    """Submit the answers from eight threads at once, each twice."""
    rehearsal = Rehearsal.begin(candidate)
    with ThreadPoolExecutor(_THREADS) as pool:
        while rehearsal.server.stage is not None:
            answers = rehearsal.all_answers()
            list(pool.map(rehearsal.server.receive, [*answers, *answers], [*answers.values(), *answers.values()]))
            rehearsal.server.close_stage()
    rehearsal.require_exact(rehearsal.server.release(), candidate.clients)


# --- Calls ------------------------------------------------------------------------------------------------------------

_STRANGERS: Final = 50


def wrong_order(candidate: SessionCandidate) -> None:
    """Call methods in the wrong order; they raise and change nothing."""
    for _, rehearsal in rehearsals(candidate):
        require_refused("a release before the last stage is closed", rehearsal.server.release, by=(Misuse,))
        rehearsal.deliver(rehearsal.all_answers())
        require_refused("a release before the last stage is closed", rehearsal.server.release, by=(Misuse,))
        while rehearsal.server.stage is not None:
            rehearsal.step()
        require_refused("closing a stage after the last one", rehearsal.server.close_stage, by=(Misuse,))
        rehearsal.require_exact(rehearsal.server.release(), candidate.clients)


def after_the_end(candidate: SessionCandidate) -> None:
    """Continue after the release; the session sends and accepts no messages, and releases nothing again."""
    rehearsal = Rehearsal.begin(candidate)
    rehearsal.require_exact(rehearsal.finish(), candidate.clients)
    _require_over(rehearsal.server, candidate)
    for client, session in rehearsal.sessions.items():
        session.abort()
        require_refused(f"a message to {client} after the end", session.answer, b"anything", by=(SecAggError,))


def aborted(candidate: SessionCandidate) -> None:
    """Abort in each stage, twice; afterwards the session refuses every call."""
    for _, rehearsal in rehearsals(candidate):
        answers = rehearsal.all_answers()
        rehearsal.server.abort()
        _require_over(rehearsal.server, candidate)
        for client, answer in answers.items():
            require_refused("an answer", rehearsal.server.receive, client, answer, by=(SecAggError,))
        session = rehearsal.world.member(candidate.clients[0]).join(
            rehearsal.subject, rehearsal.update_of(candidate.clients[0])
        )
        session.abort()
        session.abort()
        require_refused("an invitation after leaving", session.answer, rehearsal.server.invitation, by=(SecAggError,))


def _require_over(server: ServerSession, candidate: SessionCandidate) -> None:
    if server.stage is not None or any(server.message_to(client) is not None for client in candidate.clients):
        raise ContractViolation("an ended session has a stage, or a message for a client")
    if server.awaited or server.participation is not Participation.COMPLETE:
        raise ContractViolation("an ended session awaits a client")
    require_refused("closing a stage after the end", server.close_stage, by=(Misuse,))
    require_refused("a release after the end", server.release, by=(Misuse,))
    require_refused("an answer after the end", server.receive, candidate.clients[0], b"anything", by=(SecAggError,))
    server.abort()


def too_few(candidate: SessionCandidate) -> None:
    """Close a stage without answers; the session ends without a sum."""
    for _, rehearsal in rehearsals(candidate):
        server = rehearsal.server
        if server.participation is not Participation.TOO_FEW:
            raise ContractViolation("a stage without answers reports enough answers")

        require_refused("a stage without answers", _end, server, by=(ThresholdNotMet,))
        _require_over(server, candidate)


def _end(server: ServerSession) -> None:
    server.close_stage()
    server.release()


def participation(candidate: SessionCandidate) -> None:
    """Check the participation: at ENOUGH a stage can be closed, at COMPLETE no client is awaited."""
    for number, rehearsal in rehearsals(candidate):
        server, reached, before = rehearsal.server, Participation.TOO_FEW, _awaited(rehearsal)
        for client, answer in rehearsal.all_answers().items():
            server.receive(client, answer)
            if client in _awaited(rehearsal):
                raise ContractViolation("the session still waits for a client that answered")
            reached = server.participation
        if reached is not Participation.COMPLETE or _awaited(rehearsal) or not before:
            raise ContractViolation("all have answered, but the stage is not complete")
        _closed_at_enough(candidate, number)


def _closed_at_enough(candidate: SessionCandidate, number: int) -> None:
    rehearsal = Rehearsal.begin(candidate)
    rehearsal.reach(number)
    for client, answer in rehearsal.all_answers().items():
        if rehearsal.server.participation >= Participation.ENOUGH:
            break
        rehearsal.server.receive(client, answer)
    rehearsal.server.close_stage()
    released = rehearsal.finish()
    rehearsal.require_exact(released, released.counted)


def _awaited(rehearsal: Rehearsal) -> frozenset[ClientId]:
    """Return the clients that a session with named clients awaits."""
    awaited = rehearsal.server.awaited
    if awaited is None:
        raise ContractViolation("a session with named clients awaits any client")
    return awaited


def dropped(candidate: SessionCandidate) -> None:
    """Drop a client; it is no longer awaited or accepted, and its earlier upload stays in the sum."""
    gone = candidate.clients[2]
    for _, rehearsal in rehearsals(candidate):
        uploaded = rehearsal.made.get(gone, 0) > 0
        message, answer = rehearsal.server.message_to(gone), rehearsal.answer(gone)
        rehearsal.server.drop(gone)
        rehearsal.server.drop(gone)
        if gone in _awaited(rehearsal) or rehearsal.server.message_to(gone) is not None:
            raise ContractViolation("the session still waits for a dropped client, or has a message for it")
        if message is not None and answer is not None:
            require_refused("an answer of a dropped client", rehearsal.server.receive, gone, answer)
        rehearsal.deliver(rehearsal.all_answers([c for c in candidate.clients if c != gone]))
        if rehearsal.server.participation is not Participation.COMPLETE:
            raise ContractViolation("a stage awaits a dropped client")
        due = [client for client in candidate.clients if client != gone or uploaded]
        rehearsal.require_exact(rehearsal.finish(frozenset({gone})), due)


def not_invited(candidate: SessionCandidate) -> None:
    """Let an uninvited client join; it has no message, and is refused."""
    stranger = candidate.clients[-1]
    invited = frozenset(candidate.clients[:-1])
    open_to_all = Rehearsal.begin(candidate, is_open=True)
    if open_to_all.server.awaited is not None or open_to_all.server.message_to(stranger) is None:
        raise ContractViolation("an open session awaits a particular client, or does not invite all clients")
    open_to_all.server.abort()
    world = candidate.world()
    server = world.open(candidate.subject, invited)
    if server.message_to(stranger) is not None:
        raise ContractViolation("an uninvited client has a message")
    rehearsal = Rehearsal(candidate, world, candidate.subject, server, {})
    session = world.member(stranger).join(candidate.subject, rehearsal.update_of(stranger))
    answer = session.answer(server.invitation)
    require_refused("an answer of an uninvited client", server.receive, stranger, answer)
    server.abort()


def strangers(candidate: SessionCandidate) -> None:
    """Drop fifty uninvited names, and let them answer; nothing changes (R3)."""
    names = [ClientId((1 << 60) + number) for number in range(_STRANGERS)]
    for _, rehearsal in rehearsals(candidate):
        server, answer = rehearsal.server, next(iter(rehearsal.all_answers().values()))
        before = server.participation, server.awaited, server.faults
        for name in names:
            require_refused("an answer of an unknown client", server.receive, name, answer, by=(PeerMisbehaved,))
            server.drop(name)
        if (server.participation, server.awaited, server.faults) != before:
            raise ContractViolation("an uninvited client changes the awaited clients, or records a fault")
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def another_subject(candidate: SessionCandidate) -> None:
    """Invite a client to a session with another subject; it refuses before an update is made or charged."""
    subject = candidate.subject
    changes: dict[str, Any] = {
        "task": subject.task + b" of somebody else",
        "round_number": subject.round_number + 1,
        "layout": Layout(subject.layout.segments, bytes([1]) * 32),
        "capacity": subject.capacity + 1,
        "terms": bytes([2]) * 32,
        "model_digest": bytes([3]) * 32,
    }
    asked, rehearsal = candidate.clients[0], Rehearsal.begin(candidate)
    member, invitation = rehearsal.world.member(asked), rehearsal.server.invitation
    for name, value in changes.items():
        session = member.join(replace(subject, **{name: value}), rehearsal.update_of(asked))
        require_refused(f"an invitation to another {name}", session.answer, invitation, by=(InvalidParameters,))
        if rehearsal.made:
            raise ContractViolation(f"an invitation to another {name} makes a client's update")
        session.abort()
    rehearsal.require_exact(rehearsal.finish(), candidate.clients)
    _another_model_later(candidate, asked)


def _another_model_later(candidate: SessionCandidate, asked: ClientId) -> None:
    """Let a client learn the model when it makes its update; it compares the model then."""
    rehearsal = Rehearsal.begin(candidate, model_digest=bytes([3]) * 32)
    subject = replace(rehearsal.subject, model_digest=None)
    rehearsal.sessions[asked] = rehearsal.world.member(asked).join(subject, rehearsal.update_of(asked))

    while rehearsal.server.stage is not None and not rehearsal.server.stage.takes_update:
        rehearsal.step()
    require_refused("a model that the update was not trained from", rehearsal.answer, asked, by=(SecAggError,))
    rehearsal.server.abort()


def update_once(candidate: SessionCandidate) -> None:
    """Send the upload's message again; no second update is made."""
    for _, rehearsal in rehearsals(candidate):
        stage = rehearsal.server.stage
        if stage is None or not stage.takes_update:
            continue
        for client in candidate.clients:
            message = rehearsal.server.message_to(client)
            if message is None:
                raise ContractViolation("a client has no message in the stage that takes its update")
            answer = rehearsal.answer(client)
            with suppress(SecAggError):
                if rehearsal.sessions[client].answer(message) != answer:
                    raise ContractViolation("one message has two different uploads as answers")
        if set(rehearsal.made.values()) != {1}:
            raise ContractViolation("an update is made more than once")
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def side_by_side(candidate: SessionCandidate) -> None:
    """Run two sessions in one process, alternating; they do not affect each other."""
    one, other = Rehearsal.begin(candidate), Rehearsal.begin(candidate)
    while one.server.stage is not None and other.server.stage is not None:
        for rehearsal in (one, other):
            rehearsal.deliver(rehearsal.all_answers())
        for rehearsal in (other, one):
            rehearsal.server.close_stage()
    for rehearsal in (one, other):
        rehearsal.require_exact(rehearsal.server.release(), candidate.clients)


def restored(candidate: SessionCandidate) -> None:
    """Restore the server in each stage from its snapshot, if the protocol has snapshots."""
    restore = candidate.entry.restore
    for _, rehearsal in rehearsals(candidate):
        half = dict(list(rehearsal.all_answers().items())[::2])
        rehearsal.deliver(half)
        snapshot = rehearsal.server.snapshot()
        if (snapshot is None) != (restore is None):
            raise ContractViolation("snapshots require the entry's restore, and vice versa")
        if snapshot is None or restore is None:
            return
        before = rehearsal.server.participation, rehearsal.server.awaited
        rehearsal.server = restore(snapshot, frozenset(candidate.clients))
        if (rehearsal.server.participation, rehearsal.server.awaited) != before:
            raise ContractViolation("a restored session is in a different state than before")
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def suspended(candidate: SessionCandidate) -> None:
    """Suspend each client after each message; of two clients resumed from one record, the second is refused."""
    rehearsal = Rehearsal.begin(candidate)
    client = candidate.clients[0]
    session, rehearsal.sessions[client] = (
        rehearsal.sessions[client],
        rehearsal.world.member(client).join(rehearsal.subject, rehearsal.update_of(client)),
    )
    if session.suspend() is not None:
        raise ContractViolation("a client without answers has a state to resume")
    require_refused("a message after suspending", session.answer, rehearsal.server.invitation, by=(SecAggError,))
    while rehearsal.server.stage is not None:
        rehearsal.deliver(rehearsal.all_answers())
        rehearsal.server.close_stage()
        for client in candidate.clients:
            kept = rehearsal.sessions[client].suspend()
            _require_silent(rehearsal, client)
            if kept is None:
                continue
            first, second = two_copies(kept)
            member = rehearsal.world.member(client)
            rehearsal.sessions[client] = member.join(rehearsal.subject, rehearsal.update_of(client), first)
            require_refused("a second resumption", member.join, rehearsal.subject, None, second, by=(SecAggError,))
    rehearsal.require_exact(rehearsal.server.release(), candidate.clients)


def _require_silent(rehearsal: Rehearsal, client: ClientId) -> None:
    message = rehearsal.server.invitation
    require_refused("a message after suspending", rehearsal.sessions[client].answer, message, by=(SecAggError,))


# --- Silence ----------------------------------------------------------------------------------------------------------

ROUNDS: Final = 3
Seen = list[tuple[object, ...]]
"""A server's view of a client: its stages, its answers' lengths, and whether they count."""


def silence(candidate: SessionCandidate) -> None:
    """Give a client hostile data in three rounds; check that the server cannot distinguish it from other data."""
    due = _seen(candidate, HOSTILE["none"])
    for name, spoil in HOSTILE.items():
        if (found := _seen(candidate, spoil)) != due:
            raise ContractViolation(f"the server's view of a client with {name} is {found}, and of other clients {due}")


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


HOSTILE: Final[Mapping[str, Spoil]] = {
    "none": _varied,
    "values that repeat": lambda payload, model, _: Update(payload, model),
    "the maximum values": _extreme,
    "a training that raises": _failing,
    "a training that exits": _exiting,
    "a training that returns nothing": lambda payload, model, number: None,  # noqa: ARG005
    "values of another layout": _of_another_layout,
    "values from another model": lambda payload, _, number: _varied(payload, bytes([9]) * 32, number),
}
"""Updates of a hostile or faulty client, by name; each returns the result of training for one round."""


def _seen(candidate: SessionCandidate, spoil: Spoil) -> Seen:
    """Return a server's view of the first client in rounds of different models."""
    world, seen = candidate.world(), Seen()
    for number in range(ROUNDS):
        model = bytes([number + 1]) * 32
        subject = replace(candidate.subject, round_number=candidate.subject.round_number + number, model_digest=model)
        server = world.open(subject, frozenset(candidate.clients))
        sessions = dict[ClientId, ClientSession]()
        for client in candidate.clients:
            make = spoil if client == candidate.clients[0] else _varied
            update = LazyUpdate(partial(make, candidate.payload(client), model, number), model)
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


# --- The laws ---------------------------------------------------------------------------------------------------------

LAWS: Final[Mapping[str, Callable[[SessionCandidate], None]]] = {
    law.__name__: law
    for law in (
        sum_of_all,
        same_bytes_again,
        second_answer,
        any_order,
        other_stage,
        late_answer,
        altered_answer,
        altered_message,
        altered_between,
        another_sender,
        another_session,
        from_many_threads,
        one_fault_for_each_reason,
        strangers,
        wrong_order,
        after_the_end,
        aborted,
        too_few,
        participation,
        dropped,
        not_invited,
        another_subject,
        update_once,
        side_by_side,
        restored,
        suspended,
        silence,
    )
}
"""Laws by name; each docstring has the requirement."""


def check_sessions(candidate: SessionCandidate) -> None:
    """Check a protocol against all laws."""
    for name in LAWS:
        check_law(name, candidate)


def check_law(name: str, candidate: SessionCandidate) -> None:
    """Check a protocol against one law; an error of the protocol also breaks it."""
    try:
        LAWS[name](candidate)
    except Exception as error:
        raise ContractViolation(f"{candidate.entry.name} breaks {name}: {error}") from error


__all__ = ["LAWS", "MODEL", "SessionCandidate", "check_law", "check_sessions"]
