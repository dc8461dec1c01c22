"""A node's part in a round of two servers: one message brings model, terms and both offers, one upload goes back.

The upload is two halves, of which each server opens one. Both go to the server that sent the model, which hands the
sealed half of the other one on. That the two are in two hands is what everything rests on, and nothing that a server
says can show it: so a node names the two keys that it believes in, and follows no configuration that names others.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from secagg.contract import Layout, Payload
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Reason
from secagg.flower.floors import NodeSettings
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.ledger import UploadLedger
from secagg.protocols.two_servers.operators.relay_messages import RoundOffers, encode_halves
from secagg.protocols.two_servers.server_messages import RoundStamp, ServerOffer
from secagg.session.sealed_state import StateDirectory

from .logs import LOG
from .node_state import claim_round, state_of
from .records import Invitation, with_message
from .trained_update import Training, require_capacity_for


def share_update(  # noqa: PLR0913, PLR0917 -- the mod's own parts
    message: Message,
    context: Context,
    invitation: Invitation,
    settings: NodeSettings,
    states: StateDirectory,
    call_next: ClientAppCallable,
) -> Message:
    """Hold configuration and offers to what is believed here, train, share: in this order.

    Raises:
        SecAggError: nothing was shared; the message says why.
    """
    now = datetime.now(UTC)
    identity = settings.load_identity(context.node_config)
    configuration = IndexingConfiguration.decode(invitation.offer)
    identity.require_authority(configuration.authority)
    if configuration.task != invitation.task.encode():
        raise InvalidParameters("the two servers count for another task than is named", reason=Reason.BELOW_FLOOR)
    shown = RoundOffers.decode(invitation.evidence)
    floors = settings.indexing_floors(
        identity.authority.public_key, _believed_servers(shown, configuration.server_keys, settings)
    )
    training = Training.of(message, context, call_next, invitation)
    update = training.update
    require_capacity_for(update, configuration.maximum_total_weight)
    layout = bound_layout(update.layout, training.model_digest, invitation)
    floors.admit(configuration, layout=layout, now=now)
    _require_offers(shown, configuration, invitation.round_number)
    client = Client(
        certificate=identity.certificate,
        signing_key=identity.signing_key,
        floors=floors,
        layout=layout,
        capacity=update.capacity,
        ledger=_ledger(context, configuration.task),
        coins=SystemCoins(),
    )
    claim_round(context, states, invitation.round_number)
    payload, weight = training.encoded()
    # Training may take long; the round may have expired, which sharing notices.
    zero, one = client.share(
        Payload(layout, payload.values),
        configuration=configuration,
        round_number=invitation.round_number,
        offers=shown.offers,
        now=datetime.now(UTC),
        weight=weight,
    )
    state_of(context)["uploads"] = client.ledger.encode()
    LOG.debug("%s: shared an update for round %d between two servers", client.client, invitation.round_number)
    return Message(with_message(encode_halves(zero, one)), reply_to=message)


def bound_layout(layout: Layout, model_digest: bytes, invitation: Invitation) -> Layout:
    """Return a layout whose version is of the model and the terms as well as of the scales.

    Two servers know nothing of models. The digest of their configuration covers its layout, so clients that were told
    different models or terms hold it to different layouts, and no two of them upload for one round.
    """
    bound = bind(Label.FLOWER_MODEL, layout.version, model_digest, invitation.application_digest)
    return Layout(layout.segments, hashlib.sha256(bound).digest())


def _believed_servers(shown: RoundOffers, named: tuple[bytes, bytes], settings: NodeSettings) -> tuple[bytes, bytes]:
    """Return the keys of the servers that this client takes for two.

    Raises:
        InvalidParameters: there is no second one, or this client knows none.
    """
    if not shown.is_simulated:
        return settings.load_servers().server_keys
    if not settings.allow_simulated_second_server:
        raise InvalidParameters(
            "the second server is simulated by the first one, which protects nobody from it; let another party run "
            "one, or say SecAggMod(allow_simulated_second_server=True) in a simulation",
            reason=Reason.BELOW_FLOOR,
        )
    return named


def _require_offers(shown: RoundOffers, configuration: IndexingConfiguration, round_number: int) -> None:
    """Refuse offers that the two servers did not make for this configuration and round, before the round is claimed.

    Raises:
        PeerMisbehaved, AuthenticationFailed, MalformedMessage: one of them did not.
    """
    for index, offer in enumerate(shown.offers):
        stamp = RoundStamp(context=configuration.context, round_number=round_number, server=ServerId(index))
        ServerOffer.decode(offer, configuration, stamp)


def _ledger(context: Context, task: bytes) -> UploadLedger:
    """Return what this node uploaded for a task before."""
    stored = state_of(context).get("uploads", b"")
    if isinstance(stored, bytes) and stored:
        ledger = UploadLedger.decode(stored)
        if ledger.task == task:
            return ledger
    return UploadLedger(task)
