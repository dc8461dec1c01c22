"""Statistics of people's data at NVFlare sites: a job with one controller, and a component at each site.

A job names the declaration that its server requests. A site's ``local/secagg_statistics.toml`` defines what it answers:

declaration = "outcomes.toml"   # the site's copy, next to this file
data = "people.csv"             # or "people.py:functions"
version = "2026-11"
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from secagg.analytics import Declaration, Plan, Site, read_site
from secagg.analytics.on_platforms import ONCE, Answering, round_of, settings_of
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.platforms import LOG
from secagg.platforms.client_round import NodeRound
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import Terms
from secagg.session.durable import PUBLIC, replace
from secagg.session.roles import LazyUpdate

from .client import COMPONENT, STAGE_TASK, SecAggClient, SecAggExecutor, task_of
from .controller import SiteRound

SITE_FILE: Final = "secagg_statistics.toml"
DIRECTORY_VARIABLE: Final = "SECAGG_STATISTICS_DIRECTORY"
"""Another folder for that file, with a subfolder for each site on the machine."""
RESULT: Final = "statistics.json"
_NONCE_BYTES: Final = 8
_PARTS: Final = frozenset({"declaration", "data", "version"})


def statistics_job(
    declaration: Declaration,
    *,
    policy: dict[str, Any] | None = None,
    timeout: float = 600.0,
    poll: float = 0.5,
    **settings: Any,  # noqa: ANN401 -- of the settings' own types
) -> Recipe:
    """Return a job that queries all sites once; its server writes ``statistics.json`` into its run folder.

    Args:
        policy: policy of the sites, by the names of ``ClientNode``; operators tighten it in ``local/secagg.json``.
        timeout: seconds for the upload stage; 0 waits for all live sites.
        poll: seconds between a site's requests for a task.
        settings: fields of ``SecAggSettings``, such as ``protocol="one-message"``.
    """
    Plan(declaration)
    settings_of(SecAggSettings.of({"weighting": "uniform", **settings}), declaration)
    job = FedJob(name="statistics", min_clients=declaration.least_clients)
    job.to_server(StatisticsController(asdict(declaration), {"weighting": "uniform", **settings}, timeout))
    job.to_clients(StatisticsClient(policy), id=COMPONENT)
    job.to_clients(SecAggExecutor(), tasks=[STAGE_TASK])
    recipe = Recipe(job)
    recipe.add_server_config({"server": {"task_request_interval": poll}})
    return recipe


class StatisticsController(Controller):
    """Controller that queries all sites of a job for statistics once."""

    def __init__(self, declaration: dict[str, Any], secagg: dict[str, Any], timeout: float) -> None:
        super().__init__()
        self.declaration, self.secagg, self.timeout = declaration, secagg, timeout
        self.abort_signal, self.fl_ctx = Signal(), FLContext()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the session and write its results; NVFlare ends the job if this raises."""
        self.abort_signal, self.fl_ctx = abort_signal, fl_ctx
        declaration, engine = Declaration.of(self.declaration), fl_ctx.get_engine()
        plan, rounds = Plan(declaration), Rounds(settings_of(SecAggSettings(**self.secagg), declaration))
        sites: list[Client] = engine.get_clients()
        # A repeated job, as in simulations, gets another task.
        task = f"{task_of(fl_ctx)} {SystemCoins().draw(_NONCE_BYTES).hex()}"
        session = SiteRound(
            round_of(rounds, plan, clients=len(sites), task=task, number=1),
            self,
            STAGE_TASK,
            Shareable,
            training_timeout=self.timeout,
            training_patience=None,
        )
        results = plan.results(session.run([site.name for site in sites]))
        path = Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id())) / RESULT
        replace(path, (json.dumps(results.record, indent=2) + "\n").encode(), PUBLIC)
        LOG.info("%s: statistics of %d sites", path, results.sites)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing."""


class StatisticsClient(SecAggClient):
    """One site in a statistics job."""

    def __init__(self, policy: dict[str, Any] | None = None) -> None:
        super().__init__({"attempts": ONCE.attempts, **(policy or {})})
        self._answering: Answering | None = None

    def _begun(self, terms: Terms, fl_ctx: FLContext) -> NodeRound:
        node = self._node(fl_ctx)
        self._answering = Answering(_site_of(fl_ctx), node.settings)
        return self._answering.begun(node, terms)

    def _update(self, found: Any) -> tuple[bytes | None, LazyUpdate]:  # noqa: ANN401 -- the client's own session
        if self._answering is None:
            raise InvalidParameters("the server requested statistics before it sent the declaration")
        return self._answering.plan.model_digest, self._answering.late_in(found.begun, is_new=True)


def _site_of(fl_ctx: FLContext) -> Site:
    named = os.environ.get(DIRECTORY_VARIABLE)
    folder = Path(named or fl_ctx.get_engine().get_workspace().get_site_config_dir())
    if (own := folder / fl_ctx.get_identity_name()).is_dir():
        folder = own
    path = folder / SITE_FILE
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidParameters(f"{path} defines a site's statistics, but cannot be read ({error})") from None
    if found.keys() != _PARTS or any(type(value) is not str for value in found.values()):
        raise InvalidParameters(f"{path} needs strings {', '.join(sorted(_PARTS))}; got {', '.join(sorted(found))}")
    declaration = Declaration.read(folder / found["declaration"])
    return read_site(declaration, str(folder / found["data"]), found["version"])
