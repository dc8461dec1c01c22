"""Attacks in the driver: the attackers, their updates, and the bounds on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from secagg.contract import ideal_aggregate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.codec import WholeUpdates
from secagg.training.configuration import (
    AttackKind,
    AttackSettings,
    CompressionSettings,
    Configuration,
    Lengths,
    Scheme,
)
from secagg.training.driver import train
from secagg.training.parts import Assignment, Examples, TrainedClient
from secagg.training.presets import preset
from secagg.training.rounds import Attack, Pieces, Run

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
LABELS = [0, 1, 2, 4]


@dataclass(frozen=True)
class Labels:
    """Data for which only the largest label matters."""

    name: str = "labels"

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return np.ones(10, dtype=np.int64)

    def client(self, number: int) -> Examples:
        return Examples(torch.full((4, 1), float(number)), torch.tensor(LABELS))

    def test(self) -> Examples:
        return self.client(0)

    def test_clients(self) -> npt.NDArray[np.int64] | None:
        return None


def work(count: int = 10) -> list[Assignment]:
    return [Assignment(client=at, examples=Labels().client(at), seed=(0, 4, 0, at)) for at in range(count)]


def labels_of(one: Assignment) -> list[int]:
    return [int(label) for label in one.examples.targets]


def trained(client: int) -> TrainedClient:
    return TrainedClient(client=client, update={"weight": np.array([client, 1.0], np.float32)}, examples=4, loss=0.5)


def told(some: Sequence[Assignment]) -> Iterator[TrainedClient]:
    """Train in another order than requested."""
    return (trained(one.client) for one in reversed(some))


def attack(kind: AttackKind, share: float = 0.4) -> Attack:
    made = Attack.of(AttackSettings(kind=kind, share=share), work(), Labels())
    made.prepare(told)
    return made


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (AttackKind.SIGN_FLIP, [-3.0, -1.0]),
        (AttackKind.FLIP_TENFOLD, [-30.0, -10.0]),
        (AttackKind.SCALE_TENFOLD, [30.0, 10.0]),
        # The mean of 0, 1, 2 and 3 is 1.5, and the standard deviation the root of 1.25.
        (AttackKind.INSIDE_SPREAD, [1.5 - 1.5 * 1.25**0.5, 1.0]),
        (AttackKind.LABEL_FLIP, [3.0, 1.0]),
    ],
)
def test_attackers_send_what_the_attack_says_and_others_what_they_trained(kind: AttackKind, sent: list[float]) -> None:
    made = attack(kind)
    assert made.attackers == {0, 1, 2, 3}
    assert made.forged(trained(3)).update["weight"].tolist() == pytest.approx(sent)
    assert made.forged(trained(3)).update["weight"].dtype == np.float32
    assert made.forged(trained(7)).update["weight"].tolist() == [7.0, 1.0]


def test_those_who_flip_labels_train_on_the_labels_turned_round_and_nobody_else_does() -> None:
    made = attack(AttackKind.LABEL_FLIP)
    assert [one.client for one in made.work] == list(range(10))
    assert labels_of(made.work[0]) == [4, 3, 2, 0]
    assert labels_of(made.work[9]) == LABELS
    assert all(labels_of(one) == LABELS for one in attack(AttackKind.SIGN_FLIP).work)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.04, 0), (0.06, 1), (0.2, 2), (1.0, 10)])
def test_a_share_is_rounded_to_whole_clients(share: float, count: int) -> None:
    assert len(attack(AttackKind.SIGN_FLIP, share).attackers) == count


def test_an_attack_on_rings_shows_and_a_run_without_one_is_what_it_was(toy_run: Make, toy_pieces: Pieced) -> None:
    found = dict[str, float]()
    for kind in ("none", "flip-x10"):
        run = toy_run("rounds=8", f"attack.kind={kind}", "attack.share=0.34")
        found[kind] = train(run, pieces=toy_pieces(run))["final accuracy"]
    plain = toy_run("rounds=8")
    assert train(plain, pieces=toy_pieces(plain))["final accuracy"] == found["none"]
    assert found["none"] > 0.8
    assert found["flip-x10"] < 0.5


@pytest.mark.parametrize("kind", ["inside-spread", "label-flip"])
def test_an_attack_that_trains_before_the_round_runs_and_repeats(toy_run: Make, toy_pieces: Pieced, kind: str) -> None:
    models = list[Any]()
    for _ in range(2):
        run = toy_run("compression.scheme=peak", "secagg.protocol=enclave", f"attack.kind={kind}", "workers=2")
        played = Run(run, toy_pieces(run))
        for _ in range(2):
            played.advance()
        models.append(played.parameters)
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def told_lengths(lengths: Lengths | None, scales: list[float], rounds: int = 8, length: float = 1.0) -> list[float]:
    """Return the length of each round's decoded mean, if clients send one direction times these numbers."""
    settings = CompressionSettings(scheme=Scheme.PEAK, places=2, refresh=100, lengths=lengths, length=length)
    codecs = WholeUpdates(settings=settings, shapes={"w": (64,)}, seed=bytes(32), most_uploads=20, cohort=len(scales))
    found = list[float]()
    for number in range(rounds):
        drawn = np.random.default_rng(number).standard_normal(64).astype(np.float32)
        direction: Mapping[str, Any] = {"w": drawn / np.linalg.norm(drawn)}
        codec = codecs.begin(number, dict)
        coins = InsecureSeededCoins(bytes([number]))
        payloads = [codecs.encode({"w": direction["w"] * np.float32(scale)}, coins) for scale in scales]
        decoded = codecs.decode(ideal_aggregate(codec.update.layout, payloads))
        found.append(float(np.linalg.norm(decoded["w"])))
    return found


@pytest.mark.parametrize("attackers", [1, 4, 9])
@pytest.mark.parametrize("factor", [10.0, 1e6, 1e-6])
def test_fewer_than_half_of_the_clients_do_not_move_the_median_length(attackers: int, factor: float) -> None:
    spread = np.linspace(0.9, 1.1, 20 - attackers).tolist()
    honest = told_lengths(Lengths.MEDIAN, spread)
    attacked = told_lengths(Lengths.MEDIAN, [*spread, *[factor] * attackers])
    assert all(0.8 < mine / other < 1.25 for mine, other in zip(attacked, honest, strict=True))


def test_a_mean_of_lengths_is_moved_by_a_fifth_of_the_clients() -> None:
    """The reason for the median: the mean of levels is bounded in one round, but creeps over the rounds."""
    spread = [1.0] * 16
    attacked = told_lengths(Lengths.OWN, [*spread, *[10.0] * 4])
    assert attacked[-1] / told_lengths(Lengths.OWN, spread)[-1] > 2


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_fixed_length_is_nobodys(scale: float) -> None:
    found = told_lengths(Lengths.FIXED, [scale] * 4, length=3.0)
    assert found == pytest.approx(told_lengths(Lengths.FIXED, [1.0] * 4, length=3.0))
    assert 1.5 < np.mean(found) < 6


def test_twice_the_median_between_two_levels_is_their_geometric_middle() -> None:
    assert told_lengths(Lengths.MEDIAN, [0.5, 2.0])[-1] == pytest.approx(
        told_lengths(Lengths.MEDIAN, [1.0, 1.0])[-1], rel=0.05
    )


def test_whoever_takes_the_peak_code_takes_the_median_of_lengths_unless_they_say_otherwise(toy_run: Make) -> None:
    usual = toy_run("compression.scheme=peak", "secagg.protocol=enclave")
    assert usual.compression.lengths is None
    assert usual.compression.told is Lengths.MEDIAN
    chosen = toy_run("compression.scheme=peak", "secagg.protocol=enclave", "compression.lengths=own")
    assert chosen.compression.told is Lengths.OWN
    assert preset("fashion-peak").compression.told is Lengths.MEDIAN
