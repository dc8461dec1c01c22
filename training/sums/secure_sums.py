"""How the payloads of a round are added up: in the clear, or by a real protocol in memory.

The protocols are the library's own with coins of production; what is simulated is that the parties are strangers to
each other, and who is lost where. A protocol that runs for real is compared with the sum in the clear every time.
"""

from __future__ import annotations

from secagg.compression.model_update import ModelUpdate
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT
from secagg.training.settings.cohorts import minimum_cohort, planned_losses
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.sections import SumMode, SumProtocol

from .enclave_sum import EnclaveSum
from .pairwise_sum import PairwiseSum
from .privacy import require_budget, require_private
from .round_sums import CheckedSum, IdealSum, SecureSum, SumRound
from .two_server_sum import TwoServerSum


def secure_sum(configuration: Configuration, staleness_weights: tuple[int, ...] = (1,)) -> SecureSum:
    """Return what adds up as a configuration says.

    Raises:
        InvalidParameters: the protocol does not offer what is asked of it; the message says which does.
    """
    if configuration.privacy.is_on:
        require_private(configuration)
    minimum = configuration.asynchronous.buffer or minimum_cohort(configuration)
    ideal = IdealSum(configuration.maximum_total_weight, minimum)
    if configuration.secagg.mode is SumMode.IDEAL:
        return ideal
    real: SecureSum
    match configuration.secagg.protocol:
        case SumProtocol.PAIRWISE:
            real = PairwiseSum(configuration)
        case SumProtocol.ENCLAVE:
            real = EnclaveSum(configuration, staleness_weights)
        case SumProtocol.TWO_SERVERS:
            real = TwoServerSum(configuration)
    return CheckedSum(real, ideal, every=configuration.secagg.every)


def require_feasible(
    configuration: Configuration,
    codec: ModelUpdate,
    *,
    available: int,
    staleness_weights: tuple[int, ...] = (1,),
) -> None:
    """Refuse a run whose rounds no protocol could add up, before anything is trained.

    Args:
        codec: one that is laid out as those of the run will be.
        available: how many clients there are.
    Raises:
        InvalidParameters: saying what to relax.
        CapacityExceeded: a sum could leave the codec's rings.
    """
    settings, clients = configuration.secagg, configuration.clients_per_round
    if settings.mode is SumMode.IDEAL:
        return
    if (planned := sum(planned_losses(configuration))) > clients - LEAST_COHORT:
        raise InvalidParameters(
            f"a round of {clients} clients is planned to lose up to {planned}; lower dropouts.rate, or raise "
            "clients_per_round"
        )
    match settings.protocol:
        case SumProtocol.PAIRWISE:
            PairwiseSum(configuration).plan(SumRound(number=0, codec=codec, clients=tuple(range(clients))))
        case SumProtocol.ENCLAVE:
            enclave = EnclaveSum(configuration, staleness_weights).plan(codec)
            if configuration.privacy.is_on:
                require_budget(configuration, enclave, available)
        case SumProtocol.TWO_SERVERS:
            TwoServerSum(configuration).plan(codec)
