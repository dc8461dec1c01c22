"""A client: it publishes a key, deals pieces of its mask, uploads its masked input, and answers once for a set."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import numpy as np

from secagg.blame import unverified
from secagg.contract.layout import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_key, sealing_pair
from secagg.crypto.ring import low_bits
from secagg.crypto.secret import Confined, Secret
from secagg.errors import PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.wire import MessageKind, message_kind

from .configuration import Configuration
from .field import ELEMENT_BYTES, FIELD, Vector, decode_vector, encode_vector, pieces_of, uniform
from .messages import decode_entries, encode_body, encode_entries, roster_digest, sealing_info, survivors_of

_ROOT_BYTES = 32
Source = Callable[[Configuration], tuple[Payload, int]]
"""Returns what a client uploads, and how often it counts."""


class State(StrEnum):
    """What a client awaits."""

    ROSTER = "roster"
    DELIVERY = "delivery"
    SURVIVORS = "survivors"
    DONE = "done"


class Client(Confined):
    """One client of one sum, against a server that follows the protocol and is curious."""

    def __init__(self, client: ClientId, configuration: Configuration, source: Source, coins: Coins) -> None:
        """Prepare; the configuration is one that the client has chosen or checked.

        Args:
            source: makes the update when the upload is due.
        """
        self.client, self.configuration, self.state, self.source = client, configuration, State.ROSTER, source
        self._coins = coins
        with Secret.random("sealing root", _ROOT_BYTES, coins) as root:
            self._pair = sealing_pair(configuration.suite, root, configuration.context)
        self._mask = uniform(configuration.length, coins)
        self._roster, self._clients = b"", tuple[ClientId, ...]()
        self._pieces = dict[ClientId, Vector]()

    @property
    def advertisement(self) -> bytes:
        """The client's first message: its key."""
        return encode_body(MessageKind.CODED_MASK_KEY, self.configuration, self._pair.public_key.encoded)

    def receive(self, message: bytes) -> bytes:
        """Return the answer to what the server sends; each step is done once.

        Raises:
            PeerError: the message is wrong or not due; nothing has changed.
        """
        match (self.state, message_kind(message)):
            case (State.ROSTER, MessageKind.CODED_MASK_ROSTER):
                return self._deal(message)
            case (State.DELIVERY, MessageKind.CODED_MASK_DELIVERY):
                return self._upload(message)
            case (State.SURVIVORS, MessageKind.CODED_MASK_SURVIVORS):
                return self._answer(message)
            case (state, kind):
                due = "nothing more" if state is State.DONE else f"a {state}"
                raise UnexpectedMessage(expected=due, received=kind.name, culprits={ServerId()})

    def _deal(self, message: bytes) -> bytes:
        """Cut the mask into coded pieces, and seal one to every client.

        Implements: [SHY+22] Algorithm 1, offline encoding and sharing of local masks.
        """
        configuration = self.configuration
        keys = decode_entries(MessageKind.CODED_MASK_ROSTER, configuration, message)
        if keys.get(self.client) != self._pair.public_key.encoded or len(keys) < configuration.target:
            raise _wrong("a roster has this client's key, and as many as must stay", Reason.ROSTER_INVALID)
        checked = {client: sealing_key(configuration.suite, key, culprits={client}) for client, key in keys.items()}
        clients, roster = tuple(keys), roster_digest(configuration, keys)
        length, count = configuration.piece_length, configuration.target - configuration.privacy
        parts = np.zeros((configuration.target, length), np.int64)
        parts[:count].reshape(-1)[: self._mask.size] = self._mask
        noise = uniform(configuration.privacy * length, self._coins)
        parts[count:] = noise.reshape(configuration.privacy, length)
        pieces = pieces_of(parts, len(clients))
        sealed = dict[ClientId, bytes]()
        for client, piece in zip(clients, pieces, strict=True):
            with Secret("piece of a mask", encode_vector(piece)) as secret:
                sealed[client] = checked[client].seal(secret, sealing_info(roster, self.client, client))
        parts[:] = 0
        noise[:] = 0
        pieces[:] = 0
        self._clients, self._roster, self.state = clients, roster, State.DELIVERY
        return encode_entries(MessageKind.CODED_MASK_PIECES, configuration, sealed)

    def _upload(self, message: bytes) -> bytes:
        """Open the others' pieces, and upload the masked input.

        Implements: [SHY+22] Algorithm 1, masking and uploading of local models.
        """
        configuration, pieces = self.configuration, dict[ClientId, Vector]()
        length = configuration.piece_length
        for sender, sealed in decode_entries(MessageKind.CODED_MASK_DELIVERY, configuration, message).items():
            if sender not in self._clients:
                raise _wrong(f"{sender} is not on the roster", Reason.ROSTER_INVALID)
            info = sealing_info(self._roster, sender, self.client)
            with self._pair.open(
                "piece of a mask", sealed, ELEMENT_BYTES * length, info, culprits=unverified(sender)
            ) as opened:
                pieces[sender] = decode_vector(opened.expose(), length)
        if self.client not in pieces or len(pieces) < configuration.target:
            raise _wrong("a delivery has this client's own piece, and as many as must stay", Reason.ROSTER_INVALID)
        payload, weight = self.source(configuration)
        configuration.require_fitting(payload, weight)
        elements = _elements(configuration, payload, weight)
        masked = (elements + self._mask) % FIELD
        elements[:] = 0
        self._mask[:] = 0
        self._pieces, self.state = pieces, State.SURVIVORS
        return encode_body(MessageKind.CODED_MASK_INPUT, configuration, encode_vector(masked))

    def _answer(self, message: bytes) -> bytes:
        """Add the pieces of those who uploaded; once, because two sums would differ in somebody's mask.

        Implements: [SHY+22] Algorithm 1, one-shot recovery of the aggregated mask.
        """
        configuration = self.configuration
        survivors = survivors_of(decode_entries(MessageKind.CODED_MASK_SURVIVORS, configuration, message))
        if len(survivors) < configuration.target or not set(survivors) <= self._pieces.keys():
            raise _wrong("a set has as many as must stay, of those whose pieces came", Reason.SURVIVORS_INVALID)
        total = np.zeros(configuration.piece_length, np.int64)
        for survivor in survivors:
            total += self._pieces[survivor]
        self.wipe()
        return encode_body(MessageKind.CODED_MASK_ANSWER, configuration, encode_vector(total % FIELD))

    def wipe(self) -> None:
        """Leave, and overwrite what is secret."""
        self.state = State.DONE
        for vector in (self._mask, *self._pieces.values()):
            vector[:] = 0
        self._pieces.clear()
        self._pair.wipe()

    def __repr__(self) -> str:
        return f"<Client {self.client} awaits {self.state}>"


def _elements(configuration: Configuration, payload: Payload, weight: int) -> Vector:
    """Return the weighted values off zero, each as limbs of which the lowest stand first, and the weight.

    The server sees sums of limbs. Without the offset they would say how many values of a place are below zero.
    """
    parts, bits = list[Vector](), configuration.limb_bits
    for (segment, count), values in zip(configuration.limbs, payload.values, strict=True):
        scaled = values.astype(np.uint64) * np.uint64(weight) + np.uint64(configuration.offset(segment, count))
        scaled &= np.uint64(low_bits(segment.modulus_bits))
        parts += [
            (scaled >> np.uint64(bits * limb) & np.uint64(low_bits(bits))).astype(np.int64) for limb in range(count)
        ]
    return np.concatenate([*parts, np.array([weight], np.int64)])


def _wrong(sentence: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits={ServerId()})
