"""Lists strategies that work with only a sum and those that cannot, finds the grid's strategy, and sets up logging."""

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
"""Strategies that only need the weighted mean of the updates; so do subclasses with the same aggregation."""

OPT_IN: Final = "needs_only_the_mean"
"""Attribute that a strategy with custom aggregation sets to True if one reply, the mean of all clients, suffices."""
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
    # Legacy strategies whose names differ.
    "FaultTolerantFedAvg": "it counts each client's result",
    "DPFedAvgFixed": "it clips and adds noise client by client",
    "DPFedAvgAdaptive": "it clips and adds noise client by client",
}
"""Strategies that need individual updates, which nobody learns, with the reason for the error."""

_MOST_FRAMES: Final = 12
_DEPTH: Final = 4


def require_sum_suffices(strategy: object, *, sums_evaluation: bool = False) -> None:
    """Refuse a strategy that needs individual updates, even if it is wrapped.

    Args:
        sums_evaluation: whether evaluation results are summed too.
    """
    for layer in _layers(strategy):
        names = [kind.__name__ for kind in type(layer).__mro__]
        for name in names:
            if name in REFUSED:
                raise InvalidParameters(
                    f"{names[0]} cannot work under secure aggregation: {REFUSED[name]}, and individual updates are "
                    f"not visible; use one of {', '.join(ACCEPTED)}"
                )
        if getattr(layer, OPT_IN, False) is True:
            continue
        for method in (*_AGGREGATING, *(_AGGREGATING_EVALUATIONS if sums_evaluation else ())):
            owner = next((kind for kind in type(layer).__mro__ if method in vars(kind)), None)
            if owner is not None and not owner.__module__.startswith(_FLOWER):
                raise InvalidParameters(
                    f"{names[0]} has its own {method} (in {owner.__name__}), which would get one reply, the mean of "
                    f"all clients, and no individual results; if that is enough, set {OPT_IN} = True in the class"
                )


def own_functions(strategy: object) -> list[str]:
    """Return the names of a strategy's custom functions of the clients' metrics."""
    found = list[str]()
    for layer in _layers(strategy):
        given = {name: getattr(layer, name, None) for name in _FUNCTIONS}
        found += [name for name, one in given.items() if one and not getattr(one, "__module__", "").startswith(_FLOWER)]
    return found


def calling_strategy() -> object | None:
    """Return the calling strategy, if there is one.

    ``Strategy.start`` passes only messages to the grid, not the strategy, so look at the callers' frames. Safe because:
    the result only decides about a refusal and a metric's name, nothing secret.
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
    """Return a strategy and the strategies that it wraps, outermost first."""
    layers, current = list[object](), strategy
    while current is not None and len(layers) < _DEPTH:
        layers.append(current)
        current = getattr(current, "strategy", None)
    return layers


def write_where_flower_does() -> None:
    """Use the handlers and the level of Flower's logger, unless the app has configured this logger."""
    flower = logging.getLogger("flwr")
    if LOG.handlers or LOG.level != logging.NOTSET:
        return
    LOG.setLevel(flower.level or logging.INFO)
    for handler in flower.handlers:
        LOG.addHandler(handler)
