"""A node's part in a round of the enclave: one message brings model, terms and evidence, one sealed upload goes back.

Nothing is trained, and nothing is sealed, before the evidence passed this client's own policy, the enclave's
configuration its floors, and the binding of the one to the other was checked.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from secagg.contract.codewords import Tables
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Reason
from secagg.flower.floors import NodeSettings
from secagg.protocols.enclave.client import Client
from secagg.protocols.enclave.ledger import SealLedger
from secagg.protocols.enclave.remote_enclave import decode_attested_offer
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.protocols.enclave.trusted.messages import ModelStamp
from secagg.protocols.enclave.unattested import SimulatedEvidence, SimulatedJudge
from secagg.protocols.enclave.verified_enclave import Judge, VerifiedEnclave
from secagg.session.sealed_state import StateDirectory

from .logs import LOG
from .node_state import claim_round, state_of
from .records import Invitation, with_message
from .trained_update import Training, require_capacity_for


def seal_update(  # noqa: PLR0913, PLR0917 -- the mod's own parts
    message: Message,
    context: Context,
    invitation: Invitation,
    settings: NodeSettings,
    states: StateDirectory,
    judge: Judge | None,
    call_next: ClientAppCallable,
) -> Message:
    """Verify, train, seal: in this order.

    Raises:
        SecAggError: nothing was sealed; the message says why.
    """
    now = datetime.now(UTC)
    identity = settings.load_identity(context.node_config)
    configuration = EnclaveConfiguration.decode(invitation.offer)
    identity.require_authority(configuration.authority)
    if configuration.task != invitation.task.encode():
        raise InvalidParameters("the enclave counts for another task than the server names", reason=Reason.BELOW_FLOOR)
    offer, evidence = decode_attested_offer(invitation.evidence)
    enclave = VerifiedEnclave(
        offer, evidence, configuration=configuration, judge=_judge_of(evidence, settings, judge), now=now
    )
    training = Training.of(message, context, call_next, invitation, configuration.layout)
    update = training.update
    require_capacity_for(update, configuration.maximum_total_weight)
    floors = settings.enclave_floors(identity.authority.public_key)
    tables: Tables = update.tables if configuration.index_segments else ()
    floors.admit(configuration, layout=update.layout, tables=tables, maximum_seals=None, now=now)
    client = Client(
        certificate=identity.certificate,
        signing_key=identity.signing_key,
        floors=floors,
        layout=update.layout,
        tables=tables,
        capacity=update.capacity,
        ledger=_ledger(context, configuration.task),
        coins=SystemCoins(),
    )
    model = model_stamp(invitation, training.model_digest)
    claim_round(context, states, invitation.round_number)
    payload, weight = training.encoded()
    # Training may take long; what was verified may have run out, which sealing notices.
    upload = client.seal(payload, enclave=enclave, model=model, weight=weight, now=datetime.now(UTC))
    state_of(context)["ledger"] = client.ledger.encode()
    LOG.debug("%s: sealed an update for round %d to %s", client.client, invitation.round_number, enclave.program)
    return Message(with_message(upload.encode()), reply_to=message)


def model_stamp(invitation: Invitation, digest: bytes) -> ModelStamp:
    """Return what all clients of a buffer have in common: the model, and what is summed of it.

    The enclave holds every upload to one such digest, so no two clients are told different models or different terms.
    """
    bound = bind(Label.FLOWER_MODEL, digest, invitation.application_digest)
    return ModelStamp(version=invitation.round_number, digest=hashlib.sha256(bound).digest())


def _judge_of(evidence: Any, settings: NodeSettings, judge: Judge | None) -> Judge:  # noqa: ANN401 -- judged by type
    """Return who judges evidence of this kind for this client.

    Raises:
        InvalidParameters: nobody does.
    """
    if isinstance(evidence, SimulatedEvidence):
        if not settings.allow_simulated_enclave:
            raise InvalidParameters(
                "the server's enclave is simulated, which protects nobody from the server; run a real one, or say "
                "SecAggMod(allow_simulated_enclave=True) in a simulation",
                reason=Reason.BELOW_FLOOR,
            )
        return SimulatedJudge()
    return judge or settings.load_enclave_judge()


def _ledger(context: Context, task: bytes) -> SealLedger:
    """Return what this node sealed for a task before."""
    stored = state_of(context).get("ledger", b"")
    if isinstance(stored, bytes) and stored:
        ledger = SealLedger.decode(stored)
        if ledger.task == task:
            return ledger
    return SealLedger(task)
