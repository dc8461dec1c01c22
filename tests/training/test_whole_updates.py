"""Codecs of the whole update: rounds through real protocols, resumed runs, lengths, and custom schemes."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.cli import main
from secagg.compression.custom import custom_factory
from secagg.compression.model_update import decode_parameters, encode_parameters
from secagg.compression.peak import PeakCode
from secagg.conformance import LAWS, Candidate
from secagg.contract import ideal_aggregate
from secagg.errors import InvalidParameters, MalformedMessage
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.codec import WholeUpdates
from secagg.training.configuration import (
    CompressionSettings,
    Configuration,
    Lengths,
    Rate,
    Scheme,
    changed,
    from_tree,
    to_tree,
)
from secagg.training.driver import MODEL_NAME, Progress, train
from secagg.training.engines import Probe
from secagg.training.presets import preset
from secagg.training.records import RoundRecord, read_records, summarise
from secagg.training.rounds import Pieces, Run, falling_rate
from tests.harness.tutorial import tutorial_commands, tutorial_scheme

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
SHAPES = {"embedding": (40, 10), "weight": (10, 5), "bias": (5,)}
SIDES = {"embedding": 1e-4, "weight": 0.02, "bias": 0.5}


def settings(scheme: Scheme = Scheme.PEAK, **changes: Any) -> CompressionSettings:
    given: dict[str, Any] = {"scheme": scheme, "bits": 1, "refresh": 3}
    return CompressionSettings(**(given | changes))


def made(chosen: CompressionSettings, cohort: int = 20) -> WholeUpdates:
    return WholeUpdates(settings=chosen, shapes=SHAPES, seed=bytes(32), most_uploads=cohort, cohort=cohort)


def updates(count: int, number: int = 0, size: float = 1.0, sides: Mapping[str, float] = SIDES) -> list[dict[str, Any]]:
    drawn = np.random.default_rng(number)
    return [
        {name: (size * sides[name] * drawn.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(count)
    ]


def play(codecs: WholeUpdates, number: int, some: list[dict[str, Any]]) -> Mapping[str, Any]:
    codec = codecs.begin(number, lambda: pytest.fail("nobody is asked for an update in the clear"))
    assert codec.is_compressed
    payloads = [codecs.encode(update, InsecureSeededCoins(bytes([at]))) for at, update in enumerate(some)]
    return codecs.decode(ideal_aggregate(codec.update.layout, payloads))


def no_sample() -> Any:
    return pytest.fail("nobody is asked for an update in the clear")


@pytest.mark.parametrize("scheme", [Scheme.PEAK, Scheme.SKETCH])
@pytest.mark.parametrize("lengths", [Lengths.OWN, Lengths.MEDIAN, Lengths.FIXED])
def test_a_mean_is_unbiased_from_the_first_round_on(scheme: Scheme, lengths: Lengths) -> None:
    """Rounds over the same updates: their decoded mean has the direction and length of the true mean."""
    some, rounds = updates(20, sides={"embedding": 0.01, "weight": 0.02, "bias": 0.03}), 60
    length = float(np.mean([np.linalg.norm(np.concatenate([part.ravel() for part in one.values()])) for one in some]))
    codecs = made(settings(scheme, lengths=lengths, length=length))
    true = {name: np.mean([update[name] for update in some], axis=0, dtype=np.float64) for name in SHAPES}
    along = 0.0
    for number in range(rounds):
        decoded = play(codecs, number, some)
        along += sum(float((decoded[name] * mean).sum()) for name, mean in true.items()) / rounds
    assert abs(along / sum(float(np.square(mean).sum()) for mean in true.values()) - 1) < 0.1


def test_square_root_scales_follow_from_what_clients_told_in_the_rounds_before() -> None:
    codecs, some = made(settings()), updates(20)
    first = codecs.begin(0, no_sample).update.tensors[0].scheme
    play(codecs, 0, some)
    second = codecs.begin(1, no_sample).update.tensors[0].scheme
    assert isinstance(first, PeakCode)
    assert isinstance(second, PeakCode)
    assert first.rotation.scales == (1.0, 1.0, 1.0)
    # The minimum, one thousandth of the mean, is above the embedding's size.
    expected = [math.sqrt(max(side, 1e-3 * sum(SIDES.values()) / 3)) for side in SIDES.values()]
    assert second.rotation.scales == pytest.approx(expected, rel=0.2)


def test_clients_tell_of_each_tensor_only_where_scales_are_refreshed() -> None:
    codecs, some = made(settings(refresh=3)), updates(20)
    told = list[int]()
    for number in range(7):
        play(codecs, number, some)
        told.append(codecs.codec.tensors[1].shape[0])
    assert told == [4, 1, 1, 4, 1, 1, 4]


def test_a_first_round_that_failed_leaves_the_next_one_to_tell() -> None:
    codecs, some = made(settings(refresh=100, lengths=Lengths.OWN)), updates(20)
    codecs.begin(0, no_sample)
    for number in (1, 2, 3):
        found = play(codecs, number, some)
        assert np.isfinite(found["bias"]).all()
    assert codecs.codec.tensors[1].shape == (1, 1)
    scheme = codecs.codec.tensors[0].scheme
    assert isinstance(scheme, PeakCode)
    joined = [np.concatenate([update[name].reshape(-1) for name in SHAPES]) for update in some]
    expected = float(np.mean([scheme.rotation.norm(vector) for vector in joined]))
    assert float(codecs.state()["common"][0]) == pytest.approx(expected, rel=0.05)


def test_one_client_cannot_scale_the_model() -> None:
    """The last client's update is 10^6 times as long as the others'; with indices, only its levels show it."""
    codecs, some = made(settings(lengths=Lengths.OWN, refresh=10)), updates(20)
    play(codecs, 0, some)
    play(codecs, 1, some)
    honest = made(settings(lengths=Lengths.OWN, refresh=10))
    honest.restore(codecs.state())
    long = {name: value * np.float32(1e6) for name, value in some[-1].items()}
    plain, attacked = play(honest, 2, some), play(codecs, 2, [*some[:-1], long])
    ratio = float(np.linalg.norm(attacked["bias"]) / np.linalg.norm(plain["bias"]))
    assert ratio <= 1 + 4 / 20 + 0.02


@pytest.mark.parametrize(
    "changes",
    [
        ("compression.scheme=peak", "secagg.protocol=enclave"),
        ("compression.scheme=peak", "secagg.protocol=two-servers"),
        ("compression.scheme=peak", "secagg.protocol=two-servers", 'secagg.settings=["is_checked=no"]'),
        ("compression.scheme=sketch", "compression.lengths=fixed", "compression.bits=1", "secagg.protocol=pairwise"),
        (
            "compression.scheme=sketch",
            "compression.lengths=median",
            "compression.bits=2",
            "secagg.protocol=two-servers",
        ),
        ("compression.scheme=peak", "compression.lengths=voted", "secagg.protocol=enclave"),
        ("rounds=7", "compression.scheme=peak", "compression.rate=auto", "secagg.protocol=enclave"),
    ],
)
def test_real_protocols_give_the_sum(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...]
) -> None:
    """Every sum of a real protocol is compared with the one in the clear."""
    run = toy_run("rounds=2", "secagg.mode=real", *changes)
    found = train(run, tmp_path / "run", pieces=toy_pieces(run))
    assert found["rounds with a real protocol"] == run.rounds
    assert all(record.is_compressed for record in read_records(tmp_path / "run"))


def models(folder: Path) -> dict[str, Any]:
    with np.load(folder / MODEL_NAME) as stored:
        return {name: stored[name] for name in stored.files}


def test_a_falling_rate_falls_over_the_last_share() -> None:
    assert [falling_rate(0.5, number, 10) for number in (1, 5, 6, 9, 10)] == pytest.approx([1, 1, 0.8, 0.2, 0.05])
    assert falling_rate(0.0, 10, 10) == 1.0


def test_an_average_is_what_is_tested_and_kept(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> None:
    plain, averaged = toy_run("rounds=3"), toy_run("rounds=3", "server.averaged=3")
    for name, run in (("plain", plain), ("averaged", averaged)):
        train(run, tmp_path / name, pieces=toy_pieces(run))
    apart = Run(averaged, toy_pieces(averaged))
    kept: dict[str, Any] | None = None
    for number in range(3):
        apart.advance()
        share = np.float32(min(1 - 1 / 3, (number + 1) / (number + 10)))
        kept = {
            name: share * (value if kept is None else kept[name]) + (1 - share) * value
            for name, value in apart.parameters.items()
        }
    assert kept is not None
    for name, value in models(tmp_path / "averaged").items():
        assert np.allclose(value, kept[name], atol=1e-6)
        # Training does not use the average.
        assert np.array_equal(models(tmp_path / "plain")[name], apart.parameters[name])


TOLD = [
    (Scheme.PEAK, Lengths.MEDIAN, 4.0),
    (Scheme.PEAK, Lengths.OWN, 4.0),
    (Scheme.SKETCH, Lengths.MEDIAN, 4.0),
    (Scheme.SKETCH, Lengths.OWN, 2.0**11 / 20),
]


@pytest.mark.parametrize(("scheme", "lengths", "longest"), TOLD)
def test_lengths_beyond_what_can_be_told_are_said_and_others_are_not(
    scheme: Scheme, lengths: Lengths, longest: float
) -> None:
    codecs = made(settings(scheme, lengths=lengths))
    said = list[str | None]()
    for number, size in enumerate((0.1, 0.1, 0.05, 0.12, 0.12 * longest * 1.5, 0.12 * longest * 1.5)):
        play(codecs, number, updates(20, number, size))
        said.append(codecs.warning)
    assert said[:4] == [None] * 4
    assert said[4] is not None
    assert f"can report, {longest:.3g} times those of the rounds before" in said[4]
    assert said[5] is None, "lengths have caught up"


def test_lengths_that_differ_are_said_and_voting_takes_no_part_of_the_mean() -> None:
    """Half of the clients hardly change: a mean of directions is half as long as it should be, with a warning."""
    sides = {"embedding": 0.01, "weight": 0.02, "bias": 0.03}
    some = [*updates(10, 1, sides=sides), *updates(10, 2, 0.01, sides)]
    true = {name: np.mean([update[name] for update in some], axis=0, dtype=np.float64) for name in SHAPES}
    squared = sum(float((mean**2).sum()) for mean in true.values())
    gains = dict[Lengths, float]()
    for lengths in (Lengths.OWN, Lengths.VOTED):
        codecs = made(settings(lengths=lengths, cohort_bits=20.0))
        played = [play(codecs, number, some) for number in range(50)][1:]
        along = [sum(float((one[name] * mean).sum()) for name, mean in true.items()) / squared for one in played]
        gains[lengths] = float(np.mean(along))
        assert codecs.warning is None, "where lengths are votes that are taken as such, and where they are not known"
    assert gains[Lengths.OWN] == pytest.approx(0.5, abs=0.1)
    assert gains[Lengths.VOTED] == pytest.approx(1.0, abs=0.1)
    told = made(settings(lengths=Lengths.MEDIAN))
    play(told, 0, some)
    assert told.warning is not None
    assert "compression.lengths = 'voted'" in told.warning


def test_noise_that_is_large_for_a_matrix_is_said_where_nobody_probes() -> None:
    codecs = made(settings())
    play(codecs, 0, updates(20))
    play(codecs, 1, updates(20))
    large, small = ({name: np.full(shape, size) for name, shape in SHAPES.items()} for size in (10.0, 1e-3))
    assert codecs.noise_warning(large) is None
    said = codecs.noise_warning(small)
    assert said is not None
    assert "squared length of weight" in said or "squared length of embedding" in said
    faster = codecs.noise_warning(small, 3.0)
    assert faster is not None
    share, wider = (float(sentence.split()[4]) for sentence in (said, faster))
    assert wider == pytest.approx(9 * share, rel=0.06)
    auto = made(settings(rate=Rate.AUTO))
    play(auto, 0, updates(20))
    assert auto.noise_warning(small) is None


def test_losses_choose_the_bits(toy_run: Make, toy_pieces: Pieced) -> None:
    """A run with a low harm limit sends many bits, and one with a high limit few."""
    sent = dict[float, list[int]]()
    for harm in (1e-6, 1.0):
        chosen = toy_run(
            "rounds=8",
            "compression.scheme=peak",
            "compression.rate=auto",
            f"compression.harm={harm}",
            "secagg.protocol=enclave",
        )
        run = Run(chosen, toy_pieces(chosen))
        sent[harm] = [run.advance().payload_bytes for _ in range(8)]
    assert sent[1.0][5] == sent[1.0][4] + 12, "three losses in fixed point"
    assert sent[1e-6][7] > sent[1.0][7]


def test_losses_are_told_under_the_noise_that_falls_on_the_model(
    toy_run: Make, toy_pieces: Pieced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's rate scales a step and its noise equally."""
    runs, losses, scaled = list[Run](), Probe.losses, list[dict[str, Any]]()

    def listened(probe: Probe, parameters: Any, noise: dict[str, Any], *given: Any) -> Any:
        operators = runs[-1].operators
        assert isinstance(operators, WholeUpdates)
        scaled.append({name: noise[name] / deviation for name, deviation in operators.deviations().items()})
        return losses(probe, parameters, noise, *given)

    monkeypatch.setattr(Probe, "losses", listened)
    for rate in (1.0, 0.25):
        changes = ("compression.scheme=peak", "compression.rate=auto", "secagg.protocol=enclave")
        chosen = toy_run("rounds=6", *changes, f"server.rate={rate}")
        runs.append(Run(chosen, toy_pieces(chosen)))
        for _ in range(6):
            runs[-1].advance()
    for name, full in scaled[0].items():
        assert np.allclose(scaled[1][name], 0.25 * full, rtol=1e-4)


def test_a_first_round_that_is_too_long_is_said() -> None:
    codecs = made(settings())
    play(codecs, 0, updates(20, size=1e4))
    assert codecs.warning is not None
    assert "can report, 64, so" in codecs.warning


def test_a_run_says_it_once_where_somebody_looks(toy_run: Make, toy_pieces: Pieced) -> None:
    """Four rounds after one without changes: the known length is 10^9 times too short."""
    chosen = toy_run(
        "secagg.protocol=enclave", "compression.scheme=peak", "compression.places=4", "compression.refresh=1"
    )
    run = Run(chosen, toy_pieces(chosen))
    run.advance()
    known = run.operators.state()
    run.operators.restore({"common": known["common"] / 1e9, "norms": known["norms"] / 1e9})
    stream = io.StringIO()
    progress = Progress("toy", 4, stream=stream)
    records = [run.advance() for _ in range(3)]
    for record in records:
        progress.round_done(record)
    assert [record.warning is None for record in records] == [False] * 3
    assert stream.getvalue().count("clients' updates are longer than they can report") == 1
    assert "round 2: " in stream.getvalue()
    assert "compression.lengths = 'fixed' and compression.length" in stream.getvalue()
    assert summarise(records, parameters=run.values)["warning"] == records[0].warning
    assert RoundRecord.from_json(records[0].to_json()) == records[0]


def test_presets_send_what_their_names_promise() -> None:
    shapes = {"conv1.weight": (8, 1, 3, 3), "rest": (19_338 - 72,)}
    for name, factor in (("fashion-peak", 490), ("fashion-peak-falling", 850), ("fashion-sketch", 50)):
        run = preset(name)
        codecs = WholeUpdates(
            settings=run.compression, shapes=shapes, seed=bytes(32), most_uploads=20, cohort=run.clients_per_round
        )
        assert 19_338 * 4 / codecs.planned().tensors[0].scheme.layout.payload_bytes > factor


def test_the_scheme_of_the_tutorial_is_short_and_keeps_every_law(custom: str) -> None:
    assert len(tutorial_scheme().splitlines()) <= 60
    factory = custom_factory(custom)
    given: dict[str, Any] = {"values": 3, "cohort": 5, "seed": bytes(32), "epoch": 0}
    other: dict[str, Any] = {"values": 4, "cohort": 9, "seed": bytes(31) + b"1", "epoch": 1}
    candidate = Candidate(
        name="tutorial",
        make=lambda: factory(**given),
        updates=arrays(np.float32, 3, elements=st.floats(-0.25, 0.25, width=32)),
        error=0.25,
        extremes=[np.full(3, -0.25, np.float32), np.full(3, 0.25, np.float32)],
        others={key: partial(factory, **{**given, key: value}) for key, value in other.items()},
        stochastic=True,
        payload_bytes=2,
        tight_capacity=False,
    )
    for law in LAWS:
        law.check(candidate, settings_of_hypothesis(max_examples=10, deadline=None))


def test_a_scheme_in_a_file_trains_resumes_and_appears_in_figures(tmp_path: Path, custom: str) -> None:
    """Run the tutorial's commands as a new user would, with fewer rounds and clients."""
    run, figures = tmp_path / "run", tmp_path / "figures"
    changes = [
        *("clients_per_round=5", f"compression.scheme={custom}", "secagg.mode=real", "secagg.every=2"),
        *("checkpoint_every=1", "evaluation.every=2"),
    ]
    begun = ["train", "--preset", "fashion-none", "--out", str(run), *(f"--set={change}" for change in changes)]
    assert main([*begun, "--set=rounds=2"]) == 0
    assert main([*begun, "--set=rounds=3", "--resume"]) == 0
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["rounds"] == 3
    assert summary["factor"] == pytest.approx(32 / 4, rel=0.01)
    assert {"plot", "--resume", "compression.scheme=my_scheme.py:Ternary"} <= set(tutorial_commands().split())
    assert (run / "configuration.toml").read_text(encoding="utf-8").count("my_scheme.py:Ternary") == 1
    pytest.importorskip("matplotlib")
    assert main(["train", "plot", str(run), "--out", str(figures)]) == 0
    assert (figures / "accuracy-uplink.png").stat().st_size > 0


def test_what_a_custom_scheme_is_made_of_travels_and_comes_back(custom: str) -> None:
    update = made(settings(Scheme.CUSTOM, custom=custom)).planned()
    encoded = encode_parameters(update)
    assert decode_parameters(encoded, custom={custom: custom_factory(custom)}).layout == update.layout


def test_no_message_makes_anybody_import_a_scheme(custom: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode_parameters(made(settings(Scheme.CUSTOM, custom=custom)).planned())

    def refuse(name: str) -> None:
        pytest.fail(f"{name} was imported")

    monkeypatch.setattr("importlib.import_module", refuse)
    for known in ({}, {"mine.py:Ternary": custom_factory(custom)}):
        with pytest.raises(MalformedMessage, match=r"is custom, but this side has (none|mine\.py:Ternary)"):
            decode_parameters(encoded, custom=known)


def test_a_scheme_whose_ring_is_too_narrow_for_the_cohort_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    text = tutorial_scheme().replace("1 + self.cohort.bit_length()", "3")
    (tmp_path / "narrow.py").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidParameters, match="a capacity of 3, but a sum of this run may hold 20"):
        made(settings(Scheme.CUSTOM, custom=f"{tmp_path / 'narrow.py'}:Ternary"))


def test_a_custom_scheme_survives_a_file_of_settings(custom: str) -> None:
    run = changed(preset("fashion-none"), [f"compression.scheme={custom}"])
    assert run.compression.scheme is Scheme.CUSTOM
    assert from_tree(to_tree(run)) == run
    assert changed(run, ["compression.scheme=pruning", "compression.custom="]).compression.scheme is Scheme.PRUNING


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("no_such_module:Scheme", "cannot be imported"),
        ("no/such/file.py:Scheme", "cannot be imported"),
        ("json:Scheme", "cannot be imported"),
        ("json:__name__", "does not name a class or function"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name(named: str, message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        made(settings(Scheme.CUSTOM, custom=named))
