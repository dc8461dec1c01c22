"""How the payloads of a round are added up: in the clear, or by a real protocol in memory.

The protocols are the library's own with coins of production; what is simulated is that the parties are strangers to
each other, and who is lost where. A protocol that runs for real is compared with the sum in the clear every time.
"""

from __future__ import annotations

from functools import partial

from secagg.compression.model_update import ModelUpdate
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.parts import Cohorts
from secagg.training.settings.sections import SumMode

from .privacy import ReleaseCount, RunNoise, require_budget, require_private
from .real_sum import RealSum, Weights
from .round_sums import CheckedSum, IdealSum, NoisedSum, SecureSum, SumRound


def secure_sum(configuration: Configuration) -> SecureSum:
    """Return what adds up as a configuration says.

    Raises:
        InvalidParameters: the protocol does not offer what is asked of it; the message says which does.
    """
    settings, cohorts = configuration.secagg, Cohorts.of(configuration)
    require_private(configuration)
    ideal = IdealSum(configuration.maximum_total_weight, configuration.asynchronous.buffer or cohorts.minimum)
    if settings.mode is SumMode.IDEAL:
        if not configuration.privacy.is_on:
            return ideal
        return NoisedSum(ideal, _real_sum(configuration, cohorts).client_noise, configuration.privacy.delta)
    return CheckedSum(_real_sum(configuration, cohorts), ideal, every=settings.every)


def require_feasible(configuration: Configuration, codec: ModelUpdate, *, available: int) -> None:
    """Refuse a run whose rounds no protocol could add up, before anything is trained.

    Args:
        codec: one that is laid out as those of the run will be.
        available: how many clients there are.
    Raises:
        InvalidParameters: saying what to relax.
        CapacityExceeded: a sum could leave the codec's rings.
    """
    cohorts, buffer = Cohorts.of(configuration), configuration.asynchronous.buffer
    noise, rounds = _noise(configuration), configuration.rounds
    most = 0 if noise is None else ReleaseCount(cohorts, available, rounds).most
    if configuration.secagg.mode is SumMode.IDEAL:
        if noise is not None:
            require_budget(noise, _real_sum(configuration, cohorts).client_noise(codec), most, rounds)
        return
    if (planned := sum(cohorts.planned_losses)) > cohorts.size - LEAST_COHORT:
        raise InvalidParameters(
            f"a round of {cohorts.size} clients is planned to lose up to {planned}; lower dropouts.rate, or raise "
            "clients_per_round"
        )
    clients = tuple(range(cohorts.size))
    due = SumRound(number=0, codec=codec, clients=clients, uploaders=clients, versions={} if buffer else None)
    judge = None if noise is None else partial(require_budget, noise, most=most, rounds=rounds)
    _real_sum(configuration, cohorts).rehearse(due, judge)


def _real_sum(configuration: Configuration, cohorts: Cohorts) -> RealSum:
    ages = configuration.asynchronous
    weights = Weights(
        maximum=configuration.maximum_weight, by_age=ages.age_weights if ages.buffer else (), buffer=ages.buffer
    )
    return RealSum(configuration.secagg, cohorts, weights, _noise(configuration))


def _noise(configuration: Configuration) -> RunNoise | None:
    if not configuration.privacy.is_on:
        return None
    return RunNoise(
        configuration.privacy,
        clip=configuration.local.clip or 0.0,
        fraction_bits=configuration.compression.fraction_bits,
        rounds=configuration.rounds,
    )
