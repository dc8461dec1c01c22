"""The client's side: a Flower mod that turns what training returned into messages of the protocol.

The user's function trains as ever. What it returns never leaves the client: the difference to the model that was sent
is encoded, weighted and masked, and what is sent are messages of the protocol alone. Between two messages the client is
put aside in ``Context.state``, sealed (see ``sealed_state``).

A mod raises nothing of its own: Flower would then forget the state that it has just changed, and bring back one that
was gone on from. It answers with an error that says no more than that the client left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from secagg.compression.model_update import ModelUpdate, decode_parameters
from secagg.contract import Payload
from secagg.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse, Reason, SecAggError
from secagg.flower.floors import NodeSettings
from secagg.flower.identities import ClientIdentity
from secagg.flower.logs import LOG, write_where_flower_does
from secagg.flower.model_tensors import METRICS, Arrays, differences, model_digest
from secagg.flower.records import RECORD, Invitation, message_in, refusal, scalar_in, with_message
from secagg.flower.resumable_client import ResumableClient
from secagg.flower.schemes import clipped_share, integer_bound
from secagg.flower.sealed_state import OpenState, StateDirectory
from secagg.identifiers import ClientId
from secagg.parameters import ClientFloors, SecurityMode
from secagg.protocols.pairwise_mask import ClientState, SessionConfiguration, SessionTerms

STATE_RECORD: Final = "secagg.state"


@dataclass(frozen=True, slots=True)
class _Task:
    """A round that this client agreed to: the checked offer, and the model that it was sent."""

    invitation: Invitation
    configuration: SessionConfiguration
    update: ModelUpdate
    sent: Arrays
    floors: ClientFloors
    identity: ClientIdentity | None
    terms: SessionTerms


class SecAggMod:
    """Take part in secure aggregation: ``ClientApp(mods=[SecAggMod()])``, or ``@app.train(mods=[SecAggMod()])``.

    List it before other mods, so that what they change (such as clipping) happens before masking.

    The arguments are this client's floors. A node's operator can raise them, and cannot lower them, by
    ``--node-config`` with the keys of ``secagg.flower.floors``. What the server configures never lowers any.
    """

    def __init__(  # noqa: PLR0913 -- one for each floor; all have defaults
        self,
        *,
        minimum_cohort: int = 3,
        minimum_threshold: int = 2,
        modes: tuple[str, ...] = ("semi_honest", "active"),
        suites: tuple[str, ...] = ("classic", "hybrid"),
        minimum_modulus_bits: int = 4,
        maximum_population: int = 10_000,
        assumed_corrupted: int = 1,
        privacy_bits: int = 40,
        identity: str | None = None,
        state_directory: str | None = None,
    ) -> None:
        """Set the floors.

        Args:
            identity: this client's key file, or a folder of them for simulations, where the partition's number names
                the client; only for active mode.
            state_directory: where the keys to sealed states stand; by default a folder in memory.
        Raises:
            InvalidParameters: a floor that protects nobody.
        """
        self._settings = NodeSettings(
            minimum_cohort=minimum_cohort,
            minimum_threshold=minimum_threshold,
            modes=modes,
            suites=suites,
            minimum_modulus_bits=minimum_modulus_bits,
            maximum_population=maximum_population,
            assumed_corrupted=assumed_corrupted,
            privacy_bits=privacy_bits,
            identity=identity,
        )
        self._settings.floors()
        self._folder = None if state_directory is None else Path(state_directory)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message of the protocol, or train for one; whatever is not training passes."""
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        write_where_flower_does()
        try:
            record = message.content.config_records.get(RECORD)
            if record is None:
                raise InvalidParameters(
                    "the server asks for an update in the clear; wrap its grid in SecAggGrid, or remove SecAggMod",
                    reason=Reason.BELOW_FLOOR,
                )
            states = StateDirectory(self._folder)
            if record.get("stage") != "train":
                return self._continue(message, context, states)
            task = self._accept(message, context, record, states)
        except (SecAggError, OSError) as error:
            return _leave(message, context, error)
        del message.content[RECORD]
        trained = call_next(message, context)
        if trained.has_error():
            return trained
        try:
            return self._advertise(message, context, task, trained, states)
        except (SecAggError, OSError) as error:
            return _leave(message, context, error)

    # --- The first message: train, and advertise keys -----------------------------------------------------------------

    def _accept(self, message: Message, context: Context, record: ConfigRecord, states: StateDirectory) -> _Task:
        """Check an invitation before anything is trained for it."""
        invitation, settings = Invitation.from_record(record), self._settings.raised_by(context.node_config)
        _end_former(context, states)
        _require_progress(context, invitation.round_number)
        configuration = SessionConfiguration.decode(invitation.offer)
        floors = settings.floors()
        configuration.require_floors(floors)
        identity = None
        if configuration.mode is SecurityMode.ACTIVE:
            identity = settings.load_identity(context.node_config)
            if configuration.authority != identity.authority.public_key:
                raise InvalidParameters(
                    "the server's roster is of another authority than this client's key file; use one set of keys",
                    reason=Reason.BELOW_FLOOR,
                )
        sent = _sent_arrays(message)
        update = decode_parameters(invitation.parameters)
        update.require_layout(configuration.layout)
        if configuration.maximum_total_weight > update.capacity:
            raise InvalidParameters(
                f"a total weight of {configuration.maximum_total_weight} can leave the ring, which carries "
                f"{update.capacity}; the server has to offer fewer clients, smaller weights or a wider ring",
                reason=Reason.BELOW_FLOOR,
            )
        terms = _terms(invitation, sent)
        terms.require(configuration)
        return _Task(invitation, configuration, update, sent, floors, identity, terms)

    def _advertise(
        self, message: Message, context: Context, task: _Task, trained: Message, states: StateDirectory
    ) -> Message:
        payload, weight = _encoded(task, trained)
        identity = task.identity
        client = ResumableClient(
            ClientId(context.node_id) if identity is None else identity.client,
            payload,
            weight,
            floors=task.floors,
            capacity=task.update.capacity,
            authority=identity.authority if identity else None,
            signing_key=identity.signing_key if identity else None,
            certificate=identity.certificate if identity else None,
            terms=task.terms,
        )
        (answer,) = client.receive(task.invitation.offer)
        _remember_round(context, task.invitation.round_number)
        # Which identity a session has, if any, does not follow from the settings alone.
        _state_of(context)["certified"] = identity is not None
        state = states.begin()
        client.put_input_apart(state.put_input)
        _put_aside(context, client, state)
        LOG.debug("%s: trained, and advertised keys for round %d", client.client, task.invitation.round_number)
        return Message(with_message(answer), reply_to=message)

    # --- Every later message ------------------------------------------------------------------------------------------

    def _continue(self, message: Message, context: Context, states: StateDirectory) -> Message:
        sealed = _take_sealed(context)
        if not sealed:
            raise Misuse("there is no session to go on with: this client did not begin it, or has left it")
        settings = self._settings.raised_by(context.node_config)
        state: OpenState | None
        state, snapshot = states.open(sealed)
        try:
            is_certified = bool(_state_of(context).get("certified"))
            identity = settings.load_identity(context.node_config) if is_certified else None
            client = ResumableClient.restore(
                snapshot,
                floors=settings.floors(),
                take_input=state.take_input,
                authority=identity.authority if identity else None,
                signing_key=identity.signing_key if identity else None,
                certificate=identity.certificate if identity else None,
            )
            answers = client.receive(message_in(message.content))
            for complaint in client.complaints:
                LOG.warning("%s: %s", client.client, complaint)
            if not answers:
                raise Misuse("this message was answered before", reason=Reason.ALREADY_SPENT)
            if client.state is not ClientState.COMPLETED:
                _put_aside(context, client, state)
                state = None
            return Message(with_message(answers[0]), reply_to=message)
        finally:
            snapshot.wipe()
            if state is not None:
                state.destroy()


# --- State ------------------------------------------------------------------------------------------------------------


def _state_of(context: Context) -> ConfigRecord:
    if STATE_RECORD not in context.state.config_records:
        context.state[STATE_RECORD] = ConfigRecord()
    return context.state.config_records[STATE_RECORD]


def _put_aside(context: Context, client: ResumableClient, state: OpenState) -> None:
    with client.snapshot() as snapshot:
        _state_of(context)["sealed"] = state.seal(snapshot)


def _take_sealed(context: Context) -> bytes:
    """Take the sealed state out of the context; what is gone on from must not stay there."""
    record = _state_of(context)
    sealed = record.get("sealed", b"")
    record["sealed"] = b""
    return sealed if isinstance(sealed, bytes) else b""


def _end_former(context: Context, states: StateDirectory) -> None:
    """End a session that was never finished, as another one begins."""
    if sealed := _take_sealed(context):
        states.discard(sealed)


def _require_progress(context: Context, round_number: int) -> None:
    """Refuse a round that was taken part in, or one before it.

    The same update in two sums, of which one has a client fewer, is that client's update.
    """
    record = _state_of(context)
    if record.get("run") == str(context.run_id) and round_number <= int(str(record.get("round", -1))):
        raise InvalidParameters(
            f"round {round_number} was taken part in before; an update goes into one sum alone",
            reason=Reason.BELOW_FLOOR,
        )


def _remember_round(context: Context, round_number: int) -> None:
    record = _state_of(context)
    record["run"], record["round"] = str(context.run_id), round_number


def _leave(message: Message, context: Context, error: Exception) -> Message:
    """Log why, here alone, and tell the server only that this client left."""
    _state_of(context)["sealed"] = b""
    LOG.warning("this client left the round: %s", error)
    return refusal(message)


# --- The update -------------------------------------------------------------------------------------------------------


def _sent_arrays(message: Message) -> dict[str, npt.NDArray[Any]]:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InvalidParameters(
            f"the message has {len(records)} array records, and one model is trained; send the model alone"
        )
    return {name: array.numpy() for name, array in records[0].items()}


def _terms(invitation: Invitation, sent: Arrays) -> SessionTerms:
    return SessionTerms(
        task=invitation.task.encode(),
        model_digest=model_digest(sent),
        round_number=invitation.round_number,
        application_digest=invitation.application_digest,
    )


def _encoded(task: _Task, trained: Message) -> tuple[Payload, int]:
    """Return the encoded update and its weight."""
    records = list(trained.content.array_records.values())
    if len(records) != 1:
        raise InvalidParameters(f"training returned {len(records)} array records; return the trained model as one")
    after = {name: array.numpy() for name, array in records[0].items()}
    values = differences(task.sent, after, integer_bound(task.update, task.sent))
    share = clipped_share(task.update, values)
    if share:
        LOG.warning("%.3g of this update's values are beyond their range, and were cut off", share)
    values[METRICS] = np.array([share, *_metrics(task, trained)], dtype=np.float64)
    return task.update.encode(values, SystemCoins()), _weight(task.invitation, trained)


def _metrics(task: _Task, trained: Message) -> list[float]:
    reported = list[float]()
    for name in task.invitation.metrics:
        value = scalar_in(trained.content, name)
        if value is None:
            raise InvalidParameters(
                f"training reported no number {name!r}, which secagg-metrics asks for; report it, or change the key"
            )
        reported.append(float(value))
    return reported


def _weight(invitation: Invitation, trained: Message) -> int:
    if invitation.weighting == "uniform":
        return 1
    examples = scalar_in(trained.content, invitation.weighted_by)
    if examples is None or examples != int(examples) or examples < 1:
        raise InvalidParameters(
            f"training has to report {invitation.weighted_by!r} as a whole number of at least 1; got {examples!r}"
        )
    weight = max(1, round(int(examples) / max(1, invitation.weight_unit)))
    if weight > invitation.maximum_weight:
        raise CapacityExceeded(
            f"{int(examples)} examples are a weight of {weight}, and secagg-maximum-weight is "
            f"{invitation.maximum_weight}; raise it, or raise secagg-weight-unit",
            reason=Reason.INPUT_OUT_OF_RANGE,
        )
    return weight
