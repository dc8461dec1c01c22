"""Which strategies work on a sum, which cannot, how the grid finds out which one it serves, and where it logs."""

from __future__ import annotations

import inspect
import logging
from typing import Final

from secagg.errors import InvalidParameters
from secagg.platforms import LOG

ACCEPTED: Final = (
    "FedAvg",
    "FedAvgM",
    "FedAdam",
    "FedAdagrad",
    "FedYogi",
    "FedProx",
    "DifferentialPrivacyClientSideFixedClipping",
)
"""Strategies that use only the weighted mean of the updates, as do their subclasses that aggregate in the same way."""

OPT_IN: Final = "needs_only_the_mean"
"""Attribute that a strategy with its own aggregation sets to True if one reply, the mean of all clients, is enough."""
_AGGREGATING: Final = ("aggregate_train", "aggregate_fit")
_AGGREGATING_EVALUATIONS: Final = ("aggregate_evaluate",)
_FUNCTIONS: Final = (
    *("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"),
    *("fit_metrics_aggregation_fn", "evaluate_metrics_aggregation_fn"),
)
_FLOWER: Final = "flwr."

REFUSED: Final = {
    "Krum": "it scores each client's update by its distance to the others",
    "MultiKrum": "it scores each client's update by its distance to the others",
    "Bulyan": "it selects among the clients' updates",
    "FedMedian": "it takes the median of the clients' values",
    "FedTrimmedAvg": "it leaves out the largest and the smallest of the clients' values",
    "QFedAvg": "it weights each client's update by that client's loss",
    "FedXgbBagging": "it joins the clients' trees",
    "FedXgbCyclic": "it takes the trees of one client at a time",
    "DifferentialPrivacyServerSideFixedClipping": "it clips each client's update on the server; clip on the client, "
    "with DifferentialPrivacyClientSideFixedClipping and fixedclipping_mod after SecAggMod",
    "DifferentialPrivacyServerSideAdaptiveClipping": "it clips each client's update on the server",
    "DifferentialPrivacyClientSideAdaptiveClipping": "it reads from each client whether its update was clipped",
    # Of the legacy generation, by the names that differ.
    "FaultTolerantFedAvg": "it counts each client's result",
    "DPFedAvgFixed": "it clips and adds noise client by client",
    "DPFedAvgAdaptive": "it clips and adds noise client by client",
}
"""Strategies that need the update of each client, which nobody learns, with the reason that a user is told."""

_MOST_FRAMES: Final = 12
_DEPTH: Final = 4


def require_sum_suffices(strategy: object, *, sums_evaluation: bool = False) -> None:
    """Refuse a strategy that needs single updates; wrapped ones too.

    Args:
        sums_evaluation: whether results of evaluation are summed as well.
    """
    for layer in _layers(strategy):
        names = [kind.__name__ for kind in type(layer).__mro__]
        for name in names:
            if name in REFUSED:
                raise InvalidParameters(
                    f"{names[0]} cannot work under secure aggregation: {REFUSED[name]}, and no single update is "
                    f"visible; use one of {', '.join(ACCEPTED)}"
                )
        if getattr(layer, OPT_IN, False) is True:
            continue
        for method in (*_AGGREGATING, *(_AGGREGATING_EVALUATIONS if sums_evaluation else ())):
            owner = next((kind for kind in type(layer).__mro__ if method in vars(kind)), None)
            if owner is not None and not owner.__module__.startswith(_FLOWER):
                raise InvalidParameters(
                    f"{names[0]} has its own {method} (in {owner.__name__}), which would be given one reply, the mean "
                    f"of all clients, and no single result; if that is enough, set {OPT_IN} = True in the class"
                )


def own_functions(strategy: object) -> list[str]:
    """Return the names of a strategy's arguments that are functions of the clients' metrics, and not Flower's own."""
    found = list[str]()
    for layer in _layers(strategy):
        given = {name: getattr(layer, name, None) for name in _FUNCTIONS}
        found += [name for name, one in given.items() if one and not getattr(one, "__module__", "").startswith(_FLOWER)]
    return found


def calling_strategy() -> object | None:
    """Return the strategy that is calling, if there is one.

    A strategy hands itself to nobody: ``Strategy.start`` calls the grid with messages and nothing else. So the callers
    are asked. Safe because: the result decides on a refusal and on a metric's name, and on nothing secret.
    """
    frame = inspect.currentframe()
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        candidate: object = frame.f_locals.get("self")
        if candidate is not None and hasattr(candidate, "configure_train") and hasattr(candidate, "aggregate_train"):
            return candidate
        frame = frame.f_back
    return None


def weight_key(strategy: object) -> str:
    """Return the name of the metric by which a strategy weights updates."""
    for layer in _layers(strategy):
        key = getattr(layer, "weighted_by_key", None)
        if isinstance(key, str):
            return key
    return "num-examples"


def _layers(strategy: object) -> list[object]:
    """Return a strategy and those that it wraps, the outermost first."""
    layers, current = list[object](), strategy
    while current is not None and len(layers) < _DEPTH:
        layers.append(current)
        current = getattr(current, "strategy", None)
    return layers


def write_where_flower_does() -> None:
    """Use the handlers and the level of Flower's logger, unless the app has set up this one."""
    flower = logging.getLogger("flwr")
    if LOG.handlers or LOG.level != logging.NOTSET:
        return
    LOG.setLevel(flower.level or logging.INFO)
    for handler in flower.handlers:
        LOG.addHandler(handler)
