"""Table of states, for both roles: the message that each state accepts and the states that follow.

``advance`` is the only way from one state to the next. A role that has a choice, because a client may be on the
committee or not, names the state that it wants, and gets it only if the table holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from secagg.errors import InternalError
from secagg.wire import MessageKind


class ClientState(StrEnum):
    """The message that a client waits for."""

    AWAITING_OFFER = "awaiting_offer"
    AWAITING_ADVERTISED_KEYS = "awaiting_advertised_keys"
    AWAITING_DELIVERED_SHARES = "awaiting_delivered_shares"
    AWAITING_SURVIVOR_SET = "awaiting_survivor_set"
    """Only on the committee of an active session."""
    AWAITING_UNMASKING_REQUEST = "awaiting_unmasking_request"
    COMPLETED = "completed"
    ABORTED = "aborted"


class ServerState(StrEnum):
    """The message that a server waits for, from as many clients as will send it before the round is closed."""

    AWAITING_KEY_ADVERTISEMENTS = "awaiting_key_advertisements"
    AWAITING_ENCRYPTED_SHARES = "awaiting_encrypted_shares"
    AWAITING_MASKED_INPUTS = "awaiting_masked_inputs"
    AWAITING_SURVIVOR_SIGNATURES = "awaiting_survivor_signatures"
    """Only in an active session."""
    AWAITING_UNMASKING_SHARES = "awaiting_unmasking_shares"
    COMPLETED = "completed"
    ABORTED = "aborted"


State = TypeVar("State", ClientState, ServerState)

CLIENT_TRANSITIONS: Final[Mapping[ClientState, tuple[MessageKind, frozenset[ClientState]]]] = {
    ClientState.AWAITING_OFFER: (
        MessageKind.SESSION_OFFER,
        frozenset({ClientState.AWAITING_ADVERTISED_KEYS}),
    ),
    ClientState.AWAITING_ADVERTISED_KEYS: (
        MessageKind.ADVERTISED_KEYS,
        frozenset({ClientState.AWAITING_DELIVERED_SHARES}),
    ),
    ClientState.AWAITING_DELIVERED_SHARES: (
        MessageKind.DELIVERED_SHARES,
        # A client that cannot use an edge answers with a complaint, and is out.
        frozenset({ClientState.AWAITING_SURVIVOR_SET, ClientState.AWAITING_UNMASKING_REQUEST, ClientState.ABORTED}),
    ),
    ClientState.AWAITING_SURVIVOR_SET: (
        MessageKind.SURVIVOR_SET,
        frozenset({ClientState.AWAITING_UNMASKING_REQUEST}),
    ),
    ClientState.AWAITING_UNMASKING_REQUEST: (
        MessageKind.UNMASKING_REQUEST,
        frozenset({ClientState.COMPLETED}),
    ),
}
"""The one message that each state accepts, and the states that an answer leads to. Any failure leads to ``ABORTED``."""

SERVER_TRANSITIONS: Final[Mapping[ServerState, tuple[MessageKind, frozenset[ServerState]]]] = {
    ServerState.AWAITING_KEY_ADVERTISEMENTS: (
        MessageKind.KEY_ADVERTISEMENT,
        frozenset({ServerState.AWAITING_ENCRYPTED_SHARES}),
    ),
    ServerState.AWAITING_ENCRYPTED_SHARES: (
        MessageKind.ENCRYPTED_SHARES,
        frozenset({ServerState.AWAITING_MASKED_INPUTS}),
    ),
    ServerState.AWAITING_MASKED_INPUTS: (
        MessageKind.MASKED_INPUT,
        frozenset({ServerState.AWAITING_SURVIVOR_SIGNATURES, ServerState.AWAITING_UNMASKING_SHARES}),
    ),
    ServerState.AWAITING_SURVIVOR_SIGNATURES: (
        MessageKind.SURVIVOR_SIGNATURE,
        frozenset({ServerState.AWAITING_UNMASKING_SHARES}),
    ),
    ServerState.AWAITING_UNMASKING_SHARES: (
        MessageKind.UNMASKING_SHARES,
        frozenset({ServerState.COMPLETED}),
    ),
}
"""The one message that each state accepts from each client, and where closing the round leads."""

SENT_INSTEAD: Final[Mapping[ServerState, MessageKind]] = {ServerState.AWAITING_MASKED_INPUTS: MessageKind.COMPLAINT}
"""Message that a client that leaves may send in place of the expected one."""

_TABLES: Final = dict[type, Mapping[Any, tuple[MessageKind, frozenset[Any]]]](
    {ClientState: CLIENT_TRANSITIONS, ServerState: SERVER_TRANSITIONS}
)


def advance(state: State, message: MessageKind, chosen: State | None = None) -> State:
    """Return the state that follows on a message: the only one that the table allows, or the chosen one of several.

    To a server the message is the one that it waits for no longer.

    Raises:
        InternalError: the table knows no such step.
    """
    due, following = _TABLES[type(state)].get(state, (None, frozenset[State]()))
    if chosen is None and len(following) == 1:
        (chosen,) = following
    if message is not due or chosen is None or chosen not in following:
        raise InternalError(f"no {message.name} leads from {state} to {chosen or 'one state'}")
    return chosen
