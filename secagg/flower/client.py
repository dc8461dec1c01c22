"""Client side: a Flower mod that replaces a training result with protocol messages.

The user's function trains as usual, and its result never leaves the client. The difference from the received model is
encoded, weighted, and masked or sealed at once. So no update is ever stored, and only protocol messages are sent.
Between two messages a node's session state is stored sealed.

A mod must not raise: Flower would then discard the state that the mod has just changed, and restore an outdated one.
Instead it answers with an error, with one of a few codes, that tells the server that the client left. It raises only if
another session began on this node during training, so that Flower discards the older state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from secagg.compression.custom import Factory
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.flower.strategies import write_where_flower_does
from secagg.identifiers import ClientId
from secagg.platforms import LOG, Left, code_of, code_said, log_leaving
from secagg.platforms.client_node import REQUIRED, ClientNode
from secagg.platforms.client_round import Node, NodeRound, Trained, Training, begun_app
from secagg.platforms.held_models import followed, is_told, parted, restored, stored
from secagg.platforms.settings import PREFIX
from secagg.platforms.terms import RECORD, Record, Terms, message_in
from secagg.session.roles import ClientSession, LazyUpdate
from secagg.session.sealed_state import OpenState, StateDirectory


class SecAggMod:
    """Mod for secure aggregation: ``ClientApp(mods=[SecAggMod()])``, or ``@app.train(mods=[SecAggMod()])``.

    List it before other mods, so that their changes (such as clipping) happen before masking.

    Its options are this client's policy. A node's operator can tighten the policy, but not loosen it, by
    ``--node-config`` with the keys of ``secagg.platforms.client_node``. The server's settings never loosen it.
    """

    def __init__(
        self,
        *,
        enclave_judge: object | None = None,
        state_directory: str | None = None,
        scheme: str | None = None,
        **node: Any,  # noqa: ANN401 -- of the options' own types
    ) -> None:
        """Set the policy.

        Args:
            enclave_judge: judge of an enclave's evidence, instead of ``enclave_policy``.
            state_directory: folder of the keys to sealed states (default: a folder in memory).
            scheme: custom scheme that the server's secagg-compression may name; no other is imported.
            node: options of ``ClientNode``, such as ``minimum_cohort=10``.
        """
        self._settings, self._custom = begun_app(node, scheme)
        if enclave_judge is not None and self._settings.enclave_policy is not None:
            raise InvalidParameters("enclave_judge and enclave_policy both judge an enclave's evidence; give only one")
        self._judge = enclave_judge
        self._folder = None if state_directory is None else Path(state_directory)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a protocol message, and train if it contains a model; the policy may refuse other messages."""
        # A value of the wrong type is refused with the other options.
        is_required = self._settings.required or context.node_config.get(PREFIX + REQUIRED, False) is not False
        if not is_required and not _is_ours(message):
            return call_next(message, context)
        write_where_flower_does()

        def answer(states: StateDirectory) -> Message:
            settings = self._settings.raised_by(context.node_config)
            return ClientRound(settings, self._judge, states, self._custom).answer(message, context, call_next)

        return answered(message, context, self._folder, answer)


def _is_ours(message: Message) -> bool:
    """Whether a message asks for training or a summed evaluation; other messages pass."""
    family = message.metadata.message_type.partition(".")[0]
    if family in {MessageType.TRAIN, MessageType.QUERY}:
        return family == MessageType.TRAIN
    return message.has_content() and RECORD in message.content.config_records


# --- One message of a session -----------------------------------------------------------------------------------------

STATE_RECORD: Final = "secagg.state"
HELD_RECORD: Final = "secagg.held"
"""The model that a node holds, with a compressed downlink."""


class SupersededError(RuntimeError):
    """Training outlived its session; Flower's state for it is older than the node's."""

    def __init__(self) -> None:
        super().__init__("this node has begun another session since; this session's training result is dropped")


class ClientRound:
    """One message of a session, from its arrival to its answer."""

    def __init__(
        self,
        settings: ClientNode,
        judge: object | None,
        states: StateDirectory,
        custom: Mapping[str, Factory] = MappingProxyType({}),
    ) -> None:
        self._custom = custom
        self._settings, self._judge, self._states = settings, judge, states

    def answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Start a session, or resume the suspended one; if this raises, call ``forget``."""
        if RECORD not in message.content.config_records:
            raise InvalidParameters(
                f"the server of run {context.run_id} asks for {message.metadata.message_type!r} in the clear; wrap its "
                "grid in SecAggGrid, or remove SecAggMod",
                reason=Reason.BELOW_FLOOR,
            )
        told = record_in(message.content)
        received, terms = message_in(told), Terms.parsed(told)
        state: OpenState | None = None
        suspended: Secret | None = None
        if terms is not None:
            # A new session ends an unfinished earlier one.
            forget(context, self._states)
            self._newest(context).write_bytes(terms.digest)
        else:
            sealed, terms = _take(context)
            state, suspended = self._states.open(sealed)
        try:
            session, begun = self._joined(message, context, call_next, terms, suspended)
            try:
                answer = begun.answer(session, received)
                self._require_newest(context, begun.terms)
                rest = session.suspend()
            except BaseException:
                session.abort()
                raise
            if rest is not None:
                with rest:
                    state = state or self._states.begin()
                    record = ConfigRecord({**begun.terms.record})
                    record["sealed"] = state.seal(rest)
                    context.state[STATE_RECORD] = record
                    state = None
            return Message(with_record(answer), reply_to=message)
        finally:
            if suspended is not None:
                suspended.wipe()
            if state is not None:
                state.destroy()

    def _newest(self, context: Context) -> Path:
        """Return the file that names this node's latest session."""
        return self._states.beside("sessions") / f"{context.run_id}-{context.node_id}"

    def _require_newest(self, context: Context, terms: Terms) -> None:
        path = self._newest(context)
        if path.exists() and path.read_bytes() != terms.digest:
            raise SupersededError

    def _joined(
        self, message: Message, context: Context, call_next: ClientAppCallable, terms: Terms, suspended: Secret | None
    ) -> tuple[ClientSession, NodeRound]:
        """Join the session with these terms; it refuses anything that differs from them."""
        node = Node(
            settings=self._settings,
            config=context.node_config,
            client=ClientId(context.node_id),
            run=f"flower run {context.run_id}",
            states=self._states,
            custom=self._custom,
            judge=self._judge,
        )
        begun = self._begun(node, terms)
        member = begun.member(message_in(record_in(message.content)) if suspended is None else b"")
        if suspended is None:
            begun.require_open()
        digest, update = self._update(message, context, call_next, begun, is_new=suspended is None)
        return member.join(terms.subject(begun.update, digest), update, suspended), begun

    def _begun(self, node: Node, terms: Terms) -> NodeRound:
        return node.begun(terms)

    def _update(
        self, message: Message, context: Context, call_next: ClientAppCallable, begun: NodeRound, *, is_new: bool
    ) -> tuple[bytes | None, LazyUpdate | None]:
        """Return the update and the digest of its model; None if the message contains no model."""
        del is_new
        if all(name == LARGE_RECORD for name in message.content.array_records):
            return None, None
        training = training_of(message, context, call_next, begun)
        return training.model_digest, training.late


def answered(
    message: Message, context: Context, folder: Path | None, answer: Callable[[StateDirectory], Message]
) -> Message:
    """Return an answer, or an error if the client leaves; ``folder`` has the keys to sealed states."""
    states: StateDirectory | None = None
    try:
        states = StateDirectory(folder, coins=SystemCoins())
        return answer(states)
    except SupersededError as error:
        LOG.warning("%s", str(error))
        raise
    except Exception as error:  # noqa: BLE001 -- what Flower raises where a server sent something unreadable
        if states is not None:
            forget(context, states)
        log_leaving(error)
        return refusal(message, error)


def forget(context: Context, states: StateDirectory) -> None:
    """Remove a session from a node's state, and its key."""
    record = context.state.config_records.get(STATE_RECORD, ConfigRecord())
    if record:
        context.state[STATE_RECORD] = ConfigRecord()
    if isinstance(sealed := record.get("sealed"), bytes):
        states.discard(sealed)


def _take(context: Context) -> tuple[bytes, Terms]:
    """Remove the sealed client and the terms from the state; a resumed state must not stay there."""
    record = context.state.config_records.get(STATE_RECORD, ConfigRecord())
    sealed, terms = record.get("sealed"), Terms.parsed(record)
    if not isinstance(sealed, bytes) or terms is None:
        raise Misuse(
            "there is no session to resume: this client has not begun it, or has left it", reason=Reason.ALREADY_SPENT
        )
    context.state[STATE_RECORD] = ConfigRecord()
    return sealed, terms


def training_of(message: Message, context: Context, call_next: ClientAppCallable, begun: NodeRound) -> Training:
    """Remove the protocol's records from a message; the app gets the rest."""
    told = record_in(message.content)
    for name in (RECORD, LARGE_RECORD):
        if name in message.content:
            del message.content[name]
    records = message.content.array_records
    if len(records) != 1:
        raise InvalidParameters(
            f"the message has {len(records)} array records, but must have one, the model; send only the model"
        )
    ((key, record),) = records.items()
    held = _held_arrays(told, record, begun, context) if is_told(told) else {}
    sent: dict[str, npt.NDArray[Any]] = {
        name: held[name] if name in held else array.numpy() for name, array in record.items()
    }
    if held:
        message.content[key] = arrays_of(sent)
    return Training(begun.terms, begun.update, begun.charges, sent, lambda: _trained(message, context, call_next))


def _held_arrays(
    told: Mapping[str, object], record: ArrayRecord, begun: NodeRound, context: Context
) -> dict[str, npt.NDArray[Any]]:
    names = [name for name in begun.terms.joined if name in record]
    forms = {name: (record[name].shape, np.dtype(record[name].dtype)) for name in names}
    known = context.state.array_records.get(HELD_RECORD)
    own = None if known is None else restored({name: array.numpy() for name, array in known.items()})
    held = followed(told, own, forms, begun.update)
    context.state[HELD_RECORD] = arrays_of(stored(held))
    return parted(held.values, forms)


def _trained(message: Message, context: Context, call_next: ClientAppCallable) -> Trained:
    trained = call_next(message, context)
    if trained.has_error():
        raise Misuse(f"the app answered with an error: {trained.error.reason}")
    records = trained.content.array_records.values()
    reported = [name for record in trained.content.metric_records.values() for name in record]
    models = [{name: array.numpy() for name, array in record.items()} for record in records]
    return Trained(models, lambda name: scalar_in(trained.content, name), reported)


# --- Records of both ends: one of configuration, with one of arrays where a message is large --------------------------

LARGE_RECORD: Final = "secagg.large"
LEFT_RECORD: Final = "secagg.left"
"""Record in the reply to the strategy: the messages of each stage, and why clients left."""
LEGACY_ARRAYS: Final = "fitins.parameters"
MOD_FAILED: Final = 6
"""Flower's code for a mod that refuses a message."""
APP_FAILED: Final = 2
"""Flower's code for an app that raised an error, as an app without the mod does if it looks for a model."""
_LEFT: Final = "secagg: this client left the round; code: "
_LARGE_BYTES: Final = 1 << 20
"""Longer messages are sent as an array, which Flower splits into pieces."""


def refusal(message: Message, error: Exception) -> Message:
    """Return the reply of a client that leaves: an error with one of a few codes."""
    return Message(Error(MOD_FAILED, _LEFT + code_of(error)), reply_to=message)


def code_in(reply: Message) -> Left:
    """Return the code of a client that left; map other replies to the last code, or to that of a failed app."""
    if reply.error.code == APP_FAILED:
        return Left.FOREIGN
    return code_said(str(reply.error.reason or "").removeprefix(_LEFT))


def with_record(record: Record) -> RecordDict:
    """Return content that carries a protocol record."""
    large = {name: value for name, value in record.items() if isinstance(value, bytes) and len(value) > _LARGE_BYTES}
    found = RecordDict()
    if large:
        arrays = {name: Array("uint8", (len(value),), "secagg.message", value) for name, value in large.items()}
        found[LARGE_RECORD] = ArrayRecord(arrays)
    found[RECORD] = ConfigRecord({name: value for name, value in record.items() if name not in large})
    return found


def record_in(content: RecordDict) -> dict[str, object]:
    """Return the protocol record, without absent fields."""
    found: dict[str, object] = {**content.config_records.get(RECORD, {})}
    for name, array in content.array_records.get(LARGE_RECORD, {}).items():
        found.setdefault(name, array.data)
    return found


def arrays_of(model: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """Return a model as Flower's array record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def emptied(model: Mapping[str, npt.NDArray[Any]], names: Collection[str]) -> ArrayRecord:
    """Return a model as Flower's array record, with shapes and types but no values of some tensors."""
    return ArrayRecord(
        {
            name: Array(str(array.dtype), array.shape, "secagg.held", b"")
            if name in names
            else Array(np.asarray(array))
            for name, array in model.items()
        }
    )


def scalar_in(content: RecordDict, name: str) -> float | int | None:
    """Return a number that training reported in metrics or, for legacy clients, in a config record."""
    records: list[Mapping[str, object]] = [*content.metric_records.values(), *content.config_records.values()]
    for record in records:
        value = record.get(name)
        if type(value) in (int, float):
            return cast("float | int", value)
    return None
