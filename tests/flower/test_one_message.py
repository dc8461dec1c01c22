"""One message per client in Flower: holders in separate processes, and missing settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secagg.flower as plugin
from secagg.compression.model_update.summed_values import value_bounds
from secagg.errors import InvalidParameters, ThresholdNotMet
from secagg.platforms.schemes import SchemeChoice
from secagg.platforms.settings import SecAggSettings
from secagg.session.sockets import HelperLost
from tests.flower.test_rounds_in_memory import CLIENTS, MODEL, MemoryGrid, adding, folders, grid_of, log, settings_of
from tests.harness.platform_keys import holding
from tests.harness.standing_holders import StandingHolders

__all__ = ["folders", "log"]
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
HOLDERS = 4


class Standing(StandingHolders):
    """Holders that the clients' authority names."""

    def __init__(self, folder: Path, count: int = HOLDERS, *more: str) -> None:
        corrupted = more[1] if more else "1"
        policy = ("--corrupted", corrupted, "--minimum-holders", str(count))
        super().__init__(folder, folder / "keys" / "authority.key", count, *more, serve=policy)

    def settings(self, **changes: Any) -> SecAggSettings:
        given = {
            "roster": str(self.folder / "keys" / "roster.txt"),
            "epoch": str(self.folder / "record"),
            "holders": ",".join(map(self.socket, range(self.count))),
            "stage_timeout": 20.0,
            **changes,
        }
        return SecAggSettings(protocol="one-message", **given)


@pytest.fixture
def standing(folders: Path, request: pytest.FixtureRequest) -> Iterator[Standing]:
    made = Standing(folders, *getattr(request, "param", ()))
    yield made
    made.end()


def mod(folder: Path, **policy: Any) -> plugin.SecAggMod:
    return plugin.SecAggMod(identity=str(folder / "keys"), allow_repeats=True, **policy)


def test_one_exchange_gives_the_mean_and_a_holder_may_be_gone(standing: Standing, log: Any) -> None:
    inner = MemoryGrid(mod(standing.folder), adding(0.125))
    grid = grid_of(inner, standing.settings(minimum_cohort=3))
    assert np.allclose(inner.round(grid, MODEL)[0]["w"], 0.375, atol=2**-16)
    standing.kill(2)
    other = {name: values + 1 for name, values in MODEL.items()}
    arrays, metrics = inner.round(grid, other)
    assert np.allclose(arrays["w"], 1.375, atol=2**-16)
    # Ten examples have the weight of a quarter of the full 1,024.
    assert metrics["num-examples"] == 256 * CLIENTS
    assert [name for name, _ in grid.stages] == ["upload"]
    assert len(inner.sent) == 2 * CLIENTS
    assert "holder/2 at " in log.text


def test_too_few_holders_are_named_and_the_sum_waits_until_they_are_reached(standing: Standing) -> None:
    inner = MemoryGrid(mod(standing.folder), adding(0.125))
    grid = grid_of(inner, standing.settings())
    sockets = [Path(standing.socket(number)) for number in (1, 3)]
    connected = list[int]()

    class ConnectsThem(logging.Handler):
        """An operator who reads the server's log."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.ERROR and not connected:
                assert "holder/1 at " in record.getMessage()
                assert "nothing is lost yet: connect them" in record.getMessage()
                connected.append(1)
                sockets[0].with_suffix(".away").rename(sockets[0])

    train = inner.train

    def parting(model: Any, node: int) -> dict[str, Any]:
        for socket in filter(Path.exists, sockets):
            if not connected:
                socket.rename(socket.with_suffix(".away"))
        return train(model, node)

    inner.train = parting
    operator = ConnectsThem()
    logging.getLogger("secagg.platforms").addHandler(operator)
    try:
        assert np.allclose(inner.round(grid, MODEL)[0]["w"], 0.375, atol=2**-16)
    finally:
        logging.getLogger("secagg.platforms").removeHandler(operator)
    assert connected == [1]


def test_holders_that_stay_away_are_named_and_nothing_is_released(standing: Standing, log: Any) -> None:
    inner = MemoryGrid(mod(standing.folder), adding(0.125))
    grid = grid_of(inner, standing.settings(stage_timeout=2.0))
    inner.round(grid, MODEL)
    other = {name: values + 1 for name, values in MODEL.items()}
    trained, train = list[int](), inner.train

    def killing(model: Any, node: int) -> dict[str, Any]:
        trained.append(node)
        for number in set(standing.processes) & {0, 3}:
            standing.kill(number)
        return train(model, node)

    inner.train = killing
    lacking = r"holders: 3 needed, got 2 of 4; a sum survives the loss of 1 \(missing: holder/0, holder/3\)"
    with pytest.raises(ThresholdNotMet, match=lacking):
        inner.round(grid, other)
    assert "the server learned nothing" in log.text
    # The next round sends clients nothing.
    trained.clear()
    with pytest.raises(HelperLost, match=r"a sum needs 3 of its 4 holders, and holder/0 at .*, holder/3 at "):
        inner.round(grid, {name: values + 2 for name, values in MODEL.items()})
    assert not trained


def test_a_run_begins_with_as_many_holders_as_a_sum_needs(standing: Standing) -> None:
    standing.kill(1)
    inner = MemoryGrid(mod(standing.folder), adding(0.1))
    inner.round(grid_of(inner, standing.settings()), MODEL)
    standing.kill(2)
    inner = MemoryGrid(mod(standing.folder), adding(0.2), run=8)
    lacking = (
        "a sum needs 3 of its 4 holders, and holder/1 at .*, holder/2 at .* did not answer; start `secagg holder serve`"
    )
    with pytest.raises(HelperLost, match=lacking):
        inner.round(grid_of(inner, standing.settings()), {name: values + 1 for name, values in MODEL.items()})
    standing.start(1)
    inner = MemoryGrid(mod(standing.folder), adding(0.2), run=9)
    inner.round(grid_of(inner, standing.settings()), {name: values + 1 for name, values in MODEL.items()})


@pytest.mark.parametrize("standing", [(3, "--corrupted", "0", "--absent", "1")], indirect=True)
def test_holders_below_the_policy_get_nothing(standing: Standing, log: Any) -> None:
    inner = MemoryGrid(mod(standing.folder), adding(0.125))
    with pytest.raises(ThresholdNotMet):
        inner.round(grid_of(inner, standing.settings()), MODEL)
    assert "3 holders are fewer than 4; change the offer or the policy" in log.text
    assert "5 clients left with code 'terms'" in log.text
    inner = MemoryGrid(mod(standing.folder, minimum_holders=3), adding(0.125), run=8)
    with pytest.raises(ThresholdNotMet):
        inner.round(grid_of(inner, standing.settings()), MODEL)
    assert "it tolerates only 0 corrupted holders" in log.text
    standing.kill(1)
    inner = MemoryGrid(mod(standing.folder, minimum_holders=3, assumed_corrupted_holders=0), adding(0.125), run=9)
    assert np.allclose(inner.round(grid_of(inner, standing.settings()), MODEL)[0]["w"], 0.375, atol=2**-16)


def test_bounds_are_those_of_every_value_of_a_segment() -> None:
    settings = SecAggSettings(metrics="loss", clip=2.0, fraction_bits=10)
    model: dict[str, Any] = {"w": np.zeros((4, 3), np.float32), "steps": np.zeros(2, np.int64)}
    update = SchemeChoice(settings, 10).parameters(model, seed=bytes(32), epoch=1)
    widths = [segment.modulus_bits for segment in update.layout.require_rings()]
    bounds = dict(zip(widths, value_bounds(update), strict=True))
    assert bounds[16] == (-2048, 2048)
    low, high = bounds[64] or (0, 0)
    assert -low == high >= 1 << 31
    found = dict[str, Any](zip(update.names, update.tensors, strict=True))
    assert high == max(tensor.scheme.bound for name, tensor in found.items() if not name.endswith("w"))


def test_a_node_follows_no_server_back_to_an_older_epoch(folders: Path) -> None:
    """The authority began epoch 2 before the end of epoch 1, whose holders are no longer trusted."""
    first, second = (settings_of(folders, "one-message", **holding(folders, number)) for number in (1, 2))
    inner = MemoryGrid(mod(folders), adding(0.125))
    inner.round(grid_of(inner, second), MODEL)
    later = MemoryGrid(mod(folders), adding(0.125), run=9)
    with pytest.raises(ThresholdNotMet):
        later.round(grid_of(later, first), {name: values + 2 for name, values in MODEL.items()})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"epoch": "/absent"}, "not an epoch's record"),
        ({"suite": "hybrid"}, "does not have secagg-suite = hybrid; change one of them"),
        ({"holders": "a.socket,b.socket"}, "names 4 holders, but secagg-holders 2 addresses"),
    ],
)
def test_an_epoch_that_does_not_fit_is_refused_by_the_name_of_its_key(
    folders: Path, changed: dict[str, Any], said: str
) -> None:
    settings = settings_of(folders, "one-message", **{**holding(folders), **changed})
    inner = MemoryGrid(mod(folders), adding(0.125))
    with pytest.raises(InvalidParameters, match=said):
        inner.round(grid_of(inner, settings), MODEL)
    assert not inner.sent
