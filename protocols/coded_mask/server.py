"""The server of one sum: keys, pieces, masked inputs, and the sum of the masks from any U answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import numpy as np

from secagg.blame import unverified
from secagg.contract import Aggregate
from secagg.crypto.hpke import sealing_key, sealing_sizes
from secagg.crypto.ring import RingVector, low_bits
from secagg.crypto.secret import Confined
from secagg.errors import (
    NOBODY,
    UNDECIDED,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId
from secagg.wire import MessageKind, message_kind

from .configuration import Configuration
from .field import ELEMENT_BYTES, FIELD, Vector, decode_vector, mask_from
from .messages import decode_body, decode_entries, encode_entries

Content = bytes | dict[ClientId, bytes] | Vector
"""What an answer holds: a key, sealed pieces, or a masked input or the sum of pieces."""


class State(StrEnum):
    """What a server awaits."""

    KEYS = "keys"
    PIECES = "pieces"
    INPUTS = "inputs"
    ANSWERS = "answers"
    DONE = "done"


TRANSITIONS: Final[Mapping[State, tuple[MessageKind | None, State]]] = {
    State.KEYS: (MessageKind.CODED_MASK_KEY, State.PIECES),
    State.PIECES: (MessageKind.CODED_MASK_PIECES, State.INPUTS),
    State.INPUTS: (MessageKind.CODED_MASK_INPUT, State.ANSWERS),
    State.ANSWERS: (MessageKind.CODED_MASK_ANSWER, State.DONE),
    State.DONE: (None, State.DONE),
}
"""For each state the message that it takes, and the state that follows."""


class Server(Confined):
    """One sum; a stage is closed when its caller waits no longer."""

    def __init__(self, configuration: Configuration) -> None:
        """Begin."""
        self.configuration, self.state = configuration, State.KEYS
        self._keys, self._sealed = dict[ClientId, bytes](), dict[ClientId, dict[ClientId, bytes]]()
        self._answers = dict[ClientId, Vector]()
        self._heard: set[ClientId] = set()
        self._roster: tuple[ClientId, ...] = ()
        self._eligible = frozenset[ClientId]()
        self._total = np.zeros(configuration.length, np.int64)
        self.survivors = frozenset[ClientId]()

    @property
    def heard(self) -> frozenset[ClientId]:
        """Who has answered in this stage."""
        return frozenset(self._heard)

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take what is due from a client whom the transport names.

        Raises:
            PeerError: it was not taken, and nothing has changed.
        """
        with blaming(*unverified(sender)):
            self._kind_of(message)
            if sender in self._heard:
                raise PeerMisbehaved(f"{sender} has answered", reason=Reason.ALREADY_ANSWERED, culprits=UNDECIDED)
            if self.state is not State.KEYS and sender not in self._eligible:
                raise PeerMisbehaved(
                    f"{sender} has left, or was never here", reason=Reason.NOT_ELIGIBLE, culprits=UNDECIDED
                )
            self.take(sender, self.read(message))

    def read(self, message: bytes) -> Content:
        """Check an answer to the open stage; nothing changes.

        Raises:
            PeerError: it does not decode, or is for another sum or stage.
        """
        configuration, kind = self.configuration, self._kind_of(message)
        match self.state:
            case State.KEYS:
                return sealing_key(configuration.suite, decode_body(kind, configuration, message)).encoded
            case State.PIECES:
                return self._checked_pieces(message)
            case state:
                length = configuration.length if state is State.INPUTS else configuration.piece_length
                return decode_vector(decode_body(kind, configuration, message), length)

    def _kind_of(self, message: bytes) -> MessageKind:
        kind = TRANSITIONS[self.state][0]
        if kind is None or message_kind(message) is not kind:
            raise UnexpectedMessage(expected=f"{self.state}", received=message_kind(message).name)
        return kind

    def take(self, sender: ClientId, content: Content) -> None:
        """Take what was read, the first that a client says in this stage.

        Raises:
            PeerMisbehaved: all places are taken.
        """
        if isinstance(content, bytes):
            if len(self._keys) >= self.configuration.population:
                raise PeerMisbehaved("all places are taken", reason=Reason.NOT_ELIGIBLE, culprits=NOBODY)
            self._keys[sender] = content
        elif isinstance(content, dict):
            self._sealed[sender] = content
        elif self.state is State.INPUTS:
            self._total += content
        else:
            self._answers[sender] = content
        self._heard.add(sender)

    def _checked_pieces(self, message: bytes) -> dict[ClientId, bytes]:
        entries = decode_entries(MessageKind.CODED_MASK_PIECES, self.configuration, message)
        due = ELEMENT_BYTES * self.configuration.piece_length + sealing_sizes(self.configuration.suite)[1]
        if tuple(entries) != self._roster or any(len(sealed) != due for sealed in entries.values()):
            raise MalformedMessage("there is a piece of one length for each client", reason=Reason.LAYOUT_MISMATCH)
        return entries

    def close_stage(self) -> dict[ClientId, bytes]:
        """Await nobody else, and return what each client that is left is sent.

        Raises:
            ThresholdNotMet: fewer than U are left, and no sum comes of it.
        """
        needed = self.configuration.target
        if self.state in (State.ANSWERS, State.DONE):
            raise Misuse("the last stage is closed by opening the sum")
        if len(self._heard) < needed:
            raise ThresholdNotMet(needed=needed, present=len(self._heard), what=f"{self.state}")
        left, closed = sorted(self._heard), self.state
        self._eligible, self._heard, self.state = frozenset(left), set(), TRANSITIONS[self.state][1]
        match closed:
            case State.KEYS:
                self._roster = tuple(left)
                message = encode_entries(MessageKind.CODED_MASK_ROSTER, self.configuration, self._keys)
                return dict.fromkeys(left, message)
            case State.PIECES:
                sealed, self._sealed = self._sealed, {}
                return {
                    client: encode_entries(
                        MessageKind.CODED_MASK_DELIVERY,
                        self.configuration,
                        {sender: pieces[client] for sender, pieces in sealed.items()},
                    )
                    for client in left
                }
            case _:
                self.survivors = self._eligible
                entries = dict.fromkeys(left, b"")
                return dict.fromkeys(
                    left, encode_entries(MessageKind.CODED_MASK_SURVIVORS, self.configuration, entries)
                )

    def require_answers(self) -> None:
        """Refuse to go on before U have answered.

        Raises:
            ThresholdNotMet: fewer did; more may still do so.
        """
        if self.state is not State.ANSWERS:
            raise Misuse("close the stages before; a sum is opened once")
        if len(self._answers) < self.configuration.target:
            raise ThresholdNotMet(needed=self.configuration.target, present=len(self._answers), what="answers")

    def open(self) -> Aggregate:
        """Remove the sum of the masks; it is not noticed if a client lied.

        Raises:
            ThresholdNotMet: fewer than U answered; more may still do so.
        """
        self.require_answers()
        configuration = self.configuration
        chosen = sorted(self._answers)[: configuration.target]
        positions = [self._roster.index(client) for client in chosen]
        pieces = np.stack([self._answers[client] for client in chosen])
        mask = mask_from(pieces, positions, configuration.target - configuration.privacy).reshape(-1)
        values = (self._total - mask[: configuration.length]) % FIELD
        count, weight = len(self.survivors), int(values[-1])
        if not count <= weight <= count * configuration.maximum_weight:
            raise PeerMisbehaved(
                "the clients' weights add up to what no weights do: a client lied",
                reason=Reason.INPUT_OUT_OF_RANGE,
                culprits=NOBODY,
            )
        self.state, start, vectors = State.DONE, 0, list[RingVector]()
        for segment, limbs in configuration.limbs:
            added = count * configuration.offset(segment, limbs)
            total = np.full(segment.length, -added & low_bits(64), np.uint64)
            for limb in range(limbs):
                part = values[start : start + segment.length].astype(np.uint64)
                total += part << np.uint64(configuration.limb_bits * limb)
                start += segment.length
            vectors.append((total & np.uint64(low_bits(segment.modulus_bits))).astype(segment.ring.word))
        return Aggregate(configuration.layout, tuple(vectors), count, weight)

    def wipe(self) -> None:
        """End, and forget what clients sent."""
        self.state = State.DONE
        self._sealed.clear()
        self._answers.clear()
        self._total[:] = 0

    def __repr__(self) -> str:
        return f"<Server awaits {self.state}, {len(self._heard)} heard>"
