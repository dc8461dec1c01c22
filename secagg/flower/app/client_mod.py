"""The client's side: a Flower mod that turns what training returned into messages of the protocol.

The user's function trains as ever. What it returns never leaves the client: the difference to the model that was sent
is encoded, weighted, and masked or sealed, and what is sent are messages of the protocol alone.

A mod raises nothing of its own: Flower would then forget the state that it has just changed, and bring back one that
was gone on from. It answers with an error that says that the client left, and one of a few codes.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from secagg.compression.outside import outside_factory
from secagg.errors import SecAggError
from secagg.flower.logs import write_where_flower_does
from secagg.platforms.floors import NodeSettings
from secagg.platforms.logs import LOG
from secagg.platforms.pairwise_plug import floors_of
from secagg.platforms.settings import PROTOCOLS
from secagg.platforms.terms import RECORD

from .client_round import ClientRound, forget
from .records import refusal


class SecAggMod:
    """Take part in secure aggregation: ``ClientApp(mods=[SecAggMod()])``, or ``@app.train(mods=[SecAggMod()])``.

    List it before other mods, so that what they change (such as clipping) happens before masking.

    The arguments are this client's floors. A node's operator can raise them, and cannot lower them, by
    ``--node-config`` with the keys of ``secagg.platforms.floors``. What the server configures never lowers any.
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
        enclave_judge: object | None = None,
        allow_simulated_second_server: bool = False,
        servers: str | None = None,
        minimum_holders: int = 4,
        assumed_corrupted_holders: int = 1,
        allow_repeats: bool = False,
        identity: str | None = None,
        state_directory: str | None = None,
        scheme: str | None = None,
        noise: float = 0.0,
        norm: float = 0.0,
        epsilon: float = 0.0,
        delta: float = 1e-6,
    ) -> None:
        """Set the floors.

        Args:
            maximum_weight: how much an update may count in an enclave; pairwise masks have no such limit.
            protocols: those that this client takes part in; one that was registered besides has to be named.
            allow_simulated_enclave: whether to seal to a program that nobody vouches for; for simulations and tests.
            enclave_policy: the measurements that this client accepts, a file; see ``secagg.platforms.keys``.
            enclave_judge: a judge of evidence, in place of the file.
            allow_simulated_second_server: whether to believe a server that is both servers; for simulations and tests.
            servers: a file with the keys of the two servers that this client believes to be in two hands.
            minimum_holders: how many holders a sum of one message has at least.
            assumed_corrupted_holders: how many of them may work together with the server; 4 stand one that does, of 3
                none may.
            allow_repeats: whether an update, or one of a model of before, may be uploaded in another run; for
                simulations that are run again with the same keys.
            identity: this client's key file, or a folder of them for simulations, where the partition's number names
                the client; for active mode, the enclave, two servers and one message.
            state_directory: where the keys to sealed states stand; by default a folder in memory.
            scheme: a scheme from outside, as the server's secagg-compression names it; none that a server names is
                imported.
            noise: the deviation of the noise that all clients add together, over what one of them can change; a session
                with other noise, or with none, is refused.
            norm: with noise, the largest norm of this client's change, to which it is clipped.
            epsilon: with noise, what all sums together may cost this client that it is ever in, over all runs; a
                session that would pass it is refused. 0 for any number of sums.
            delta: of epsilon.
        Raises:
            InvalidParameters: a floor that protects nobody, or a scheme that cannot be imported.
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
            minimum_holders=minimum_holders,
            assumed_corrupted_holders=assumed_corrupted_holders,
            allow_repeats=allow_repeats,
            identity=identity,
            noise=noise,
            norm=norm,
            epsilon=epsilon,
            delta=delta,
        )
        floors_of(self._settings)
        self._outside = {} if scheme is None else {scheme: outside_factory(scheme)}
        self._judge = enclave_judge
        self._folder = None if state_directory is None else Path(state_directory)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message of the protocol, and train where it brings a model; everything else passes."""
        if not _is_ours(message):
            return call_next(message, context)
        write_where_flower_does()
        try:
            settings = self._settings.raised_by(context.node_config)
            return ClientRound(settings, self._judge, self._folder, self._outside).answer(message, context, call_next)
        except (SecAggError, OSError) as error:
            return _leave(message, context, error)
        except Exception as error:  # noqa: BLE001 -- what Flower raises where a server sent something unreadable
            LOG.exception("a message could not be read")
            return _leave(message, context, error)


def _is_ours(message: Message) -> bool:
    """Whether a message asks for training, or for an evaluation that is summed; everything else passes."""
    if message.metadata.message_type.partition(".")[0] == MessageType.TRAIN:
        return True
    return message.has_content() and RECORD in message.content.config_records


def _leave(message: Message, context: Context, error: Exception) -> Message:
    """Log why, here alone, and tell the server that this client left, with a code."""
    forget(context)
    LOG.warning("this client left the round: %s", error)
    return refusal(message, error)
