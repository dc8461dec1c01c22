"""The client's side: a Flower mod that turns what training returned into messages of the protocol.

The user's function trains as ever, and its result never leaves the client: the difference to the model that was sent
is encoded, weighted, and masked or sealed, and only messages of the protocol are sent.

A mod raises nothing of its own: Flower would then forget the state that it has just changed, and bring back one that
was gone on from. It answers with an error that says that the client left, and one of a few codes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from secagg.errors import InvalidParameters
from secagg.flower.strategies import write_where_flower_does
from secagg.platforms.client_round import begun_app
from secagg.platforms.floors import REQUIRED
from secagg.platforms.round_task import RECORD
from secagg.platforms.settings import PREFIX
from secagg.session.sealed_state import StateDirectory

from .client_round import ClientRound, answered


class SecAggMod:
    """Take part in secure aggregation: ``ClientApp(mods=[SecAggMod()])``, or ``@app.train(mods=[SecAggMod()])``.

    List it before other mods, so that what they change (such as clipping) happens before masking.

    The floors are this client's. A node's operator can raise them, and cannot lower them, by ``--node-config`` with the
    keys of ``secagg.platforms.floors``. The server's settings never lower any.
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
            scheme: a scheme from outside, as the server's secagg-compression names it; none that a server names is
                imported.
            floors: of ``NodeSettings``, such as ``minimum_cohort=10``.
        """
        self._settings, self._outside = begun_app(floors, scheme)
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
            return ClientRound(settings, self._judge, states, self._outside).answer(message, context, call_next)

        return answered(message, context, self._folder, answer)


def _is_ours(message: Message) -> bool:
    """Whether a message asks for training, or for an evaluation that is summed; everything else passes."""
    family = message.metadata.message_type.partition(".")[0]
    if family in {MessageType.TRAIN, MessageType.QUERY}:
        return family == MessageType.TRAIN
    return message.has_content() and RECORD in message.content.config_records
