"""Server of one sum: collects keys, pieces and masked inputs, and recovers the sum of the masks from any U answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import numpy as np

from secagg.contract import Aggregate
from secagg.crypto.hpke import sealing_key, sealing_sizes
from secagg.crypto.ring import RingVector, low_bits
from secagg.errors import NOBODY, MalformedMessage, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.session.roles import Released, Stage
from secagg.session.stages import Checked, StagedServerSession
from secagg.wire import MessageKind

from .configuration import Configuration, decode_body, decode_entries, encode_entries
from .field import ELEMENT_BYTES, FIELD, Vector, decode_vector, mask_from

Content = bytes | dict[ClientId, bytes] | Vector
"""Content of an answer: a key, sealed pieces, or a masked input or the sum of pieces."""


class State(StrEnum):
    """State of a sum, by the messages that the server waits for."""

    KEYS = "keys"
    PIECES = "pieces"
    INPUTS = "inputs"
    ANSWERS = "answers"
    DONE = "done"


TRANSITIONS: Final[Mapping[State, tuple[MessageKind | None, State]]] = {
    State.KEYS: (MessageKind.LIGHT_SECAGG_KEY, State.PIECES),
    State.PIECES: (MessageKind.LIGHT_SECAGG_PIECES, State.INPUTS),
    State.INPUTS: (MessageKind.LIGHT_SECAGG_INPUT, State.ANSWERS),
    State.ANSWERS: (MessageKind.LIGHT_SECAGG_ANSWER, State.DONE),
    State.DONE: (None, State.DONE),
}
"""Message that each state accepts, and the next state."""
STAGES: Final[dict[State, Stage]] = {
    state: Stage(name=state.value, takes_update=state is State.INPUTS) for state in State if state is not State.DONE
}


class Server(StagedServerSession[Content]):
    """The server's side of one sum; see ``ServerSession``."""

    def __init__(self, configuration: Configuration, invited: frozenset[ClientId] | None) -> None:
        self.configuration, self.state = configuration, State.KEYS
        self._keys, self._sealed = dict[ClientId, bytes](), dict[ClientId, dict[ClientId, bytes]]()
        self._answers = dict[ClientId, Vector]()
        self._roster: tuple[ClientId, ...] = ()
        self._total = np.zeros(configuration.length, np.int64)
        self._survivors = frozenset[ClientId]()
        super().__init__(STAGES[State.KEYS], configuration.encode(), invited, configuration.target)

    def _is_full(self) -> bool:
        return super()._is_full() or len(self._said) == self.configuration.population

    def _check(self, sender: ClientId, message: bytes) -> Checked[Content]:
        del sender  # Messages are not signed.
        configuration = self.configuration
        match self.state:
            case State.KEYS:
                key = decode_body(MessageKind.LIGHT_SECAGG_KEY, configuration, message)
                return Checked(sealing_key(configuration.suite, key).encoded)
            case State.PIECES:
                entries = decode_entries(MessageKind.LIGHT_SECAGG_PIECES, configuration, message)
                due = ELEMENT_BYTES * configuration.piece_length + sealing_sizes(configuration.suite)[1]
                if tuple(entries) != self._roster or any(len(sealed) != due for sealed in entries.values()):
                    raise MalformedMessage(
                        "each client needs one piece of the agreed length", reason=Reason.LAYOUT_MISMATCH
                    )
                return Checked(entries)
            case State.INPUTS:
                body = decode_body(MessageKind.LIGHT_SECAGG_INPUT, configuration, message)
                return Checked(decode_vector(body, configuration.length))
            case _:
                body = decode_body(MessageKind.LIGHT_SECAGG_ANSWER, configuration, message)
                return Checked(decode_vector(body, configuration.piece_length))

    def _take(self, sender: ClientId, content: Content) -> None:
        if isinstance(content, bytes):
            if len(self._keys) >= self.configuration.population:
                raise PeerMisbehaved("the sum is full", reason=Reason.NOT_ELIGIBLE, culprits=NOBODY)
            self._keys[sender] = content
        elif isinstance(content, dict):
            self._sealed[sender] = content
        elif self.state is State.INPUTS:
            self._total += content
        else:
            self._answers[sender] = content

    def _next(self) -> tuple[Stage, Mapping[ClientId, bytes]] | None:
        configuration, closed, left = self.configuration, self.state, sorted(self._said)
        if closed is State.ANSWERS:
            return None
        self.state = TRANSITIONS[closed][1]
        match closed:
            case State.KEYS:
                self._roster = tuple(left)
                roster = encode_entries(MessageKind.LIGHT_SECAGG_ROSTER, configuration, self._keys)
                messages = dict.fromkeys(left, roster)
            case State.PIECES:
                sealed, self._sealed = self._sealed, {}
                messages = {
                    client: encode_entries(
                        MessageKind.LIGHT_SECAGG_DELIVERY,
                        configuration,
                        {sender: pieces[client] for sender, pieces in sealed.items()},
                    )
                    for client in left
                }
            case _:
                self._survivors = frozenset(left)
                survivors = encode_entries(MessageKind.LIGHT_SECAGG_SURVIVORS, configuration, dict.fromkeys(left, b""))
                messages = dict.fromkeys(left, survivors)
        return STAGES[self.state], messages

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress  # The work is one product of small matrices, whatever the number of clients.
        aggregate, counted = self._unmasked(), self._survivors
        return Released(
            aggregate=aggregate,
            counted=counted,
            left_out={},
            revealed=frozenset({counted}),
            unbounded=aggregate.layout.ring_positions,
        )

    def _unmasked(self) -> Aggregate:
        """Remove the sum of the masks; this does not detect a lying client."""
        configuration = self.configuration
        chosen = sorted(self._answers)[: configuration.target]
        positions = [self._roster.index(client) for client in chosen]
        pieces = np.stack([self._answers[client] for client in chosen])
        mask = mask_from(pieces, positions, configuration.target - configuration.privacy).reshape(-1)
        values = (self._total - mask[: configuration.length]) % FIELD
        count, counted = len(self._survivors), int(values[-1])
        if counted != count:
            raise PeerMisbehaved(
                f"the sum counts {counted} clients, but {count} uploaded: a client lied",
                reason=Reason.INPUT_OUT_OF_RANGE,
                culprits=NOBODY,
            )
        start, vectors = 0, list[RingVector]()
        for segment, limbs in configuration.limbs:
            added = count * configuration.offset(segment, limbs)
            total = np.full(segment.length, -added & low_bits(64), np.uint64)
            for limb in range(limbs):
                part = values[start : start + segment.length].astype(np.uint64)
                total += part << np.uint64(configuration.limb_bits * limb)
                start += segment.length
            vectors.append((total & np.uint64(low_bits(segment.modulus_bits))).astype(segment.ring.word))
        return Aggregate(configuration.layout, tuple(vectors), count)

    def _wipe(self) -> None:
        self.state = State.DONE
        self._sealed.clear()
        self._answers.clear()
        self._total[:] = 0
