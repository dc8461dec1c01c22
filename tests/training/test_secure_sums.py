"""Real protocols give the same sum as in the clear, whichever clients drop out; and that sum is correct."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.compression.model_update import ModelUpdate
from secagg.contract import Aggregate, Payload, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InternalError, InvalidParameters, Misuse, ThresholdNotMet
from secagg.session.registry import find, register, unregister
from secagg.training.clear_sums import (
    CheckedSum,
    ClearSum,
    IdealSum,
    OverflowMeter,
    SumOutcome,
    SumRound,
    Upload,
    require_equal,
    require_rounded,
)
from secagg.training.codec import Operators
from secagg.training.configuration import (
    CompressionSettings,
    Configuration,
    DropoutSettings,
    Scheme,
    ServerSettings,
    Source,
    SumMode,
    SumSettings,
    Weighting,
)
from secagg.training.driver import train
from secagg.training.parts import Cohorts, sampled_losses
from secagg.training.rounds import Pieces
from secagg.training.sums import require_feasible, secure_sum
from secagg.training.weights import Weights
from tests.harness import plain_sum
from tests.harness.planted import always

SHAPES = {"weight": (8, 36), "bias": (8,)}
SCALAR = CompressionSettings(scheme=Scheme.SCALAR, bits=6, modulus_bits=8, wrap=True)
PRUNING = CompressionSettings(scheme=Scheme.PRUNING, sparsity="0.5")
PRODUCT = CompressionSettings(scheme=Scheme.PRODUCT, codewords=8, block_size=4)
DITHERED = CompressionSettings(scheme=Scheme.SCALAR, bits=6, modulus_bits=12, fine_bits=8)
EXAMPLES = (60, 120, 180)
"""Clients' numbers of examples, in turn."""
CASES = [
    ("pairwise", CompressionSettings()),
    ("pairwise", SCALAR),
    ("pairwise", PRUNING),
    ("enclave", PRODUCT),
    ("enclave", replace(PRODUCT, stages=2)),
    ("enclave", SCALAR),
    ("two-servers", PRODUCT),
    ("two-servers", SCALAR),
    ("one-message", CompressionSettings()),
    ("one-message", SCALAR),
    ("lightsecagg", CompressionSettings()),
    ("lightsecagg", SCALAR),
]


def configuration(protocol: str, compression: CompressionSettings, **more: Any) -> Configuration:
    own = ("topology=full",) if protocol == "pairwise" else ()
    sums: dict[str, Any] = {"settings": own, **more.pop("sums", {})}
    settings = SumSettings(protocol=protocol, mode=SumMode.REAL, **sums)
    return Configuration(clients_per_round=8, compression=compression, secagg=settings, **more)


def codecs(run: Configuration) -> Operators:
    """Return operators after the uncompressed round."""
    made = codecs_of(run)
    made.decode(clear_sum(made, made.begin(0, lambda: update(0)).update))
    made.begin(1, lambda: update(0))
    return made


def codecs_of(run: Configuration) -> Operators:
    weights = Weights.of(run, EXAMPLES[-1])
    return Operators(run.compression, SHAPES, bytes(32), run.most_uploads, weights=weights)


def clear_sum(made: Operators, codec: ModelUpdate) -> Aggregate:
    return ideal_aggregate(codec.layout, [made.encode(update(n), SystemCoins()) for n in range(4)])


def update(number: int) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    return {name: (0.01 * generator.laplace(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def uploads(made: Operators, due: SumRound) -> Iterator[Upload]:
    for client in due.uploaders:
        yield client, made.encode(update(client), SystemCoins(), EXAMPLES[client % 3])


def everybody(codec: ModelUpdate, number: int = 0) -> SumRound:
    clients = tuple(range(8))
    digest = bytes([number]) * 32
    return SumRound(number=number, codec=codec, clients=clients, uploaders=clients, model_digest=digest)


STAGES = {
    name: [stage.name for stage in find(name).stages]
    for name in ("pairwise", "enclave", "two-servers", "one-message", "lightsecagg")
}


@pytest.mark.parametrize(
    ("protocol", "compression", "stage"),
    [(protocol, compression, stage) for protocol, compression in CASES for stage in (None, *STAGES[protocol])],
)
def test_a_real_sum_is_the_sum_in_the_clear_whoever_is_lost_where(
    protocol: str, compression: CompressionSettings, stage: str | None
) -> None:
    dropouts = DropoutSettings() if stage is None else DropoutSettings(rate=0.04, stages=(stage,))
    run = configuration(protocol, compression, dropouts=dropouts)
    made, clients, cohorts = codecs(run), tuple(range(10, 18)), Cohorts.of(run)
    lost = {} if stage is None else {stage: frozenset({12})}
    due = SumRound(
        number=0,
        codec=made.codec,
        clients=clients,
        uploaders=cohorts.uploaders(clients, lost),
        lost=lost,
        model_digest=bytes(range(32)),
    )
    outcome = secure_sum(run).run(due, uploads(made, due))
    assert outcome.is_real
    assert outcome.aggregate.contributors == (7 if stage in cohorts.before_upload else 8)
    again = ideal_aggregate(due.codec.layout, [payload for _, payload in uploads(made, due)])
    require_equal(due.codec, outcome.aggregate, again)
    assert [figures.name for figures in outcome.stages] == [*STAGES[protocol], "release"]
    assert outcome.bytes_up > 0
    assert outcome.bytes_down > 0
    assert outcome.seconds > 0


def test_uploads_may_come_in_any_order() -> None:
    for protocol in ("pairwise", "enclave"):
        run = configuration(protocol, SCALAR)
        made = codecs(run)
        due = everybody(made.codec)
        assert secure_sum(run).run(due, reversed(list(uploads(made, due)))).aggregate.contributors == 8


def test_an_update_that_comes_again_is_in_both_sums() -> None:
    run = configuration("enclave", SCALAR, dropouts=DropoutSettings(rate=0.04))
    made, added = codecs(run), secure_sum(run)
    first, second = everybody(made.codec, 0), everybody(made.codec, 1)
    same = list(uploads(made, first))
    added.run(first, same)
    others = [(client, made.encode(update(50 + client), SystemCoins())) for client in range(1, 8)]
    outcome = added.run(second, [same[0], *others])
    payloads = [payload for _, payload in (same[0], *others)]
    require_equal(made.codec, outcome.aggregate, ideal_aggregate(made.codec.layout, payloads))


@pytest.mark.parametrize("protocol", ["pairwise", "enclave"])
def test_what_training_raises_ends_the_round_and_is_no_clients_leaving(protocol: str) -> None:
    run = configuration(protocol, SCALAR)
    made = codecs(run)
    due = everybody(made.codec)

    def failing() -> Iterator[Upload]:
        yield from list(uploads(made, due))[:3]
        raise CapacityExceeded("an update is too large")

    with pytest.raises(CapacityExceeded, match="too large"):
        secure_sum(run).run(due, failing())


def test_a_session_that_every_client_refuses_is_an_error_and_no_round_of_lost_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = configuration("enclave", SCALAR)
    made = codecs(run)
    due = everybody(made.codec)
    refusing = replace(find("enclave"), simulate=RefusingSimulation)
    monkeypatch.setattr("secagg.training.sums.find", always(refusing))
    with pytest.raises(InvalidParameters, match=r"all clients left in the stage 'sealed upload'.*below"):
        secure_sum(run).run(due, uploads(made, due))


class RefusingSimulation:
    """A simulation whose clients only accept a larger cohort than the server plans."""

    def __init__(self, settings: Any, **others: Any) -> None:
        self._world = find("enclave").simulate(settings, **others)

    def open(self, subject: Any, invited: Any) -> Any:
        return self._world.open(subject, invited)

    def member(self, client: Any) -> Any:
        member: Any = self._world.member(client)
        return replace(member, policy=replace(member.policy, minimum_cohort=9))

    bytes_between = 0

    def close(self) -> None:
        self._world.close()


def test_a_protocol_of_ones_own_trains_by_its_registration(
    toy_run: Callable[..., Configuration], toy_pieces: Callable[[Configuration], Pieces]
) -> None:
    register(plain_sum.ENTRY)
    try:
        run = toy_run("secagg.protocol=plain", "secagg.mode=real", "compression.scheme=pruning", "dropouts.rate=0.02")
        ideal = replace(run, secagg=replace(run.secagg, mode=SumMode.IDEAL))
        real, clear = (train(each, pieces=toy_pieces(each)) for each in (run, ideal))
    finally:
        unregister("plain")
    assert real["rounds with a real protocol"] == 4
    assert real["final accuracy"] == clear["final accuracy"]


def test_a_protocol_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameters, match=r"there is no protocol 'pairwise2'; did you mean pairwise\?"):
        Configuration(secagg=SumSettings(protocol="pairwise2"))


@pytest.mark.parametrize(
    ("protocol", "setting", "message"),
    [
        ("pairwise", "depth=1", "pairwise has no setting 'depth'; there are mode, topology"),
        ("enclave", "form=round", "secagg.settings form must be one of "),
        ("two-servers", "is_checked", "secagg.settings must be name=value"),
    ],
)
def test_a_setting_that_a_protocol_does_not_have_is_refused(protocol: str, setting: str, message: str) -> None:
    run = configuration(protocol, SCALAR, sums={"settings": (setting,)})
    with pytest.raises(InvalidParameters, match=message):
        require_feasible(run, codecs(run).codec, available=8)


def test_a_stage_that_a_protocol_does_not_have_is_refused() -> None:
    run = configuration("enclave", SCALAR, dropouts=DropoutSettings(rate=0.1, stages=("share keys",)))
    with pytest.raises(InvalidParameters, match="'share keys'; the stages of enclave are sealed upload"):
        secure_sum(run)


@pytest.mark.parametrize("weighting", [Weighting.EXAMPLES, Weighting.AFTER])
@pytest.mark.parametrize(("protocol", "compression"), [CASES[0], ("two-servers", SCALAR)])
def test_a_mean_is_weighted_by_examples_whenever_these_multiply(
    protocol: str, compression: CompressionSettings, weighting: Weighting
) -> None:
    server = ServerSettings(weighting=weighting, maximum_weight=3)
    run = configuration(protocol, replace(compression, stochastic=compression.has_codes), server=server)
    made = codecs(run)
    due = everybody(made.codec)
    mean = made.decode(secure_sum(run).run(due, uploads(made, due)).aggregate)
    weights = [EXAMPLES[client % 3] for client in range(8)]
    for name, value in mean.items():
        exact = np.average([update(client)[name] for client in range(8)], axis=0, weights=weights)
        assert np.abs(value - exact).mean() < 0.002


@pytest.mark.parametrize("compression", [PRODUCT, CompressionSettings(scheme=Scheme.PEAK)])
def test_votes_have_no_weights(compression: CompressionSettings) -> None:
    for weighting in (Weighting.EXAMPLES, Weighting.AFTER):
        with pytest.raises(InvalidParameters, match=r"count once: set server\.weighting = 'equal'"):
            configuration("enclave", compression, server=ServerSettings(weighting=weighting))


def test_weights_before_rounding_need_random_rounding() -> None:
    made = codecs_of(configuration("pairwise", SCALAR, server=ServerSettings(weighting=Weighting.EXAMPLES)))
    made.decode(clear_sum(made, made.begin(0, lambda: update(0)).update))
    with pytest.raises(InvalidParameters, match="round at random"):
        made.begin(1, lambda: update(0))


class WrongSum:
    """Adds one client's payload twice."""

    def __init__(self, ideal: IdealSum) -> None:
        self._ideal = ideal

    def run(self, due: SumRound, uploads: Iterable[Upload], received: Callable[[Payload], None]) -> SumOutcome:
        all_of_them = list(uploads)
        for _, payload in all_of_them:
            received(payload)
        return self._ideal.run(due, [all_of_them[0], *all_of_them[:-1]])


def test_a_protocol_whose_sum_is_wrong_is_found_out() -> None:
    run = configuration("pairwise", SCALAR)
    made, ideal = codecs(run), IdealSum(8)
    due = everybody(made.codec)
    with pytest.raises(InternalError, match="not the sum of the updates"):
        CheckedSum(WrongSum(ideal).run, ideal).run(due, uploads(made, due))


@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "one-message"])
@pytest.mark.parametrize("calibration", [None, Source.PUBLIC])
def test_a_sum_that_is_rounded_is_near_the_one_in_the_clear(protocol: str, calibration: Source | None) -> None:
    run = configuration(protocol, replace(DITHERED, calibration=calibration))
    made, ideal = codecs(run), IdealSum(run.most_uploads)
    due = everybody(made.codec)
    real, clear = secure_sum(run).run(due, uploads(made, due)), ideal.run(due, uploads(made, due))
    exact = ideal_aggregate(due.codec.layout, [payload for _, payload in uploads(made, due)])
    (segment,) = (one for one in due.codec.layout.require_rings() if one.fine_bits)
    at = due.codec.layout.segments.index(segment)
    for outcome in (real, clear):
        require_rounded(outcome.aggregate, exact)
        errors = segment.ring.lift(segment.ring.subtract(outcome.aggregate.values[at], exact.values[at]))
        assert errors.std() == pytest.approx((8 / 12) ** 0.5 * 256, rel=0.25)
    again = ideal.run(due, uploads(made, due)).aggregate
    assert again.encode() == clear.aggregate.encode()


def test_a_rounded_sum_that_is_wrong_is_found_out() -> None:
    run = configuration("pairwise", replace(DITHERED, bits=6))
    made, ideal = codecs(run), IdealSum(8)
    due = everybody(made.codec)
    many = [
        (client, made.encode(update(1) if client % 2 else update(client), SystemCoins())) for client in due.uploaders
    ]
    with pytest.raises(InternalError, match="more than rounding"):
        CheckedSum(WrongSum(ideal).run, ideal).run(due, iter(many))


def test_a_protocol_that_counts_others_is_found_out() -> None:
    run = configuration("pairwise", SCALAR)
    made, ideal = codecs(run), IdealSum(8)
    due = everybody(made.codec)
    outcome = ideal.run(due, uploads(made, due))
    fewer = ideal.run(due, list(uploads(made, due))[:-1])
    with pytest.raises(InternalError, match="instead of"):
        require_equal(made.codec, fewer.aggregate, outcome.aggregate)


def test_a_protocol_runs_in_every_so_many_rounds() -> None:
    run = configuration("enclave", PRODUCT, sums={"every": 3})
    made, added = codecs(run), secure_sum(run)
    real = list[bool]()
    for number in range(6):
        due = everybody(made.codec, number)
        # Training never gives the same update twice, and an enclave's client refuses to seal one twice.
        different = [(client, made.encode(update(100 * number + client), SystemCoins())) for client in due.uploaders]
        real.append(added.run(due, different).is_real)
    assert real == [True, False, False, True, False, False]


@pytest.mark.parametrize("mode", SumMode)
def test_too_many_lost_clients_release_nothing_in_either_mode(mode: SumMode) -> None:
    run = configuration("enclave", PRODUCT)
    run = replace(run, secagg=replace(run.secagg, mode=mode))
    made = codecs(run)
    due = SumRound(
        number=0,
        codec=made.codec,
        clients=tuple(range(8)),
        uploaders=(6, 7),
        lost={"sealed upload": frozenset(range(6))},
    )
    with pytest.raises(ThresholdNotMet):
        secure_sum(run).run(due, uploads(made, due))


def test_a_session_that_cannot_be_safe_is_refused_before_it_begins() -> None:
    run = configuration("pairwise", SCALAR, dropouts=DropoutSettings(rate=0.2))
    with pytest.raises(InvalidParameters, match="plan for fewer"):
        require_feasible(run, codecs(run).codec, available=8)
    require_feasible(replace(run, secagg=replace(run.secagg, mode=SumMode.IDEAL)), codecs(run).codec, available=8)


def test_losses_are_drawn_at_the_rate_and_at_each_stage() -> None:
    clients, stages = list(range(20_000)), STAGES["pairwise"]
    lost = sampled_losses(clients, 0.1, stages, np.random.default_rng(0))
    assert sum(map(len, lost.values())) == pytest.approx(2000, rel=0.1)
    assert all(len(some) == pytest.approx(2000 / len(stages), rel=0.2) for some in lost.values())
    assert not sampled_losses(clients, 0.0, stages, np.random.default_rng(0))


def test_a_session_is_planned_for_more_losses_than_are_expected() -> None:
    run = Configuration(clients_per_round=100, dropouts=DropoutSettings(rate=0.1, stages=("advertise keys",)))
    assert Cohorts.of(run).planned_losses == (16, 0)
    assert Cohorts.of(run).minimum == 84


def test_by_default_clients_are_lost_before_the_upload_and_at_the_end() -> None:
    assert set(Cohorts.of(Configuration()).places) == {"masked input", "unmasking"}
    assert Cohorts.of(Configuration(secagg=SumSettings(protocol="enclave"))).places == ("sealed upload",)


@pytest.mark.parametrize("compression", [CompressionSettings(), SCALAR, PRUNING, PRODUCT, replace(PRODUCT, stages=2)])
def test_the_sum_in_the_clear_is_the_one_that_the_contract_defines(compression: CompressionSettings) -> None:
    made = codecs(Configuration(compression=compression, secagg=SumSettings(protocol="enclave")))
    payloads = [made.encode(update(number), SystemCoins()) for number in range(3)]
    clear = ClearSum(made.codec, 20)
    for payload in payloads:
        clear.add(payload)
    require_equal(made.codec, clear.finish(), ideal_aggregate(made.codec.layout, payloads))


def test_a_payload_of_another_codec_is_refused() -> None:
    made, other = codecs(Configuration(compression=SCALAR)), codecs(Configuration(compression=PRUNING))
    with pytest.raises(Misuse, match="a different layout"):
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
    # Of eight sums, 128 and -129 overflow [-128, 127]; a partial sum that overflows and returns does not count.
    meter, _ = metered([[127, -128, 127, -128], [1, -1, 0, 0], [0, 0, 0, 0]])
    assert meter.share == pytest.approx(2 / 288)
    meter, _ = metered([[100], [100], [-100]])
    assert meter.share == 0


def test_overflow_is_counted_as_the_papers_simulator_does_beside_it() -> None:
    # 100, then 200, which is one event and leaves 72 of 128, then -28; negative sums are not events.
    meter, _ = metered([[100, -100], [100, -100], [-100, -100]])
    assert meter.flsim_share == pytest.approx(1 / (288 * 3))


def test_nothing_is_metered_where_no_ring_is_narrow() -> None:
    made = codecs(Configuration(compression=PRUNING))
    assert not OverflowMeter(made.codec, 8).is_metering
