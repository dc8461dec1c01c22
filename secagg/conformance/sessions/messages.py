"""The laws of messages: sent again, late, altered, in another order, by another client, or to another session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from secagg.conformance.candidate import require_refused
from secagg.errors import ContractViolation, PeerError, SecAggError
from secagg.identifiers import ClientId
from secagg.session.roles import LateUpdate, Released, Update

from .rehearsal import MODEL, Rehearsal, SessionCandidate

_STAGES: Final = 16
"""No session has more."""
_THREADS: Final = 8
_AGAIN: Final = 3
_PLACES: Final = (0.0, 0.2, 0.3, 0.5, 0.7, 0.999)
"""Places where bytes are altered, as parts of a message."""


def rehearsals(candidate: SessionCandidate) -> Iterator[tuple[int, Rehearsal]]:
    """Yield a fresh session for each of its stages, in which that stage is open."""
    for number in range(_STAGES):
        rehearsal = Rehearsal.begin(candidate)
        if not rehearsal.reach(number):
            rehearsal.server.abort()
            return
        yield number, rehearsal
        rehearsal.server.abort()
        rehearsal.world.close()


def sum_of_all(candidate: SessionCandidate) -> None:
    """Let everybody answer; the sum is theirs, and each update was made once, in the stage that takes updates."""
    rehearsal = Rehearsal.begin(candidate)
    while (stage := rehearsal.server.stage) is not None:
        rehearsal.all_answers()
        if stage.takes_update != (len(rehearsal.made) == len(candidate.clients)) and not _taken(rehearsal):
            raise ContractViolation(f"updates are not made in {stage.name!r}, or in another stage than takes them")
        rehearsal.step()
    released = rehearsal.server.release()
    rehearsal.require_exact(released, candidate.clients)
    if released.revealed != frozenset({released.counted}) or released.left_out:
        raise ContractViolation("all went well, and sums other than the expected one are revealed")
    if set(rehearsal.made.values()) != {1}:
        raise ContractViolation("an update is made more than once")


def _taken(rehearsal: Rehearsal) -> bool:
    return rehearsal.stage in list(rehearsal.answers)[1:] and bool(rehearsal.made)


def same_bytes_again(candidate: SessionCandidate) -> None:
    """Ask for each message twice and hand each answer over twice; the second time changes nothing."""
    for _, rehearsal in rehearsals(candidate):
        server = rehearsal.server
        for client in candidate.clients:
            if server.message_to(client) != server.message_to(client):
                raise ContractViolation("a message is other bytes when it is asked for again")
        answers = rehearsal.all_answers()
        rehearsal.deliver(answers)
        before = server.turnout, server.awaited, server.faults
        rehearsal.deliver(answers)
        if (server.turnout, server.awaited, server.faults) != before:
            raise ContractViolation("an answer that comes again changes something")
        server.close_stage()
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def second_answer(candidate: SessionCandidate) -> None:
    """Hand over a second answer; it is refused as its sender's fault, and the first one counts (R3)."""
    for _, rehearsal in rehearsals(candidate):
        answers = rehearsal.all_answers()
        rehearsal.deliver(answers)
        client, answer = next(iter(answers.items()))
        if (second := _second(rehearsal, client, answer)) is not None:
            require_refused("a second answer", rehearsal.server.receive, client, second)
        for part in (0.7, 0.999):
            # Altered where nothing is signed, it is the first one again.
            try:
                rehearsal.server.receive(client, altered(answer, part))
            except PeerError as error:
                recorded = {each.reason for each in rehearsal.server.faults}
                if client not in error.culprits or error.reason not in recorded:
                    raise ContractViolation("a refused second answer must be a recorded fault") from error
        rehearsal.server.close_stage()
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def _second(rehearsal: Rehearsal, client: ClientId, answer: bytes) -> bytes | None:
    """Return another answer that a client really makes, where it makes one."""
    other = rehearsal.candidate.clients[-1]
    update = LateUpdate(lambda: Update(rehearsal.candidate.payload(other), MODEL))
    session, message = (
        rehearsal.world.member(client).join(rehearsal.subject, update),
        rehearsal.server.message_to(client),
    )
    with suppress(SecAggError):
        if (made := session.answer(message or b"")) != answer:
            return made
    return None


def any_order(candidate: SessionCandidate) -> None:
    """Hand over the answers in the opposite order."""
    rehearsal = Rehearsal.begin(candidate)
    while rehearsal.server.stage is not None:
        answers = rehearsal.all_answers()
        rehearsal.deliver(dict(reversed(answers.items())))
        rehearsal.server.close_stage()
    rehearsal.require_exact(rehearsal.server.release(), candidate.clients)


def other_stage(candidate: SessionCandidate) -> None:
    """Hand over an answer to another stage; its sender is not excluded for what the network did."""
    ahead = Rehearsal.begin(candidate)
    ahead.require_exact(ahead.finish(), candidate.clients)
    if len(ahead.answers) == 1:
        return
    for _, rehearsal in rehearsals(candidate):
        client = candidate.clients[0]
        for stage, answers in {**ahead.answers, **rehearsal.answers}.items():
            if stage == rehearsal.stage or client not in answers:
                continue
            before = rehearsal.server.turnout, rehearsal.server.awaited
            with suppress(PeerError):
                rehearsal.server.receive(client, answers[client])
            if (rehearsal.server.turnout, rehearsal.server.awaited) != before:
                raise ContractViolation(f"an answer to {stage!r} changes {rehearsal.stage!r}")
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def late_answer(candidate: SessionCandidate) -> None:
    """Answer after a stage was closed; it is refused, and its client is in the sum only if it uploaded before."""
    late = candidate.clients[1]
    for _, rehearsal in rehearsals(candidate):
        takes_update, uploaded = _update_stages(rehearsal)
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


def _update_stages(rehearsal: Rehearsal) -> tuple[bool, bool]:
    """Return whether the open stage takes updates, and whether updates were made before it."""
    stage = rehearsal.server.stage
    return stage is not None and stage.takes_update, bool(rehearsal.made)


def altered_answer(candidate: SessionCandidate) -> None:
    """Alter an answer on its way; if it is refused, the true one is taken, and nothing wrong gets into the sum (R1)."""
    for part in _PLACES:
        for _, rehearsal in rehearsals(candidate):
            answers = rehearsal.all_answers()
            client = next(iter(answers))
            wrong = altered(answers[client], part)
            if _is_refused(rehearsal, client, wrong):
                rehearsal.deliver(answers)
                rehearsal.require_exact(rehearsal.finish(), candidate.clients)
            else:
                answers[client] = wrong
                rehearsal.require_right_or_refused(partial(_going_on, rehearsal, answers))


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


def altered_message(candidate: SessionCandidate) -> None:
    """Alter a message to a client; it leaves or answers, and nothing wrong gets into the sum."""
    for part in _PLACES:
        for _, rehearsal in rehearsals(candidate):
            client = next(c for c in candidate.clients if rehearsal.server.message_to(c) is not None)
            message = rehearsal.server.message_to(client) or b""
            answers = rehearsal.all_answers([c for c in candidate.clients if c != client])
            try:
                answers[client] = rehearsal.sessions[client].answer(altered(message, part))
            except SecAggError:
                rehearsal.server.drop(client)
                rehearsal.sessions[client].abort()
            rehearsal.require_right_or_refused(partial(_going_on, rehearsal, answers))


def _going_on(rehearsal: Rehearsal, answers: dict[ClientId, bytes]) -> Released:
    """Deliver answers, some of which may be refused, and continue with the clients that are left."""
    left = set[ClientId](rehearsal.candidate.clients) - answers.keys()
    in_stage = {client for client in left if rehearsal.server.message_to(client) is not None}
    gone = set[ClientId](in_stage)
    for client, answer in answers.items():
        try:
            rehearsal.server.receive(client, answer)
        except PeerError:
            gone.add(client)
            rehearsal.server.drop(client)
    rehearsal.server.close_stage()
    while rehearsal.server.stage is not None:
        for client in rehearsal.candidate.clients:
            if client in gone:
                continue
            try:
                if (due := rehearsal.answer(client)) is not None:
                    rehearsal.server.receive(client, due)
            except SecAggError:
                gone.add(client)
                rehearsal.server.drop(client)
        rehearsal.server.close_stage()
    return rehearsal.server.release()


def another_sender(candidate: SessionCandidate) -> None:
    """Hand over a client's answer as another's; an upload is refused, and nothing wrong gets into the sum."""
    for _, rehearsal in rehearsals(candidate):
        answers = rehearsal.all_answers()
        if len(answers) < 2:  # noqa: PLR2004 -- two are needed
            continue
        honest, thief = list(answers)[:2]
        if answers[honest] == answers[thief]:
            raise ContractViolation("two clients answer with the same bytes")
        stolen = answers[honest]
        try:
            rehearsal.server.receive(thief, stolen)
        except PeerError:
            pass
        else:
            if candidate.proves_senders and _update_stages(rehearsal)[0]:
                raise ContractViolation("another client's answer is taken as the sender's own")
        del answers[thief]
        rehearsal.require_right_or_refused(partial(_going_on, rehearsal, answers))


def another_session(candidate: SessionCandidate) -> None:
    """Replay what a client signed in another session; it is refused, and the client's true answer is taken (R1)."""
    for number, other in rehearsals(candidate):
        foreign = other.all_answers()
        other.server.abort()
        rehearsal = Rehearsal.begin(candidate, other.world, round_number=candidate.subject.round_number + 1)
        rehearsal.reach(number)
        client = next(iter(foreign))
        if not _is_refused(rehearsal, client, foreign[client]):
            raise ContractViolation("an answer to another session is taken")
        rehearsal.deliver(rehearsal.all_answers())
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def from_many_threads(candidate: SessionCandidate) -> None:
    """Hand over the answers from eight threads at once, each twice."""
    rehearsal = Rehearsal.begin(candidate)
    with ThreadPoolExecutor(_THREADS) as pool:
        while rehearsal.server.stage is not None:
            answers = rehearsal.all_answers()
            list(pool.map(rehearsal.server.receive, [*answers, *answers], [*answers.values(), *answers.values()]))
            rehearsal.server.close_stage()
    rehearsal.require_exact(rehearsal.server.release(), candidate.clients)


def altered(message: bytes, part: float) -> bytes:
    """Return a message with one bit flipped."""
    changed = bytearray(message)
    changed[min(len(changed) - 1, int(part * len(changed)))] ^= 1
    return bytes(changed)
