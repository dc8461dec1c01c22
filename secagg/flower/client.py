"""The client's side: a Flower mod that turns what training returned into messages of the protocol.

The user's function trains as ever, and its result never leaves the client: the difference to the model that was sent
is encoded, weighted, and masked or sealed at once, so that no update ever rests anywhere, and only messages of the
protocol are sent. Between two messages a node's part in a session is put aside sealed.

A mod raises nothing of its own: Flower would then forget the state that it has just changed, and bring back one that
was gone on from. It answers with an error that says that the client left, and one of a few codes. Only where another
session began on this node while an app trained does it raise, so that Flower forgets the older state.
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
    """Take part in secure aggregation: ``ClientApp(mods=[SecAggMod()])``, or ``@app.train(mods=[SecAggMod()])``.

    List it before other mods, so that what they change (such as clipping) happens before masking.

    The floors are this client's. A node's operator can raise them, and cannot lower them, by ``--node-config`` with the
    keys of ``secagg.platforms.client_node``. The server's settings never lower any.
    """

    def __init__(
        self,
        *,
        enclave_judge: object | None = None,
        state_directory: str | None = None,
        scheme: str | None = None,
        **floors: Any,  # noqa: ANN401 -- of the floors' own types
    ) -> None:
        """Set the floors.

        Args:
            enclave_judge: a judge of an enclave's evidence, in place of ``enclave_policy``.
            state_directory: where the keys to sealed states stand; by default a folder in memory.
            scheme: a custom scheme, as the server's secagg-compression names it; none that a server names is
                imported.
            floors: of ``ClientNode``, such as ``minimum_cohort=10``.
        """
        self._settings, self._custom = begun_app(floors, scheme)
        if enclave_judge is not None and self._settings.enclave_policy is not None:
            raise InvalidParameters("enclave_judge and enclave_policy both judge an enclave's evidence; give one")
        self._judge = enclave_judge
        self._folder = None if state_directory is None else Path(state_directory)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message of the protocol, and train where it brings a model; where it is required, nothing else."""
        # A value that is of another type is refused with the other floors.
        is_required = self._settings.required or context.node_config.get(PREFIX + REQUIRED, False) is not False
        if not is_required and not _is_ours(message):
            return call_next(message, context)
        write_where_flower_does()

        def answer(states: StateDirectory) -> Message:
            settings = self._settings.raised_by(context.node_config)
            return ClientRound(settings, self._judge, states, self._custom).answer(message, context, call_next)

        return answered(message, context, self._folder, answer)


def _is_ours(message: Message) -> bool:
    """Whether a message asks for training, or for an evaluation that is summed; everything else passes."""
    family = message.metadata.message_type.partition(".")[0]
    if family in {MessageType.TRAIN, MessageType.QUERY}:
        return family == MessageType.TRAIN
    return message.has_content() and RECORD in message.content.config_records


# --- One message of a session -----------------------------------------------------------------------------------------

STATE_RECORD: Final = "secagg.state"
HELD_RECORD: Final = "secagg.held"
"""The model that a node holds, where the downlink is compressed."""


class SupersededError(RuntimeError):
    """Training outlived its session; the state that Flower handed out for it is older than the node's."""

    def __init__(self) -> None:
        super().__init__("this node has begun another session since; what was trained for this one is dropped")


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
        """Begin a session, or resume the suspended one; where this raises, ``forget`` the rest of it."""
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
            # A session that was never finished ends as another one begins.
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
        """Return the file that names the session that began last on this node."""
        return self._states.beside("sessions") / f"{context.run_id}-{context.node_id}"

    def _require_newest(self, context: Context, terms: Terms) -> None:
        path = self._newest(context)
        if path.exists() and path.read_bytes() != terms.digest:
            raise SupersededError

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
        """Return the update, with the digest of what it is made from; none where the message brings no model."""
        del is_new
        if all(name == LARGE_RECORD for name in message.content.array_records):
            return None, None
        training = training_of(message, context, call_next, begun)
        return training.model_digest, training.late


def answered(
    message: Message, context: Context, folder: Path | None, answer: Callable[[StateDirectory], Message]
) -> Message:
    """Return an answer, or the error by which a client leaves; the keys to sealed states stand in ``folder``."""
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
    """Leave nothing of a session in a node's state, nor the key to it."""
    record = context.state.config_records.get(STATE_RECORD, ConfigRecord())
    if record:
        context.state[STATE_RECORD] = ConfigRecord()
    if isinstance(sealed := record.get("sealed"), bytes):
        states.discard(sealed)


def _take(context: Context) -> tuple[bytes, Terms]:
    """Take the sealed client out of the state, with the terms; a resumed state must not stay there."""
    record = context.state.config_records.get(STATE_RECORD, ConfigRecord())
    sealed, terms = record.get("sealed"), Terms.parsed(record)
    if not isinstance(sealed, bytes) or terms is None:
        raise Misuse(
            "there is no session to resume: this client did not begin it, or has left it",
            reason=Reason.ALREADY_SPENT,
        )
    context.state[STATE_RECORD] = ConfigRecord()
    return sealed, terms


def training_of(message: Message, context: Context, call_next: ClientAppCallable, begun: NodeRound) -> Training:
    """Take the records of the protocol out of a message, whose rest is the app's."""
    told = record_in(message.content)
    for name in (RECORD, LARGE_RECORD):
        if name in message.content:
            del message.content[name]
    records = message.content.array_records
    if len(records) != 1:
        raise InvalidParameters(
            f"the message has {len(records)} array records, and one model is trained; send the model alone"
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
"""Record of the reply to the strategy: messages of each stage of the round, and why clients left."""
LEGACY_ARRAYS: Final = "fitins.parameters"
MOD_FAILED: Final = 6
"""Flower's code for a mod that refuses a message."""
_LEFT: Final = "secagg: this client left the round; code: "
_LARGE_BYTES: Final = 1 << 20
"""Beyond this a message goes into an array, which Flower sends in pieces."""


def refusal(message: Message, error: Exception) -> Message:
    """Return what a server is told where a client leaves: that it left, and one of a few codes."""
    return Message(Error(MOD_FAILED, _LEFT + code_of(error)), reply_to=message)


def code_in(reply: Message) -> Left:
    """Return the code of a client that left; that of anything else is the last one."""
    return code_said(str(reply.error.reason or "").removeprefix(_LEFT))


def with_record(record: Record) -> RecordDict:
    """Return what carries a record of the protocol."""
    large = {name: value for name, value in record.items() if isinstance(value, bytes) and len(value) > _LARGE_BYTES}
    found = RecordDict()
    if large:
        arrays = {name: Array("uint8", (len(value),), "secagg.message", value) for name, value in large.items()}
        found[LARGE_RECORD] = ArrayRecord(arrays)
    found[RECORD] = ConfigRecord({name: value for name, value in record.items() if name not in large})
    return found


def record_in(content: RecordDict) -> dict[str, object]:
    """Return the record of the protocol; absent fields are missing in it."""
    found: dict[str, object] = {**content.config_records.get(RECORD, {})}
    for name, array in content.array_records.get(LARGE_RECORD, {}).items():
        found.setdefault(name, array.data)
    return found


def arrays_of(model: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """Return a model as Flower sends it."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def emptied(model: Mapping[str, npt.NDArray[Any]], names: Collection[str]) -> ArrayRecord:
    """Return a model as Flower sends it, without the values of some tensors, whose shapes and types stay."""
    return ArrayRecord(
        {
            name: Array(str(array.dtype), array.shape, "secagg.held", b"")
            if name in names
            else Array(np.asarray(array))
            for name, array in model.items()
        }
    )


def scalar_in(content: RecordDict, name: str) -> float | int | None:
    """Return a number that training reported, in metrics or, as legacy clients do, in a config record."""
    records: list[Mapping[str, object]] = [*content.metric_records.values(), *content.config_records.values()]
    for record in records:
        value = record.get(name)
        if type(value) in (int, float):
            return cast("float | int", value)
    return None
