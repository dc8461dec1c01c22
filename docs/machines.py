"""Observes the protocols' state machines: their tables, the states that calls reach, and a session's messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from docs.diagrams import Sent, diagram_of, diagram_of_steps, sequence_of, spoken
from secagg.contract import IndexSegment, Layout, Payload, RingSegment, Segment
from secagg.contract.codewords import CodewordTable
from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.protocols.enclave.simulation import EnclaveSimulation
from secagg.protocols.enclave.trusted.buffer import BufferState, ReleaseRules
from secagg.protocols.enclave.trusted.buffer import Entry as BufferEntry
from secagg.protocols.light_secagg.server import TRANSITIONS as LIGHT_SECAGG_TRANSITIONS
from secagg.protocols.one_message.tally import TRANSITIONS as ONE_MESSAGE_TRANSITIONS
from secagg.protocols.pairwise_mask.member import CLIENT_TRANSITIONS
from secagg.protocols.pairwise_mask.session import SERVER_TRANSITIONS
from secagg.protocols.two_servers.offers import Entry as RoundEntry
from secagg.protocols.two_servers.offers import RoundRules, RoundState
from secagg.session.registry import find, planned_settings
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.wire import message_kind

Say = Callable[[Any, str, str], None]
"""Receives each message, or call by its name, with its sender and its recipient."""
HELPERS: Final = {"enclave": "Enclave", "two-servers": "Server 1", "one-message": "Each holder"}
_OPENING: Final = {
    "enclave": "secagg.protocols.enclave.simulation.open_session",
    "two-servers": "secagg.protocols.two_servers.simulation.open_session",
    "one-message": "secagg.protocols.one_message.simulation.open_session",
}
"""Functions by which simulations open a session with its helpers."""
_CLIENTS: Final = 5
_MODEL: Final = bytes(32)


# --- Sequences --------------------------------------------------------------------------------------------------------


def sequence(protocol: str) -> str:
    """Return the messages of a session of five clients, each once."""
    helper, sent = HELPERS.get(protocol), messages_of(protocol)
    return sequence_of(("Each client", "Server", *([helper] if helper else [])), sent)


def messages_of(protocol: str) -> list[Sent]:
    """Run a session, and return its stages and kinds of messages in order of first occurrence."""
    entry, sent = find(protocol), {"opening": list[Sent]()}

    def say(message: bytes | str, sender: str, receiver: str) -> None:
        text = message if isinstance(message, str) else spoken(message_kind(message).name)
        sent[list(sent)[-1]].append(Sent(text, sender, receiver))

    segment: Segment = IndexSegment(4, 2) if IndexSegment in entry.segments else RingSegment(16, 3)
    layout = Layout((segment,))
    tables = ((CodewordTable(2, np.eye(4, dtype=np.int64)),),) if IndexSegment in entry.segments else ()
    clients = [ClientId(number) for number in range(1, _CLIENTS + 1)]
    subject = Subject(task=b"docs", round_number=1, layout=layout, capacity=100, tables=tables, model_digest=_MODEL)
    facts = {"population": _CLIENTS, "corrupted": 1, "dropped": 0, "minimum_cohort": 3, "maximum_cohort": _CLIENTS}
    settings = planned_settings(entry, facts)
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session = _opened(protocol, say, lambda: world.open(subject, frozenset(clients)))
        members = {client: world.member(client).join(subject, _zeros(layout)) for client in clients}
        while session.stage is not None:
            sent[session.stage.name] = []
            for client, member in members.items():
                if (message := session.message_to(client)) is not None:
                    answer = member.answer(message)
                    say(message, "Server", "Each client")
                    say(answer, "Each client", "Server")
                    session.receive(client, answer)
            session.close_stage()
        sent["release"] = []
        session.release()
    return [each for stage, messages in sent.items() if messages for each in (Sent(stage), *dict.fromkeys(messages))]


def _zeros(layout: Layout) -> LazyUpdate:
    values = tuple(segment.ring.zeros(segment.length) for segment in layout.segments)
    return LazyUpdate(lambda: Update(Payload(layout, values), _MODEL))


def _opened(protocol: str, say: Say, opening: Callable[[], Any]) -> Any:  # noqa: ANN401 -- the protocol's own session
    """Open a session and record its messages to its helpers."""
    if (place := _OPENING.get(protocol)) is None:
        return opening()
    module, _, name = place.rpartition(".")
    real: Callable[..., Any] = getattr(import_module(module), name)
    hear = {"two-servers": _hear_one, "one-message": _hear_all, "enclave": _hear_enclave}[protocol]

    def wrapped(subject: Subject, settings: Any, invited: Any, helpers: Any) -> Any:  # noqa: ANN401 -- likewise
        return real(subject, settings, invited, hear(helpers, say))

    with patch(place, wrapped):
        return opening()


def _hear_one(helpers: Any, say: Say) -> Any:  # noqa: ANN401 -- likewise
    def asked(request: bytes) -> bytes:
        say(request, "Server", "Server 1")
        answer: bytes = helpers.ask(request)
        say(answer, "Server 1", "Server")
        return answer

    return replace(helpers, ask=asked)


def _hear_all(helpers: Any, say: Say) -> Any:  # noqa: ANN401 -- likewise
    def asked(requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        for request in requests.values():
            say(request, "Server", "Each holder")
        for position, answer in helpers.ask_all(requests):
            say(answer, "Each holder", "Server")
            yield position, answer

    return replace(helpers, ask_all=asked)


def _hear_enclave(helpers: Any, say: Say) -> Any:  # noqa: ANN401 -- likewise
    return replace(helpers, connection=_HeardEnclave(helpers.connection, say))


class _HeardEnclave:
    """Connection to an enclave that reports its messages."""

    def __init__(self, connection: Any, say: Say) -> None:  # noqa: ANN401 -- anything that a host calls
        self._connection, self._say = connection, say

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        self._say("open buffer", "Server", "Enclave")
        self._connection.open_buffer(version, model_digest)

    def announce_model(self, version: int, model_digest: bytes) -> None:
        self._connection.announce_model(version, model_digest)

    def receive(self, message: bytes) -> int:
        self._say(message, "Server", "Enclave")
        weight: int = self._connection.receive(message)
        return weight

    def release(self) -> bytes:
        self._say("release buffer", "Server", "Enclave")
        released: bytes = self._connection.release()
        self._say(released, "Enclave", "Server")
        return released

    def give_up_buffer(self) -> None:
        self._connection.give_up_buffer()


# --- States -----------------------------------------------------------------------------------------------------------


def states(machine: str) -> str:
    """Return the diagram of a state machine, by its name below."""
    return _MACHINES[machine]()


def explored(machine: Any, calls: Mapping[str, Callable[[Any], object]]) -> Iterator[tuple[str, str, str]]:  # noqa: ANN401
    """Yield every transition that calls cause; a refused call causes none."""
    waiting, seen = [machine], {machine.state}
    while waiting:
        now = waiting.pop(0)
        for name, call in calls.items():
            after = deepcopy(now)
            try:
                call(after)
            except SecAggError:
                continue
            if after.state is not now.state:
                yield now.state.value, name, after.state.value
            if after.state not in seen:
                seen.add(after.state)
                waiting.append(after)


def _two_servers() -> str:
    rules = RoundRules(minimum_cohort=1, maximum_cohort=1, maximum_rejections=0)
    upload = RoundEntry(client=ClientId(1), upload_id=_MODEL)
    rules.receive(upload)
    rules.ask(upload.upload_id)
    rules.take(upload.upload_id)
    calls: dict[str, Callable[[RoundRules], object]] = {
        "sign the list": RoundRules.sign,
        "the other signed it": RoundRules.agree,
        "any failure": RoundRules.fail,
    }
    return diagram_of_steps(RoundState.COLLECTING.value, explored(rules, calls))


def _enclave() -> str:
    coins, entry = SystemCoins(), find("enclave")
    world = EnclaveSimulation(entry.settings(), coins=coins, clock=lambda: datetime.now(UTC))
    subject = Subject(
        task=b"docs", round_number=1, layout=Layout((RingSegment(16, 3),)), capacity=100, model_digest=_MODEL
    )
    with closing(world):
        configuration = world.open(subject, None).configuration
    least = configuration.minimum_cohort

    def release(rules: ReleaseRules) -> None:
        for number in range(least):
            upload = BufferEntry(
                client=ClientId(number), upload_id=number.to_bytes(16, "big"), version=1, model_digest=_MODEL
            )
            rules.enter(upload)
        rules.require_releasable()
        rules.close()

    calls: dict[str, Callable[[ReleaseRules], object]] = {
        "open": lambda rules: rules.open(1, _MODEL),
        "release": release,
        "give up": ReleaseRules.give_up,
        "destroy": ReleaseRules.destroy,
    }
    return diagram_of_steps(BufferState.CLOSED.value, explored(ReleaseRules(configuration), calls))


_MACHINES: Final[Mapping[str, Callable[[], str]]] = {
    "pairwise-client": lambda: diagram_of(CLIENT_TRANSITIONS, "aborted"),
    "pairwise-server": lambda: diagram_of(SERVER_TRANSITIONS, "aborted"),
    "one-message": lambda: diagram_of(ONE_MESSAGE_TRANSITIONS),
    "lightsecagg": lambda: diagram_of(LIGHT_SECAGG_TRANSITIONS),
    "enclave": _enclave,
    "two-servers": _two_servers,
}
