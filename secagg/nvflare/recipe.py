"""``secure`` makes a recipe secure before it is run or exported."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from math import inf
from typing import Any, Final

from nvflare.apis.dxo import DataKind
from nvflare.app_common.aggregators import InTimeAccumulateWeightedAggregator
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.fuel.utils.class_utils import get_component_init_parameters
from nvflare.job_config.api import ClientApp
from nvflare.recipe.spec import Recipe

from secagg.adapters import AdapterPlan
from secagg.errors import InvalidParameters, Reason
from secagg.platforms import LOG
from secagg.platforms.client_round import begun_app
from secagg.platforms.settings import LEAST_CLIENTS, SUMS, SecAggSettings

from .client import COMPONENT, STAGE_TASK, SecAggClient, SecAggExecutor, SecAggFilter
from .controller import EVALUATION, TRAIN, SecureFedAvg, SecureRounds, SecureScaffold, SecureScatterAndGather

_SERVER: Final = "server"
_ANY: Final = "*"
_PACKAGE: Final = "secagg"
_SECURE: Final[dict[type, type[SecureRounds]]] = {
    FedAvg: SecureFedAvg,
    Scaffold: SecureScaffold,
    ScatterAndGather: SecureScatterAndGather,
}
"""Workflows that need only the mean of the sites, and their secure replacements."""
_REFUSED: Final = {
    "Cyclic": "each site receives the model that the last one trained",
    "Swarm": "a site receives the updates of the others and adds them up",
    "Cross": "each site's model is sent to the others",
    "EvalController": "each site reports its results individually; name evaluation_metrics instead",
    "Statistics": "each site reports its counts individually",
}
"""Reasons why other workflows cannot be secure, by parts of their names."""


def secure(  # noqa: PLR0913 -- keywords alone, all with defaults
    recipe: Recipe,
    *,
    policy: dict[str, Any] | None = None,
    scheme: str | None = None,
    invited: int | None = None,
    training_timeout: float = 0.0,
    training_patience: float | None = None,
    poll: float = 0.5,
    adapter: AdapterPlan | None = None,
    rates: Iterable[float] = (),
    bits: int | None = None,
    **settings: Any,  # noqa: ANN401 -- of the settings' own types
) -> None:
    """Make a recipe secure: its server learns sums but never a single site's update.

    Supports FedAvg, FedProx, FedOpt with PyTorch and SCAFFOLD.

    Call it last, after adding filters and components: its filter must be the last to process a result.

    Args:
        policy: policy of the sites, by the names of ``ClientNode``; operators tighten it in ``local/secagg.json``.
        scheme: custom scheme that ``compression`` names.
        invited: number of sites in a round (default: the recipe's ``min_clients``); set more if a job must tolerate the
            loss of a site.
        training_timeout: seconds for the training stage; 0 waits for all live sites.
        training_patience: once enough sites have trained, the wait for the others, as a multiple of that time.
        poll: seconds between a site's requests for a task; no stage is shorter.
        adapter: plan of a LoRA adapter; ``settings`` override the plan's.
        rates: learning rates of all steps of a site in one round; needed with an adapter.
        bits: bits of a value's code, as in ``AdapterPlan.settings``.
        settings: of ``SecAggSettings``, such as ``protocol="one-message"`` or ``clip=1.0``.
    Raises:
        InvalidParameters: a setting is wrong, or the recipe does not work on sums.
    """
    if adapter is None and (rates or bits):
        raise InvalidParameters("rates and bits only apply to an adapter; set adapter = AdapterPlan.of(model)")
    steps = [*rates]

    def fitted(clients: int) -> dict[str, Any]:
        return settings if adapter is None else adapter.settings(steps, clients=clients, bits=bits, **settings)

    checked = SecAggSettings.of(fitted(LEAST_CLIENTS))
    insists = begun_app(policy or {}, scheme)[0].policy.minimum_cohort
    for name, value, is_valid in (
        ("poll", poll, 0 < poll < inf),
        ("training_timeout", training_timeout, 0 <= training_timeout < inf),
        ("training_patience", training_patience, training_patience is None or 0 <= training_patience < inf),
    ):
        if not is_valid:
            raise InvalidParameters(f"{name} must be a number of seconds or a factor, and not negative; got {value!r}")
    job: Any = _inside(recipe, "_job")
    apps: dict[str, Any] = _inside(job, "_deploy_map")
    add = _inside(recipe, "_add_to_client_apps")
    _inside(recipe, "_ensure_client_apps_prepared")()
    sites = [app for app in apps.values() if isinstance(app, ClientApp)]
    if _SERVER not in apps or not sites:
        raise InvalidParameters("the recipe has no server or no client yet; call secure() when it is complete")
    workflow = _only_workflow(apps[_SERVER].app_config, checked.metric_names + checked.evaluated_names)
    plain = workflow.controller
    if checked.down == SUMS and type(plain) is not FedAvg:
        raise InvalidParameters(
            "down = 'sums' only works with FedAvg, whose next model follows from the sum, not with "
            f"{type(plain).__name__}; leave it out"
        )
    is_gathered = type(plain) is ScatterAndGather
    least = "min_clients" if is_gathered else "num_clients"
    trained = getattr(plain, "train_task_name" if is_gathered else "task_name", TRAIN)
    count: Any = _attribute(plain, least) if invited is None else invited
    planned = count - checked.tolerated_dropouts(count)
    if insists > (released := min(count, checked.minimum_cohort or planned)):
        raise InvalidParameters(
            f"the policy has minimum_cohort {insists}, but a sum of {count} invited sites may contain only "
            f"{released}: lower it, raise min_clients (or invited=), or also set minimum_cohort= or threshold="
        )
    names = [name for name in get_component_init_parameters(plain) if name not in {"self", "args", "kwargs"}]
    kept = {name: _attribute(plain, name) for name in names if hasattr(plain, name) or hasattr(plain, f"_{name}")}
    secured: Any = _SECURE[type(plain)](
        **{**kept, least: count},
        secagg=fitted(count),
        training_timeout=training_timeout,
        training_patience=training_patience,
    )
    secured.set_communicator(plain.communicator)
    workflow.controller = secured
    tasks = [trained, *([EVALUATION] if checked.evaluated_names else [])]
    for app in sites:
        _narrow(app.app_config.executors, tasks)
    add(SecAggClient(policy, scheme), id=COMPONENT)
    add(SecAggExecutor(), tasks=[STAGE_TASK])
    recipe.add_client_input_filter(SecAggFilter(), tasks=tasks)
    recipe.add_client_output_filter(SecAggFilter(), tasks=tasks)
    recipe.add_server_config({"server": {"task_request_interval": poll}})
    # Sites run their installed library, never a job's.
    job.set_app_packages([*job.job.app_packages, _PACKAGE])
    LOG.warning(
        "metrics that scripts log are still sent in the clear%s; list those to be averaged in `metrics`, by the names "
        "that scripts return",
        "" if checked.metric_names else ", and no best model is selected",
    )


def _inside(owner: object, name: str) -> Any:  # noqa: ANN401 -- whatever NVFlare has there
    """Return a private part of NVFlare, which has no public name for a recipe's apps, executors and components."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise InvalidParameters(
            f"NVFlare {version('nvflare')} has no {type(owner).__name__}.{name}, which is needed to find a recipe's "
            "apps: install a version that the extra 'nvflare' of this library allows",
            reason=Reason.BACKEND_MISSING,
        ) from None


def _only_workflow(server: Any, metrics: tuple[str, ...]) -> Any:  # noqa: ANN401 -- NVFlare's own records
    """Return the only workflow of a job, which must need only the mean."""
    workflows: list[Any] = server.workflows
    kinds: list[type] = [type(workflow.controller) for workflow in workflows]
    if any(issubclass(kind, SecureRounds) for kind in kinds):
        raise InvalidParameters("the recipe is already secure; call secure() only once")
    if len(kinds) != 1 or kinds[0] not in _SECURE:
        found = ", ".join(kind.__name__ for kind in kinds) or "no workflow"
        reasons = [why for part, why in _REFUSED.items() if any(part in kind.__name__ for kind in kinds)]
        raise InvalidParameters(
            f"the recipe runs {found}, but must run one of {', '.join(kind.__name__ for kind in _SECURE)}: "
            f"{reasons[0] if reasons else 'others were not examined'}"
        )
    plain = workflows[0].controller
    aggregator = getattr(plain, "aggregator", None)
    if kinds == [ScatterAndGather]:
        given = server.components.get(plain.aggregator_id)
        is_mean = type(given) is InTimeAccumulateWeightedAggregator and given.expected_data_kind == DataKind.WEIGHT_DIFF
        aggregator = given if not is_mean or given.aggregation_weights else None
    for name, given, why in (
        ("aggregator", aggregator, "receives each site's update, or weights sites itself, which is not possible here"),
        (
            "aggregation_weights",
            getattr(plain, "aggregation_weights", None),
            "cannot weight sites here, whose scripts report NUM_STEPS_CURRENT_ROUND instead",
        ),
    ):
        if given:
            raise InvalidParameters(f"{name} {why}; leave it out")
    stop: Any = getattr(plain, "stop_condition", None)
    if stop is not None and stop[0] not in metrics:
        raise InvalidParameters(
            f"stop_cond waits for {stop[0]!r}, which is in no sum: name it in metrics or in evaluation_metrics, "
            f"such as secure(recipe, metrics={stop[0]!r})"
        )
    return workflows[0]


def _attribute(plain: object, name: str) -> object:
    return getattr(plain, name if hasattr(plain, name) else f"_{name}")


def _narrow(executors: list[Any], tasks: list[str]) -> None:
    """Restrict wildcard executors to our tasks: the results of other tasks would not be masked."""
    for defined in executors:
        defined.tasks = [one for name in defined.tasks for one in (tasks if name == _ANY else [name])]
        if others := {*defined.tasks} - {*tasks}:
            raise InvalidParameters(
                f"a site would answer {', '.join(sorted(others))} in the clear; remove it from the recipe"
            )
