"""Laws for a network that alters, replays and swaps messages: it must not cause blame of honest parties.

Blame for the network's actions always includes the server, which represents the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Final

from secagg.errors import UNDECIDED, ContractViolation, Party, PeerError, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.session.roles import Released
from secagg.wire import MessageKind, message_kind

from .candidate import require_refused
from .rehearsal import Rehearsal, SessionCandidate, rehearsals, update_stages

_AGAIN: Final = 3
_PLACES: Final = (0.0, 0.2, 0.3, 0.5, 0.7, 0.999)
"""Relative positions of altered bytes in a message."""


def require_network(error: object, *senders: Party) -> None:
    """Require that a fault that the network may have caused names at least the server and the sender."""
    named: frozenset[Party] = getattr(error, "culprits", frozenset())
    if named is UNDECIDED:
        raise ContractViolation(f"the network altered a message, but culprits are undecided: {error}")
    if named and not (any(isinstance(party, ServerId) for party in named) and named.issuperset(senders)):
        raise ContractViolation(f"the network altered a message, but {sorted(map(str, named))} are named: {error}")


def altered_answer(candidate: SessionCandidate) -> None:
    """Alter an answer in transit; if it is refused, the true one is accepted, and nothing wrong enters the sum (R1).

    The receiver of the altered answer must blame only its sender and the server.
    """
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
    before = rehearsal.server.participation, rehearsal.server.awaited
    try:
        rehearsal.server.receive(client, wrong)
    except PeerError as error:
        if (rehearsal.server.participation, rehearsal.server.awaited) != before:
            raise ContractViolation(f"an unverified message changes the clients a stage awaits: {error}") from error
        require_network(error, client)
        if others := [party for party in error.culprits if party != client and not isinstance(party, ServerId)]:
            raise ContractViolation(f"the network altered a message of {client}, but {others} are named") from error
        return True
    return False


def one_fault_for_each_reason(candidate: SessionCandidate) -> None:
    """Submit the same refused bytes again; they stay one fault, so no one can multiply it (R1)."""
    for _, rehearsal in rehearsals(candidate):
        client, answer = next(iter(rehearsal.all_answers().items()))
        found = list[int]()
        for length in range(1, _AGAIN + 1):
            require_refused("an answer that is cut short", rehearsal.server.receive, client, answer[:-length])
            found.append(len(rehearsal.server.faults))
        if found != [1] * _AGAIN:
            raise ContractViolation(f"one fault, {_AGAIN} times, is recorded as {found}")


def altered_message(candidate: SessionCandidate) -> None:
    """Alter a message to a client; it leaves or answers, and nothing wrong enters the sum."""
    for part in _PLACES:
        for _, rehearsal in rehearsals(candidate):
            client = next(c for c in candidate.clients if rehearsal.server.message_to(c) is not None)
            message = rehearsal.server.message_to(client) or b""
            answers = rehearsal.all_answers([c for c in candidate.clients if c != client])
            try:
                answers[client] = rehearsal.sessions[client].answer(altered(message, part))
            except SecAggError as error:
                require_network(error)
                rehearsal.server.drop(client)
                rehearsal.sessions[client].abort()
            rehearsal.require_right_or_refused(partial(_going_on, rehearsal, answers))


def altered_between(candidate: SessionCandidate) -> None:
    """Alter a message of each kind between the server and a helper; both ends of the link are blamed.

    If both ends send the same kind, the second message is in the other direction.
    """
    if candidate.between is None:
        return
    kinds = dict[MessageKind, None]()

    def note(message: bytes) -> bytes:
        kinds[message_kind(message)] = None
        return message

    _with_link(candidate, note)
    for kind, part, number in product(kinds, _PLACES, range(2)):
        parts = iter([None] * number + [part])

        def alter(message: bytes, kind: MessageKind = kind, parts: Iterator[float | None] = parts) -> bytes:
            place = next(parts, None) if message_kind(message) is kind else None
            return message if place is None else altered(message, place)

        _with_link(candidate, alter)


def _with_link(candidate: SessionCandidate, alter: Callable[[bytes], bytes]) -> None:
    """Run a session over a link to the helpers that alters messages."""
    world = candidate.world()
    if candidate.between is not None:
        candidate.between(world, alter)
    try:
        rehearsal = Rehearsal.begin(candidate, world)
    except (SecAggError, ConnectionError) as error:
        require_network(error, *candidate.linked)
        return
    try:
        rehearsal.require_right_or_refused(lambda: _going_on(rehearsal, rehearsal.all_answers(), *candidate.linked))
    except ConnectionError:
        return
    finally:
        world.close()


def _going_on(rehearsal: Rehearsal, answers: dict[ClientId, bytes], *senders: Party) -> Released:
    """Deliver answers, drop clients whose answer is refused, and continue with the others.

    The network causes all later errors.
    """
    server, left = rehearsal.server, set[ClientId](rehearsal.candidate.clients) - answers.keys()
    gone = {client for client in left if server.message_to(client) is not None}

    def delivered(client: ClientId, answer: Callable[[], bytes | None]) -> None:
        try:
            if (due := answer()) is not None:
                server.receive(client, due)
        except SecAggError as error:
            require_network(error, *senders)
            gone.add(client)
            server.drop(client)

    try:
        for client, answer in answers.items():
            delivered(client, partial(_same, answer))
        server.close_stage()
        while server.stage is not None:
            for client in rehearsal.candidate.clients:
                if client not in gone:
                    delivered(client, partial(rehearsal.answer, client))
            server.close_stage()
        released = server.release()
    except SecAggError as error:
        _require_network_alone(rehearsal, [error], *senders)
        raise
    _require_network_alone(rehearsal, released.left_out.values(), *senders)
    return released


def _same(answer: bytes) -> bytes:
    return answer


def _require_network_alone(rehearsal: Rehearsal, errors: Iterable[object], *senders: Party) -> None:
    recorded = [fault for client in rehearsal.sessions.values() for fault in client.faults]
    for error in (*errors, *rehearsal.server.faults, *recorded):
        require_network(error, *senders)


def another_sender(candidate: SessionCandidate) -> None:
    """Submit a client's answer as another's; an upload is refused, and nothing wrong enters the sum."""
    for _, rehearsal in rehearsals(candidate):
        answers = rehearsal.all_answers()
        if len(answers) < 2:  # noqa: PLR2004 -- two are needed
            continue
        honest, thief = list(answers)[:2]
        if answers[honest] == answers[thief]:
            raise ContractViolation("two clients send the same bytes as answers")
        stolen = answers[honest]
        try:
            rehearsal.server.receive(thief, stolen)
        except PeerError:
            pass
        else:
            if candidate.proves_senders and update_stages(rehearsal)[0]:
                raise ContractViolation("another client's answer is accepted as the sender's")
        del answers[thief]
        rehearsal.require_right_or_refused(partial(_going_on, rehearsal, answers))


def another_session(candidate: SessionCandidate) -> None:
    """Replay a client's signed answer from another session; it is refused, and the true answer is accepted (R1)."""
    for number, other in rehearsals(candidate):
        foreign = other.all_answers()
        other.server.abort()
        rehearsal = Rehearsal.begin(candidate, other.world, round_number=candidate.subject.round_number + 1)
        rehearsal.reach(number)
        client = next(iter(foreign))
        if not _is_refused(rehearsal, client, foreign[client]):
            raise ContractViolation("an answer to another session is accepted")
        rehearsal.deliver(rehearsal.all_answers())
        rehearsal.require_exact(rehearsal.finish(), candidate.clients)


def altered(message: bytes, part: float) -> bytes:
    """Return a message with one bit flipped."""
    changed = bytearray(message)
    changed[min(len(changed) - 1, int(part * len(changed)))] ^= 1
    return bytes(changed)
