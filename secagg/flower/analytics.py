"""Statistics of people's data at SuperNodes: one app function for the client, and one call for the server.

app = ClientApp()
app.query("statistics")(SiteStatistics(site))

results = ask(grid, context, declaration)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid

from secagg.analytics import Declaration, Plan, Results, Site
from secagg.analytics.on_platforms import ONCE, Answering, round_of, settings_of
from secagg.errors import Misuse
from secagg.flower.strategies import write_where_flower_does
from secagg.identifiers import ClientId
from secagg.platforms.client_round import Node, NodeRound, begun_app
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import PREFIX, SecAggSettings
from secagg.platforms.terms import Terms
from secagg.session.roles import LazyUpdate
from secagg.session.sealed_state import StateDirectory

from .client import ClientRound, answered
from .server_grid import GridRound, next_round

QUERY: Final = "query.statistics"


class SiteStatistics:
    """App function that answers statistics queries about a node's people, under the policies of app and operator."""

    def __init__(self, site: Callable[[Context], Site], **node: Any) -> None:  # noqa: ANN401 -- of the options' types
        """Set the policy.

        Args:
            site: returns the node's own declaration and functions, for example from files named in its ``node_config``.
            node: options of ``ClientNode``; each declaration is answered once per version of the data.
        """
        self._site = site
        self._settings, _ = begun_app({"attempts": ONCE.attempts, **node}, None)

    def __call__(self, message: Message, context: Context) -> Message:
        write_where_flower_does()

        def answer(states: StateDirectory) -> Message:
            answering = Answering(self._site(context), self._settings.raised_by(context.node_config))
            return _StatisticsRound(answering, states).answer(message, context, _nothing)

        return answered(message, context, None, answer)


class _StatisticsRound(ClientRound):
    """One message of a statistics session, whose update is available from the start."""

    def __init__(self, answering: Answering, states: StateDirectory) -> None:
        super().__init__(answering.settings, None, states)
        self._answering = answering

    def _begun(self, node: Node, terms: Terms) -> NodeRound:
        return self._answering.begun(node, terms)

    def _update(
        self, message: Message, context: Context, call_next: ClientAppCallable, begun: NodeRound, *, is_new: bool
    ) -> tuple[bytes | None, LazyUpdate | None]:
        del message, context, call_next
        return self._answering.plan.model_digest, self._answering.late_in(begun, is_new=is_new)


def ask(  # noqa: PLR0913 -- all but three have defaults
    grid: Grid,
    context: Context,
    declaration: Declaration,
    *,
    nodes: Iterable[int] | None = None,
    settings: SecAggSettings | None = None,
    timeout: float | None = None,
) -> Results:
    """Query nodes, and return the statistics over all of them.

    Args:
        context: the server app's; its ``secagg-`` keys are the settings.
        nodes: default: all connected nodes.
        settings: instead of the context's.
        timeout: seconds for the first stage and for the upload stage; None waits for every node.
    Raises:
        SecAggError: nothing is released; the error says why.
    """
    write_where_flower_does()
    if settings is None:
        settings = SecAggSettings.from_run_config({**context.run_config, f"{PREFIX}weighting": "uniform"})
    asked, plan, run = list(grid.get_node_ids() if nodes is None else nodes), Plan(declaration), grid.run.run_id
    rounds, number = Rounds(settings_of(settings, declaration)), next_round(run)
    task = round_of(rounds, plan, clients=len(asked), task=f"flower run {run}", number=number)
    session = GridRound(task, grid, [Message(RecordDict(), node, QUERY) for node in asked], timeout)
    return plan.results(session.carried({node: ClientId(node) for node in asked}))


def _nothing(message: Message, context: Context) -> Message:
    del message, context
    raise Misuse("statistics do not call a function of the app")
