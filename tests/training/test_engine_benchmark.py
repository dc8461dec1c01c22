"""The engine table: figures that can be true, and machines and engines that do not exist."""

import json
from pathlib import Path

import pytest

from benchmarks.training_engines import LOADS, Machine, main, measure_engines, measure_machine, operations_of_an_example
from secagg.errors import InvalidParameters


def test_the_arithmetic_of_an_example_is_counted_in_all_three_models() -> None:
    counted = {name: operations_of_an_example(load) for name, load in LOADS.items()}
    # A forward pass of SimpleConvNet makes about 8.7 million multiplications in its second layer alone.
    convolutions = 2 * (3 * 34 * 34 + 32 * (19 * 19 + 11 * 11 + 7 * 7)) * 32 * 9
    assert 2.5 * convolutions < counted["celeba"] < 3.5 * convolutions
    # An LSTM multiplies each of its weights in each of 25 steps, forward once and backward twice.
    assert 2.5 < counted["sent140"] / (2 * 25 * (400 * (300 + 100) + 400 * 200)) < 3.5
    assert counted["femnist"] > counted["celeba"]


def test_shares_are_those_of_the_floors() -> None:
    slow, quick = (
        measure_engines("celeba", Machine("cpu", "", speed, 1e12), engines=["sequential"], clients=2)[0]
        for speed in (1e8, 1e30)
    )
    assert slow.arithmetic_share is not None
    assert slow.arithmetic_share > 1
    assert quick.arithmetic_share == pytest.approx(0, abs=1e-12)


def test_the_table_has_a_line_for_each_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, asked = tmp_path / "engines.json", ["--load", "fashion", "--clients", "2", "--json"]
    monkeypatch.setattr("sys.argv", ["training_engines.py", *asked, str(report)])
    assert main() == 0
    shown = capsys.readouterr().out
    assert "fashion   sequential" in shown
    written = json.loads(report.read_text(encoding="utf-8"))
    assert [row["engine"] for row in written["engines"]] == ["threads", "sequential", "vmap"]
    assert written["engines"][0]["clients_per_second"] > 0


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="celeba, femnist, sent140"):
        measure_engines("cifar", Machine("cpu", "", 1, 1))
    with pytest.raises(InvalidParameters, match="CUDA devices"):
        measure_machine("cuda:99")
