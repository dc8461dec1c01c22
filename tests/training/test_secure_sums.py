"""Real protocols give the sum in the clear, whoever is lost where; and the sum in the clear is what it should be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from secagg.training.sums.two_server_sum import TwoServerSum

from secagg.compression.model_update import ModelUpdate
from secagg.contract import Aggregate, Payload, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InternalError, InvalidParameters, Misuse, ThresholdNotMet
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.message_sizes import batch_bytes, half_bytes, offers_bytes, release_bytes
from secagg.training.codec.operators import Operators
from secagg.training.settings.cohorts import LOST_BEFORE_UPLOAD, minimum_cohort, planned_losses, sampled_losses
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.sections import (
    AsynchronousSettings,
    CompressionSettings,
    DropoutSettings,
    Scheme,
    ServerSettings,
    Stage,
    SumMode,
    SumProtocol,
    SumSettings,
    Weighting,
)
from secagg.training.sums.clear_sum import ClearSum, OverflowMeter
from secagg.training.sums.round_sums import CheckedSum, IdealSum, SumOutcome, SumRound, Upload, require_equal
from secagg.training.sums.secure_sums import require_feasible, secure_sum

SHAPES = {"weight": (8, 36), "bias": (8,)}
SCALAR = CompressionSettings(scheme=Scheme.SCALAR, bits=6, modulus_bits=8, wrap=True)
PRUNING = CompressionSettings(scheme=Scheme.PRUNING, sparsity="0.5")
PRODUCT = CompressionSettings(scheme=Scheme.PRODUCT, codewords=8, block_size=4)
CASES = [
    (SumProtocol.PAIRWISE, CompressionSettings()),
    (SumProtocol.PAIRWISE, SCALAR),
    (SumProtocol.PAIRWISE, PRUNING),
    (SumProtocol.ENCLAVE, PRODUCT),
    (SumProtocol.ENCLAVE, replace(PRODUCT, stages=2)),
    (SumProtocol.ENCLAVE, SCALAR),
    (SumProtocol.TWO_SERVERS, PRODUCT),
    (SumProtocol.TWO_SERVERS, SCALAR),
]


def configuration(protocol: SumProtocol, compression: CompressionSettings, **more: Any) -> Configuration:
    settings = SumSettings(protocol=protocol, mode=SumMode.REAL, sparse=False, **more.pop("sums", {}))
    return Configuration(clients_per_round=8, compression=compression, secagg=settings, **more)


def codecs(run: Configuration) -> Operators:
    """Return operators whose codec is past the uncompressed round."""
    made = Operators(run.compression, SHAPES, bytes(32), run.maximum_total_weight)
    first = made.begin(0, lambda: update(0)).update
    made.decode(ideal_aggregate(first.layout, [made.encode(update(n), SystemCoins()) for n in range(4)]))
    made.begin(1, lambda: update(0))
    return made


def update(number: int) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    return {name: (0.01 * generator.laplace(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def uploads(made: Operators, due: SumRound, weights: bool = False) -> Iterator[Upload]:  # noqa: FBT001, FBT002
    for client in due.uploaders:
        yield client, made.encode(update(client), SystemCoins()), 1 + client % 3 if weights else 1


@pytest.mark.parametrize(("protocol", "compression"), CASES)
@pytest.mark.parametrize("stage", [None, *Stage])
def test_a_real_sum_is_the_sum_in_the_clear_whoever_is_lost_where(
    protocol: SumProtocol, compression: CompressionSettings, stage: Stage | None
) -> None:
    dropouts = DropoutSettings() if stage is None else DropoutSettings(rate=0.04, stages=(stage,))
    run = configuration(protocol, compression, dropouts=dropouts)
    made, clients = codecs(run), tuple(range(10, 18))
    lost = {} if stage is None else {stage: frozenset({12})}
    due = SumRound(number=0, codec=made.codec, clients=clients, lost=lost, model_digest=bytes(range(32)))
    outcome = secure_sum(run).run(due, uploads(made, due))
    assert outcome.is_real
    assert outcome.aggregate.contributors == (7 if stage in LOST_BEFORE_UPLOAD else 8)
    again = ideal_aggregate(due.codec.layout, [payload for _, payload, _ in uploads(made, due)])
    require_equal(due.codec, outcome.aggregate, again)
    assert outcome.bytes_up > 0
    assert outcome.bytes_down > 0
    assert outcome.seconds > 0


@pytest.mark.parametrize(("protocol", "compression"), [CASES[0], CASES[3]])
def test_weights_are_applied_under_the_masks(protocol: SumProtocol, compression: CompressionSettings) -> None:
    server = ServerSettings(weighting=Weighting.EXAMPLES, maximum_weight=3)
    run = configuration(protocol, compression, server=server)
    made = codecs(run)
    due = SumRound(number=0, codec=made.codec, clients=tuple(range(8)))
    outcome = secure_sum(run).run(due, uploads(made, due, weights=True))
    assert outcome.aggregate.total_weight == sum(1 + client % 3 for client in range(8))


def test_histograms_that_leave_the_enclave_decode_to_the_same_bits() -> None:
    run = configuration(SumProtocol.ENCLAVE, PRODUCT, sums={"histograms": True})
    made = codecs(run)
    due = SumRound(number=0, codec=made.codec, clients=tuple(range(8)))
    assert secure_sum(run).run(due, uploads(made, due)).aggregate.layout == made.codec.layout


def test_the_bytes_of_two_servers_are_those_of_their_messages() -> None:
    run = configuration(SumProtocol.TWO_SERVERS, PRODUCT)
    made = codecs(run)
    lost = {Stage.BETWEEN_HALVES: frozenset({2}), Stage.BEFORE_UPLOAD: frozenset({3})}
    run = replace(run, dropouts=DropoutSettings(rate=0.1))
    added = TwoServerSum(run)
    due = SumRound(number=0, codec=made.codec, clients=tuple(range(8)), lost=lost)
    outcome, planned = added.run(due, uploads(made, due)), added.plan(made.codec)
    halves = [half_bytes(planned, ServerId(index)) for index in range(2)]
    assert outcome.aggregate.contributors == 6
    assert outcome.bytes_up == 7 * halves[0] + 6 * halves[1]
    assert outcome.bytes_down == 7 * offers_bytes(planned)
    between = {stage.name: stage.bytes_between for stage in outcome.stages}
    assert between == {
        "shared uploads": 0,
        "checks and sums": batch_bytes(planned, 6).total,
        "release": release_bytes(planned),
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"server": ServerSettings(weighting=Weighting.EXAMPLES)}, r"server\.weighting = 'equal'"),
        ({"asynchronous": AsynchronousSettings(buffer=4, exponent=0)}, "for asynchronous clients"),
    ],
)
def test_what_two_servers_do_not_offer_is_refused_by_name(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        secure_sum(configuration(SumProtocol.TWO_SERVERS, PRODUCT, **more))


class WrongSum:
    """Adds one client's payload twice."""

    def __init__(self, ideal: IdealSum) -> None:
        self._ideal = ideal

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        all_of_them = list(uploads)
        return self._ideal.run(due, [all_of_them[0], *all_of_them[:-1]])


def test_a_protocol_whose_sum_is_wrong_is_found_out() -> None:
    run = configuration(SumProtocol.PAIRWISE, SCALAR)
    made, ideal = codecs(run), IdealSum(8)
    due = SumRound(number=0, codec=made.codec, clients=tuple(range(8)))
    with pytest.raises(InternalError, match="not the sum of the updates"):
        CheckedSum(WrongSum(ideal), ideal).run(due, uploads(made, due))


def test_a_protocol_that_counts_others_is_found_out() -> None:
    run = configuration(SumProtocol.PAIRWISE, SCALAR)
    made, ideal = codecs(run), IdealSum(8)
    due = SumRound(number=0, codec=made.codec, clients=tuple(range(8)))
    outcome = ideal.run(due, uploads(made, due))
    fewer = ideal.run(due, list(uploads(made, due))[:-1])
    with pytest.raises(InternalError, match="instead of"):
        require_equal(made.codec, fewer.aggregate, outcome.aggregate)


def test_a_protocol_runs_in_every_so_many_rounds() -> None:
    run = configuration(SumProtocol.ENCLAVE, PRODUCT, sums={"every": 3})
    made, added = codecs(run), secure_sum(run)
    real = list[bool]()
    for number in range(6):
        due = SumRound(number=number, codec=made.codec, clients=tuple(range(8)), model_digest=bytes([number]) * 32)
        real.append(added.run(due, uploads(made, due)).is_real)
    assert real == [True, False, False, True, False, False]


@pytest.mark.parametrize("mode", SumMode)
def test_too_many_lost_clients_release_nothing_in_either_mode(mode: SumMode) -> None:
    run = configuration(SumProtocol.ENCLAVE, PRODUCT)
    run = replace(run, secagg=replace(run.secagg, mode=mode))
    made = codecs(run)
    due = SumRound(
        number=0,
        codec=made.codec,
        clients=tuple(range(8)),
        lost={Stage.BEFORE_UPLOAD: frozenset(range(6))},
    )
    with pytest.raises(ThresholdNotMet):
        secure_sum(run).run(due, uploads(made, due))


def test_a_session_that_cannot_be_safe_is_refused_before_it_begins() -> None:
    run = configuration(SumProtocol.PAIRWISE, SCALAR, dropouts=DropoutSettings(rate=0.2))
    with pytest.raises(InvalidParameters, match="plan for fewer"):
        require_feasible(run, codecs(run).codec, available=8)
    require_feasible(replace(run, secagg=replace(run.secagg, mode=SumMode.IDEAL)), codecs(run).codec, available=8)


def test_losses_are_drawn_at_the_rate_and_at_each_stage() -> None:
    clients = list(range(20_000))
    lost = sampled_losses(clients, 0.1, tuple(Stage), np.random.default_rng(0))
    assert sum(map(len, lost.values())) == pytest.approx(2000, rel=0.1)
    assert all(len(some) == pytest.approx(2000 / len(Stage), rel=0.2) for some in lost.values())
    assert not sampled_losses(clients, 0.0, tuple(Stage), np.random.default_rng(0))


def test_a_session_is_planned_for_more_losses_than_are_expected() -> None:
    run = Configuration(clients_per_round=100, dropouts=DropoutSettings(rate=0.1, stages=(Stage.BEFORE_KEYS,)))
    assert planned_losses(run) == (16, 0)
    assert minimum_cohort(run) == 84


# --- In the clear -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [CompressionSettings(), SCALAR, PRUNING, PRODUCT, replace(PRODUCT, stages=2)])
@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 5, 2]])
def test_the_sum_in_the_clear_is_the_one_that_the_contract_defines(
    compression: CompressionSettings, weights: list[int]
) -> None:
    made = codecs(Configuration(compression=compression, secagg=SumSettings(protocol=SumProtocol.ENCLAVE)))
    payloads = [made.encode(update(number), SystemCoins()) for number in range(3)]
    clear = ClearSum(made.codec, 20)
    for payload, weight in zip(payloads, weights, strict=True):
        clear.add(payload, weight)
    require_equal(made.codec, clear.finish(), ideal_aggregate(made.codec.layout, payloads, weights))


def test_a_payload_of_another_codec_is_refused() -> None:
    made, other = codecs(Configuration(compression=SCALAR)), codecs(Configuration(compression=PRUNING))
    with pytest.raises(Misuse, match="another layout"):
        ClearSum(made.codec, 20).add(other.encode(update(0), SystemCoins()))


def coded(codec: ModelUpdate, codes: list[list[int]]) -> Iterator[Payload]:
    """Return payloads whose narrow segment holds these codes, and zeros after them."""
    for some in codes:
        values = list[Any]()
        for segment in codec.layout.segments:
            whole = np.zeros(segment.length, dtype=np.int64)
            if segment.ring.modulus_bits == 8:
                whole[: len(some)] = some
            values.append(segment.ring.from_integers(whole))
        yield Payload(codec.layout, tuple(values))


def metered(codes: list[list[int]]) -> tuple[OverflowMeter, Aggregate]:
    made = codecs(Configuration(compression=SCALAR))
    meter, clear = OverflowMeter(made.codec, 8), ClearSum(made.codec, 20)
    for payload in coded(made.codec, codes):
        meter.add(payload)
        clear.add(payload)
    return meter, clear.finish()


def test_overflow_counts_final_sums_of_both_signs() -> None:
    # Of eight sums, 128 and -129 leave [-128, 127], and a partial sum that leaves and comes back does not count.
    meter, _ = metered([[127, -128, 127, -128], [1, -1, 0, 0], [0, 0, 0, 0]])
    assert meter.share == pytest.approx(2 / 288)
    meter, _ = metered([[100], [100], [-100]])
    assert meter.share == 0


def test_overflow_is_counted_as_the_papers_simulator_does_beside_it() -> None:
    # 100, then 200, which is one event and leaves 72 of 128, then -28; negative sums are no events.
    meter, _ = metered([[100, -100], [100, -100], [-100, -100]])
    assert meter.flsim_share == pytest.approx(1 / (288 * 3))


def test_nothing_is_metered_where_no_ring_is_narrow() -> None:
    made = codecs(Configuration(compression=PRUNING))
    assert not OverflowMeter(made.codec, 8).is_metering
