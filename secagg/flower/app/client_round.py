"""A node's part in a session of whichever protocol: it answers one message, and is put aside sealed until the next.

The first message brings the terms of the session, and the one that an upload answers brings the model. The client
trains then, encodes the difference, and masks or seals it at once, so that no update ever rests anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from secagg.compression.outside import Factory
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.platforms.client_round import Node, NodeRound
from secagg.platforms.floors import NodeSettings
from secagg.platforms.logs import LOG
from secagg.platforms.terms import RECORD, Terms
from secagg.platforms.trained_update import Training
from secagg.session.roles import ClientSession, LateUpdate
from secagg.session.sealed_state import OpenState, StateDirectory

from .app_training import training_of
from .records import LARGE_RECORD, message_in, read_terms, with_message, write_terms

STATE_RECORD: Final = "secagg.state"


class ClientRound:
    """One message of a session, from its arrival to its answer."""

    def __init__(
        self,
        settings: NodeSettings,
        judge: object | None,
        folder: Path | None,
        outside: Mapping[str, Factory] = MappingProxyType({}),
    ) -> None:
        """Prepare; the settings are those of the app, raised by the node.

        Args:
            outside: schemes from outside that the app itself brings, by name.
        """
        self._outside = outside
        self._settings, self._judge, self._states = settings, judge, StateDirectory(folder, coins=SystemCoins())

    def answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Begin a session, or go on with the one that was put aside.

        Raises:
            SecAggError: this client leaves the session, of which nothing is left.
        """
        record = message.content.config_records.get(RECORD)
        if record is None:
            raise InvalidParameters(
                "the server asks for an update in the clear; wrap its grid in SecAggGrid, or remove SecAggMod",
                reason=Reason.BELOW_FLOOR,
            )
        received = message_in(message.content)
        terms, sealed = read_terms(record), _take(context)
        state: OpenState | None = None
        suspended: Secret | None = None
        if terms is not None:
            if sealed is not None:
                # A session that was never finished ends as another one begins.
                self._states.discard(sealed[0])
        elif sealed is None:
            raise Misuse(
                "there is no session to go on with: this client did not begin it, or has left it",
                reason=Reason.ALREADY_SPENT,
            )
        else:
            terms = sealed[1]
            state, suspended = self._states.open(sealed[0])
        try:
            session, begun = self._joined(message, context, call_next, terms, suspended)
            try:
                answer = session.answer(received)
                for fault in session.faults:
                    LOG.warning("%s: %s", session.client, fault)
                rest = session.suspend()
            except BaseException:
                session.abort()
                raise
            if rest is not None:
                with rest:
                    state = state or self._states.begin()
                    _put(context, state.seal(rest), terms)
                    state = None
            LOG.debug("%s: answered a message of round %d", session.client, terms.round_number)
            return Message(with_message(answer, session.client, signature=begun.signature(answer)), reply_to=message)
        finally:
            if suspended is not None:
                suspended.wipe()
            if state is not None:
                state.destroy()

    def _joined(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        terms: Terms,
        suspended: Secret | None,
    ) -> tuple[ClientSession, NodeRound]:
        """Join the session that the terms are about; whatever differs from them is refused by the session."""
        node = Node(
            settings=self._settings,
            config=context.node_config,
            client=ClientId(context.node_id),
            states=self._states,
            outside=self._outside,
            judge=self._judge,
        )
        begun = node.begun(terms)
        member = begun.member(message_in(message.content) if suspended is None else b"")
        if suspended is None:
            begun.require_open()
        training: Training | None = None
        if any(name != LARGE_RECORD for name in message.content.array_records):
            training = training_of(message, context, call_next, begun)
        subject = begun.subject(training.model_digest if training else None)
        return member.join(subject, LateUpdate(training.made) if training else None, suspended), begun


def forget(context: Context) -> None:
    """Leave nothing of a session in a node's state."""
    if STATE_RECORD in context.state.config_records:
        context.state[STATE_RECORD] = ConfigRecord()


def _take(context: Context) -> tuple[bytes, Terms] | None:
    """Take the sealed client out of the state, with the terms; what is gone on from must not stay there."""
    record = context.state.config_records.get(STATE_RECORD)
    if record is None:
        return None
    sealed, terms = record.get("sealed"), read_terms(record)
    forget(context)
    return (sealed, terms) if isinstance(sealed, bytes) and sealed and terms is not None else None


def _put(context: Context, sealed: bytes, terms: Terms) -> None:
    record = ConfigRecord({"sealed": sealed})
    write_terms(terms, record)
    context.state[STATE_RECORD] = record
