"""Noise of the enclave in a run: its cost, its presence, and settings that it excludes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.contract import Aggregate, Payload
from secagg.errors import CapacityExceeded, InternalError, InvalidParameters, SecAggError, ThresholdNotMet
from secagg.privacy.accounting import ReleasePart, epsilon
from secagg.privacy.kinds import NoiseKind
from secagg.training.clear_sums import SumRound, require_near
from secagg.training.codec import Operators
from secagg.training.configuration import Configuration
from secagg.training.driver import train
from secagg.training.parts import Cohorts
from secagg.training.records import read_records
from secagg.training.rounds import Pieces, Run
from secagg.training.sum_noise import ReleaseCount
from secagg.training.sums import secure_sum

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
NOISED = (
    "secagg.protocol=enclave",
    "secagg.mode=real",
    "local.clip=0.5",
    "privacy.noise_multiplier=2",
    "privacy.delta=1e-6",
)


OF_CLIENTS = (
    "secagg.mode=real",
    "local.clip=0.5",
    "privacy.noise_multiplier=2",
    "privacy.delta=1e-6",
    "compression.scheme=rotated",
    "compression.modulus_bits=20",
)
PUBLIC = ("compression.scheme=pq", "compression.calibration=public")


def spent(releases: int, multiplier: int = 2) -> float:
    """Return the privacy loss of several releases of a Gaussian with this multiple of the sensitivity."""
    one = ReleasePart(l2_squared=10**12, l1=None, variance=Fraction(multiplier**2 * 10**12))
    return epsilon(NoiseKind.DISCRETE_GAUSSIAN, [one], releases, 1e-6)


def most_rounds(run: Configuration, rounds: int) -> int:
    count, cohorts = Counter[int](), Cohorts.of(run)
    for number in range(rounds):
        clients = cohorts.invited(16, number)[: run.clients_per_round]
        count.update(cohorts.uploaders(clients, cohorts.lost(clients, number)))
    return max(count.values())


@pytest.mark.parametrize(
    "changes",
    [
        (*NOISED, "dropouts.rate=0.05"),
        (*NOISED, "dropouts.rate=0.05", "compression.scheme=pruning", "compression.sparsity=0.5"),
        (*NOISED, "dropouts.rate=0.05", *PUBLIC),
        (*NOISED, "secagg.protocol=two-servers", *PUBLIC),
        *(
            (*OF_CLIENTS, f"secagg.protocol={protocol}", f"secagg.mode={mode}")
            for protocol in ("pairwise", "one-message")
            for mode in ("real", "ideal")
        ),
    ],
)
def test_epsilon_is_that_of_the_client_that_was_in_most_rounds(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...]
) -> None:
    run = toy_run(*changes)
    summary = train(run, tmp_path, pieces=toy_pieces(run))
    found = [record.epsilon for record in read_records(tmp_path)]
    due = [spent(most_rounds(run, rounds)) for rounds in range(1, 5)]
    assert found == pytest.approx(due, rel=1e-3 if "secagg.protocol=two-servers" in changes else 1e-6)
    assert summary["epsilon"] == found[-1]
    assert due[-1] > due[0]


def test_a_resumed_run_has_not_forgotten_what_was_spent(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run(*NOISED)
    played = Run(run, toy_pieces(run))
    for _ in range(3):
        played.advance()
    resumed = Run(run, toy_pieces(run))
    resumed.restore(played.checkpoint())
    record = resumed.advance()
    assert record.epsilon == pytest.approx(spent(most_rounds(run, 4)), rel=1e-6)


@pytest.mark.parametrize("changes", [NOISED, *((*OF_CLIENTS, f"secagg.mode={mode}") for mode in ("real", "ideal"))])
def test_the_noise_has_the_size_that_was_asked_for(toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...]) -> None:
    # One client's clipped update can become its opposite, which is twice the clip; the mean is over 6 clients.
    run = toy_run(*changes, "local.rate=1e-12")
    played = Run(run, toy_pieces(run))
    before = {name: value.copy() for name, value in played.parameters.items()}
    played.advance()
    moved = np.concatenate([(played.parameters[name] - before[name]).ravel() for name in before])
    assert moved.std() == pytest.approx(2 * 2 * 0.5 / 6, rel=0.25)


def test_smaller_neighbourhoods_need_half_of_the_noise(toy_run: Make) -> None:
    deviations = list[float]()
    for changes in ((), ("privacy.zero_out=true",)):
        run = toy_run(*NOISED, *changes)
        codec = Operators(run.compression, {"w": (3, 4), "b": (3,)}, bytes(32), 6).planned()
        clients = tuple(range(6))
        due = SumRound(number=0, codec=codec, clients=clients, uploaders=clients)
        uploads = [(client, Payload(codec.layout, (np.zeros(15, dtype=np.uint32),))) for client in clients]
        deviations.append(secure_sum(run).run(due, uploads).deviations[0])
    assert deviations[0] == pytest.approx(2 * deviations[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("secagg.protocol=two-servers", "secagg.mode=ideal"), "two-servers itself would add the noise"),
        (("secagg.mode=ideal",), "set secagg.mode = 'real'"),
        (("secagg.protocol=pairwise", "compression.scheme=rotated"), "8 bits are too few for a sum of 6 updates"),
        (("secagg.protocol=pairwise", "privacy.epsilon=0.1"), "would have spent epsilon"),
        (("secagg.protocol=pairwise", "privacy.epsilon=0.1", "secagg.mode=ideal"), "would have spent epsilon"),
        (("secagg.every=2",), "secagg.every = 1"),
        (("local.clip=",), "set local.clip"),
        (("server.weighting=examples",), "server.weighting = 'equal'"),
        (('secagg.settings=["form=histogram"]', "compression.scheme=pq", "compression.calibration=public"), "decoded"),
        (("compression.scheme=sq",), "'pq', 'pruning' or 'none'"),
        (("compression.scheme=peak",), "lengths next to a whole update would drown"),
        (("compression.scheme=pq",), "calibration = 'public'"),
        (("privacy.epsilon=1",), "would spend epsilon"),
    ],
)
def test_what_noise_does_not_go_with_is_refused_before_anything_is_trained(
    toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...], message: str
) -> None:
    run = toy_run(*NOISED, *changes)
    with pytest.raises(InvalidParameters, match=message):
        train(run, pieces=toy_pieces(run))


def test_a_ring_that_the_noise_could_leave_is_refused(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run(*NOISED, "privacy.noise_multiplier=500")
    with pytest.raises(CapacityExceeded, match=r"set noise_multiplier = \d+"):
        train(run, pieces=toy_pieces(run))


def test_a_run_within_its_limit_is_trained(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run(*NOISED, f"privacy.epsilon={1.01 * spent(4)}")
    assert train(run, pieces=toy_pieces(run))["epsilon"] <= 1.01 * spent(4)


def test_a_sum_beyond_its_noise_is_found_out(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run(*NOISED)
    played = Run(run, toy_pieces(run))
    codec = played.operators.begin(0, dict[str, Any]).update
    (segment,) = codec.layout.require_rings()
    ring, size = segment.ring, segment.length
    aggregate, other = (
        Aggregate(codec.layout, (ring.from_integers(np.full(size, value, dtype=np.int64)),), 6) for value in (0, 99)
    )
    require_near(aggregate, other, [9.9])
    with pytest.raises(InternalError, match="more than its noise"):
        require_near(aggregate, other, [9.0])


def test_rounds_are_counted_with_those_who_are_about_to_be_in_one() -> None:
    run = Configuration(rounds=2, clients_per_round=2)
    count = ReleaseCount(Cohorts.of(run), 50)
    count.add((1, 2))
    count.add((2, 3))
    assert (count.most, count.most_with((1, 2)), count.most_with((7,)), count.most_with(())) == (2, 3, 2, 2)


def test_an_unrotated_update_has_noise_for_each_of_its_segments(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run(*OF_CLIENTS[:-2], "secagg.protocol=pairwise")
    assert Run(run, toy_pieces(run)).advance().epsilon == pytest.approx(spent(1), rel=1e-6)


def test_a_sum_of_fewer_than_shares_were_drawn_for_is_not_released(toy_run: Make, toy_pieces: Pieced) -> None:
    """The protocol's setting determines the number; the sum in the clear must respect it, or epsilon would be wrong."""
    settings = 'secagg.settings=["minimum_cohort=6"]'
    run = toy_run(*OF_CLIENTS, "secagg.protocol=pairwise", "secagg.mode=ideal", "dropouts.rate=0.4", settings)
    played = Run(run, toy_pieces(run))
    codec = played.operators.begin(0, dict[str, Any]).update
    (segment,) = codec.layout.require_rings()
    for count in (5, 6):
        due = SumRound(number=0, codec=codec, clients=tuple(range(6)), uploaders=tuple(range(count)))
        uploads = [(client, Payload(codec.layout, (segment.ring.zeros(segment.length),))) for client in range(count)]
        if count == 6:
            assert secure_sum(run).run(due, uploads).epsilon is not None
            continue
        with pytest.raises(ThresholdNotMet):
            secure_sum(run).run(due, uploads)


def test_clients_of_a_run_keep_to_its_limit_themselves(
    toy_run: Make, toy_pieces: Pieced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds even if nothing counted the rounds beforehand."""

    def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr("secagg.training.sums.require_budget", nothing)
    run = toy_run(*OF_CLIENTS, "secagg.protocol=pairwise", f"privacy.epsilon={1.01 * spent(1)}", "clients_per_round=16")
    played = Run(run, toy_pieces(run))
    played.advance()
    with pytest.raises(SecAggError):
        played.advance()


@pytest.mark.parametrize("mode", ["real", "ideal"])
@pytest.mark.parametrize("multiplier", [0, 2])
@pytest.mark.parametrize("setting", ["noise_multiplier=1/100", "l2_bounds=1", "adjacency=zero-out", "is_rotated=no"])
def test_noise_is_said_once(toy_run: Make, mode: str, multiplier: int, setting: str) -> None:
    """Outside the section privacy it would be added and not accounted, or accounted and not added."""
    run = toy_run(
        *OF_CLIENTS,
        f"secagg.mode={mode}",
        "secagg.protocol=pairwise",
        f"privacy.noise_multiplier={multiplier}",
        f'secagg.settings=["{setting}"]',
    )
    with pytest.raises(InvalidParameters, match="set privacy"):
        secure_sum(run)


def test_rotated_steps_need_a_clip(toy_run: Make) -> None:
    with pytest.raises(InvalidParameters, match="set local"):
        toy_run("compression.scheme=rotated")
