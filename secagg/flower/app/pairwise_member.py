"""A node's part in a session of pairwise masks: it answers one message, and is put aside sealed until the next.

The keys are agreed on before anything is trained. The model comes with the message that the upload answers; the client
trains then, encodes the difference, and masks it at once, so that no update ever rests anywhere.
"""

from __future__ import annotations

from typing import Final

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from secagg.contract import Payload
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.flower.floors import NodeSettings
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import Client, ClientState, LateInput, SessionConfiguration, SessionTerms
from secagg.session.latch import FileLatch
from secagg.session.sealed_state import OpenState, StateDirectory

from .logs import LOG
from .node_state import claim_round, state_of, take_sealed
from .records import TRAIN_STAGE, Invitation, message_in, with_message
from .trained_update import Training, agreed_update, require_capacity_for

_MOST_WEIGHT: Final = (1 << 64) - 1


def advertise_keys(
    message: Message, context: Context, invitation: Invitation, settings: NodeSettings, states: StateDirectory
) -> Message:
    """Answer an offer with fresh keys, if it keeps the floors and is new."""
    if sealed := take_sealed(context):
        # A session that was never finished ends as another one begins.
        states.discard(sealed)
    configuration = SessionConfiguration.decode(invitation.offer)
    floors = settings.floors()
    configuration.require_floors(floors)
    identity = None
    if configuration.mode is SecurityMode.ACTIVE:
        identity = settings.load_identity(context.node_config)
        identity.require_authority(configuration.authority)
    update = agreed_update(invitation, configuration.layout)
    require_capacity_for(update, configuration.maximum_total_weight)
    # The model is still to come, and is compared when it does.
    terms = _terms(invitation, configuration.model_digest)
    terms.require(configuration)
    claim_round(context, states, invitation.round_number)
    client = Client(
        ClientId(context.node_id) if identity is None else identity.client,
        LateInput(_nothing_trained),
        floors=floors,
        capacity=update.capacity,
        coins=SystemCoins(),
        latch=_latch(states),
        authority=identity.authority if identity else None,
        signing_key=identity.signing_key if identity else None,
        certificate=identity.certificate if identity else None,
        terms=terms,
    )
    (answer,) = client.receive(invitation.offer)
    # Which identity a session has, if any, does not follow from the settings alone.
    state_of(context)["certified"] = identity is not None
    _put_aside(context, client, states.begin())
    LOG.debug("%s: advertised keys for round %d", client.client, invitation.round_number)
    return Message(with_message(answer), reply_to=message)


def go_on(  # noqa: PLR0913, PLR0917 -- the mod's own parts
    message: Message,
    context: Context,
    record: ConfigRecord,
    settings: NodeSettings,
    states: StateDirectory,
    call_next: ClientAppCallable,
) -> Message:
    """Answer a later message of the session, and train where it brings the model.

    Raises:
        SecAggError: this client leaves the session, of which nothing is left.
    """
    sealed, received = take_sealed(context), message_in(message.content)
    if not sealed:
        raise Misuse("there is no session to go on with: this client did not begin it, or has left it")
    state: OpenState | None
    state, snapshot = states.open(sealed)
    try:
        training: Training | None = None
        is_training = record["stage"] == TRAIN_STAGE

        def make_input(configuration: SessionConfiguration) -> tuple[Payload, int]:
            return _nothing_trained(configuration) if training is None else training.encoded()

        is_certified = bool(state_of(context).get("certified"))
        identity = settings.load_identity(context.node_config) if is_certified else None
        client = Client.resume(
            snapshot,
            LateInput(make_input),
            latch=_latch(states),
            floors=settings.floors(),
            # What an offer was held to before its keys were advertised.
            capacity=_MOST_WEIGHT,
            coins=SystemCoins(),
            authority=identity.authority if identity else None,
            signing_key=identity.signing_key if identity else None,
            certificate=identity.certificate if identity else None,
        )
        configuration = client.configuration
        if is_training and configuration is not None:
            invitation = Invitation.from_record(record)
            training = Training.of(message, context, call_next, invitation, configuration.layout)
            _terms(invitation, training.model_digest).require(configuration)
        answers = client.receive(received)
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


def _put_aside(context: Context, client: Client, state: OpenState) -> None:
    with client.suspend() as record:
        state_of(context)["sealed"] = state.seal(record)


def _latch(states: StateDirectory) -> FileLatch:
    return FileLatch(states.folder / "latch")


def _nothing_trained(_: SessionConfiguration) -> tuple[Payload, int]:
    raise InvalidParameters("the message that an upload answers brings the model, and this one does not")


def _terms(invitation: Invitation, model_digest: bytes) -> SessionTerms:
    return SessionTerms(
        task=invitation.task.encode(),
        model_digest=model_digest,
        round_number=invitation.round_number,
        application_digest=invitation.application_digest,
    )
