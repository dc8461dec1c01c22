"""Client: publishes a key, deals pieces of its mask, uploads its masked input, and answers one set of uploaders."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from secagg.blame import from_server, unverified
from secagg.contract.layout import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_key, sealing_pair
from secagg.crypto.ring import low_bits
from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    Fault,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId
from secagg.wire import MessageKind, message_kind

from .configuration import Configuration, decode_entries, encode_body, encode_entries, roster_digest, sealing_info
from .field import ELEMENT_BYTES, FIELD, Vector, decode_vector, encode_vector, pieces_of, uniform

if TYPE_CHECKING:
    from secagg.session.roles import LazyUpdate, Subject

    from .member import MemberParts

_ROOT_BYTES = 32


class State(StrEnum):
    """State of a client, by the message that it waits for."""

    ROSTER = "a roster"
    DELIVERY = "a delivery"
    SURVIVORS = "survivors"
    DONE = "nothing more"


class Held(Confined):
    """State of a client between two messages of a sum."""

    def __init__(self, configuration: Configuration, coins: Coins) -> None:
        self.configuration, self.state = configuration, State.ROSTER
        with Secret.random("sealing root", _ROOT_BYTES, coins) as root:
            self.pair = sealing_pair(configuration.suite, root, configuration.context)
        self.mask = uniform(configuration.length, coins)
        self.roster, self.clients = b"", tuple[ClientId, ...]()
        self.pieces = dict[ClientId, Vector]()

    def wipe(self) -> None:
        self.state = State.DONE
        for vector in (self.mask, *self.pieces.values()):
            vector[:] = 0
        self.pieces.clear()
        self.pair.wipe()


class Client(Confined):
    """Client side of one sum with an honest-but-curious server; see ``ClientSession``."""

    faults: tuple[Fault, ...] = ()
    """None: a piece that does not open ends the session."""

    def __init__(
        self, member: MemberParts[Held], subject: Subject, update: LazyUpdate | None, held: Held | None = None
    ) -> None:
        self._member, self._subject, self._update, self._held = member, subject, update, held
        self._is_over = False

    @property
    def client(self) -> ClientId:
        return self._member.client

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message; an accepted offer is answered with a key."""
        if self._is_over:
            raise Misuse("the client has left this session", reason=Reason.ALREADY_SPENT)
        with blaming(*from_server()):
            return self._answer(message)

    def _answer(self, message: bytes) -> bytes:
        if self._held is None:
            configuration = Configuration.decode(message)
            self._member.admit(configuration)
            configuration.require_subject(self._subject)
            self._held = Held(configuration, self._member.coins)
            return encode_body(MessageKind.LIGHT_SECAGG_KEY, configuration, self._held.pair.public_key.encoded)
        if self._held.state is State.DONE:
            raise UnexpectedMessage(expected=State.DONE, received=message_kind(message).name)
        steps = {State.ROSTER: self._deal, State.DELIVERY: self._upload, State.SURVIVORS: self._add}
        try:
            return steps[self._held.state](self._held, message)
        except UnexpectedMessage:
            raise
        except BaseException:
            # This includes a ledger that cannot be written.
            self.abort()
            raise

    def suspend(self) -> Secret | None:
        """Return a handle and stop answering; the state stays in the member's memory."""
        held, self._held, self._is_over = self._held, None, True
        return None if held is None or held.state is State.DONE else self._member.keep(held)

    def abort(self) -> None:
        """Leave and wipe; an update that was made stays spent."""
        self._is_over = True
        if self._held is not None:
            self._held.wipe()

    # --- The other answers --------------------------------------------------------------------------------------------

    def _deal(self, held: Held, message: bytes) -> bytes:
        """Split the mask into coded pieces, and seal one to each client.

        Implements: [SHY+22] Algorithm 1, offline encoding and sharing of local masks.
        """
        configuration = held.configuration
        keys = decode_entries(MessageKind.LIGHT_SECAGG_ROSTER, configuration, message)
        if keys.get(self.client) != held.pair.public_key.encoded or len(keys) < configuration.target:
            raise _wrong("the roster lacks this client's key, or has too few clients", Reason.ROSTER_INVALID)
        held.clients, held.roster = tuple(keys), roster_digest(configuration, keys)
        length, count = configuration.piece_length, configuration.target - configuration.privacy
        parts = np.zeros((configuration.target, length), np.int64)
        parts[:count].reshape(-1)[: held.mask.size] = held.mask
        noise = uniform(configuration.privacy * length, self._member.coins)
        parts[count:] = noise.reshape(configuration.privacy, length)
        pieces = pieces_of(parts, len(keys))
        sealed = dict[ClientId, bytes]()
        for (client, key), piece in zip(keys.items(), pieces, strict=True):
            receiver = sealing_key(configuration.suite, key, culprits=unverified(client))
            with Secret("piece of a mask", encode_vector(piece)) as secret:
                sealed[client] = receiver.seal(secret, sealing_info(held.roster, self.client, client))
        for used in (parts, noise, pieces):
            used[:] = 0
        held.state = State.DELIVERY
        return encode_entries(MessageKind.LIGHT_SECAGG_PIECES, configuration, sealed)

    def _upload(self, held: Held, message: bytes) -> bytes:
        """Open the others' pieces, charge the ledger, make the update, and upload it under its mask.

        Implements: [SHY+22] Algorithm 1, masking and uploading of local models.
        """
        configuration, length = held.configuration, held.configuration.piece_length
        for sender, sealed in decode_entries(MessageKind.LIGHT_SECAGG_DELIVERY, configuration, message).items():
            if sender not in held.clients:
                raise _wrong(f"{sender} is not on the roster", Reason.ROSTER_INVALID)
            info = sealing_info(held.roster, sender, self.client)
            # Anyone who knows this client's key can seal a piece, so even one that opens but is not a vector proves
            # nothing.
            with (
                blaming(*unverified(sender)),
                held.pair.open("piece of a mask", sealed, ELEMENT_BYTES * length, info) as opened,
            ):
                held.pieces[sender] = decode_vector(opened.expose(), length)
        if self.client not in held.pieces or len(held.pieces) < configuration.target:
            raise _wrong("the delivery lacks this client's own piece, or has too few pieces", Reason.ROSTER_INVALID)
        if self._update is None:
            raise InvalidParameters("the server's message must include the model; this one does not")
        if self._update.model_for(self._subject) != configuration.model_digest:
            raise InvalidParameters(
                "the update was trained from a different model than the sum's", reason=Reason.BELOW_FLOOR
            )
        # From here on nothing is refused.
        charge = partial(self._member.charge, self._update.spent(self._subject))
        elements = elements_of(configuration, self._update.take(configuration.layout, charge=charge).payload)
        masked = (elements + held.mask) % FIELD
        elements[:] = held.mask[:] = 0
        held.state = State.SURVIVORS
        return encode_body(MessageKind.LIGHT_SECAGG_INPUT, configuration, encode_vector(masked))

    def _add(self, held: Held, message: bytes) -> bytes:
        """Add the pieces of the uploaders; only once, because two sums would differ in some client's mask.

        Implements: [SHY+22] Algorithm 1, one-shot recovery of the aggregated mask.
        """
        configuration = held.configuration
        survivors = decode_entries(MessageKind.LIGHT_SECAGG_SURVIVORS, configuration, message)
        if any(survivors.values()):
            raise MalformedMessage("a set must contain only client ids", reason=Reason.TRAILING_BYTES)
        if len(survivors) < configuration.target or not survivors.keys() <= held.pieces.keys():
            raise _wrong("the set has too few clients, or one whose piece is missing", Reason.SURVIVORS_INVALID)
        total = np.sum([held.pieces[survivor] for survivor in survivors], axis=0)
        held.wipe()
        return encode_body(MessageKind.LIGHT_SECAGG_ANSWER, configuration, encode_vector(total % FIELD))

    def __repr__(self) -> str:
        state = "is over" if self._is_over else f"awaits {self._held.state if self._held else 'an offer'}"
        return f"<Client {self.client} {state}>"


def elements_of(configuration: Configuration, payload: Payload) -> Vector:
    """Return the offset values as limbs, lowest first, and a 1 that counts the client.

    The server sees sums of limbs. Without the offset they would reveal the number of negative values at each position.
    """
    parts, bits = list[Vector](), configuration.limb_bits
    for (segment, count), values in zip(configuration.limbs, payload.values, strict=True):
        moved = values.astype(np.uint64) + np.uint64(configuration.offset(segment, count))
        moved &= np.uint64(low_bits(segment.modulus_bits))
        parts += [
            (moved >> np.uint64(bits * limb) & np.uint64(low_bits(bits))).astype(np.int64) for limb in range(count)
        ]
    return np.concatenate([*parts, np.ones(1, np.int64)])


def _wrong(sentence: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits=from_server())
