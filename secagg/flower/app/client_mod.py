"""The client's side: a Flower mod that turns what training returned into messages of the protocol.

The user's function trains as ever. What it returns never leaves the client: the difference to the model that was sent
is encoded, weighted, and masked or sealed, and what is sent are messages of the protocol alone.

A mod raises nothing of its own: Flower would then forget the state that it has just changed, and bring back one that
was gone on from. It answers with an error that says no more than that the client left.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from secagg.errors import InvalidParameters, Reason, SecAggError
from secagg.flower.floors import NodeSettings
from secagg.flower.settings import ENCLAVE, PAIRWISE, PROTOCOLS, TWO_SERVERS
from secagg.protocols.enclave.verified_enclave import Judge
from secagg.session.sealed_state import StateDirectory

from .enclave_member import seal_update
from .logs import LOG, write_where_flower_does
from .node_state import state_of
from .pairwise_member import advertise_keys, go_on
from .records import OFFER_STAGE, RECORD, TRAIN_STAGE, Invitation, refusal
from .two_server_member import share_update


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
        protocols: tuple[str, ...] = PROTOCOLS,
        modes: tuple[str, ...] = ("semi_honest", "active"),
        suites: tuple[str, ...] = ("classic", "hybrid"),
        minimum_modulus_bits: int = 4,
        maximum_population: int = 10_000,
        assumed_corrupted: int = 1,
        privacy_bits: int = 40,
        maximum_weight: int = 1,
        allow_simulated_enclave: bool = False,
        enclave_policy: str | None = None,
        enclave_judge: Judge | None = None,
        allow_simulated_second_server: bool = False,
        servers: str | None = None,
        identity: str | None = None,
        state_directory: str | None = None,
    ) -> None:
        """Set the floors.

        Args:
            maximum_weight: how much an update may count in an enclave; pairwise masks have no such limit.
            allow_simulated_enclave: whether to seal to a program that nobody vouches for; for simulations and tests.
            enclave_policy: the measurements that this client accepts, a file of ``secagg.flower.keys.enclave_policy``.
            enclave_judge: a judge of evidence, in place of the file.
            allow_simulated_second_server: whether to believe a server that is both servers; for simulations and tests.
            servers: a file with the keys of the two servers that this client believes to be in two hands.
            identity: this client's key file, or a folder of them for simulations, where the partition's number names
                the client; for active mode, the enclave and two servers.
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
            protocols=protocols,
            maximum_weight=maximum_weight,
            allow_simulated_enclave=allow_simulated_enclave,
            enclave_policy=enclave_policy,
            allow_simulated_second_server=allow_simulated_second_server,
            servers=servers,
            identity=identity,
        )
        self._settings.floors()
        self._judge = enclave_judge
        self._folder = None if state_directory is None else Path(state_directory)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message of the protocol, and train where it brings a model; whatever is not training passes."""
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        write_where_flower_does()
        try:
            return self._answer(message, context, call_next)
        except (SecAggError, OSError) as error:
            return _leave(message, context, error)
        except Exception as error:  # noqa: BLE001 -- what Flower raises where a server sent something unreadable
            LOG.exception("a message could not be read")
            return _leave(message, context, error)

    def _answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        record = message.content.config_records.get(RECORD)
        if record is None:
            raise InvalidParameters(
                "the server asks for an update in the clear; wrap its grid in SecAggGrid, or remove SecAggMod",
                reason=Reason.BELOW_FLOOR,
            )
        settings, states = self._settings.raised_by(context.node_config), StateDirectory(self._folder)
        is_offer, is_training = record.get("stage") == OFFER_STAGE, record.get("stage") == TRAIN_STAGE
        if is_training and record.get("protocol") == ENCLAVE:
            invitation = Invitation.from_record(record)
            settings.require_protocol(ENCLAVE)
            return seal_update(message, context, invitation, settings, states, self._judge, call_next)
        if is_training and record.get("protocol") == TWO_SERVERS:
            invitation = Invitation.from_record(record)
            settings.require_protocol(TWO_SERVERS)
            return share_update(message, context, invitation, settings, states, call_next)
        settings.require_protocol(PAIRWISE)
        if is_offer:
            return advertise_keys(message, context, Invitation.from_record(record), settings, states)
        return go_on(message, context, record, settings, states, call_next)


def _leave(message: Message, context: Context, error: Exception) -> Message:
    """Log why, here alone, and tell the server only that this client left."""
    state_of(context)["sealed"] = b""
    LOG.warning("this client left the round: %s", error)
    return refusal(message)
