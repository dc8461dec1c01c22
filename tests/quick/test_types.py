"""Types of the quick interface, as pyright tells its user: each wrong line is refused, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

from secagg.session.registry import ProtocolName, ProtocolOptions, find, names

PROGRAM = """
from fractions import Fraction
import numpy as np
import numpy.typing as npt
import secagg
from secagg.protocols.one_message import OneMessageOptions
from secagg.protocols.pairwise_mask import PairwiseOptions

Vector = npt.NDArray[np.float64]
vectors: list[Vector] = [np.ones(3), np.zeros(3), np.ones(3)]
trees: dict[str, dict[str, Vector]] = {name: {"w": np.ones(3)} for name in "abc"}
mean: Vector = secagg.mean(vectors, clip=1.0)
holding = OneMessageOptions(holders=5, suite=secagg.Suite.HYBRID)
tree: dict[str, Vector] = secagg.aggregate(trees, clip=1.0, protocol=holding).total
budgeted = PairwiseOptions(budget_epsilon=Fraction(8))
session: secagg.Session[Vector] = secagg.Session.for_model(mean, clients=3, clip=1.0, protocol=budgeted)
version: str = secagg.__version__
counts: dict[str, int] = secagg.histogram(["a", "b", "b"], ["a", "b"], corrupted=0)
secagg.nonsense  # wrong
secagg.mean(vectors, clip=1.0, protcol="enclave")  # wrong
secagg.mean(vectors, clip=1.0, protocol="enclav")  # wrong
secagg.aggregate(vectors, clip=1.0, protcol="enclave")  # wrong
secagg.aggregate(vectors, clip=1.0, protocol="enclav")  # wrong
secagg.histogram(["a"], ["a"], protocol="pair-wise")  # wrong
secagg.heavy_hitters(["a"], least=2, longst=3)  # wrong
secagg.Session.for_model(mean, clients=3, clip=1.0, holders=2)  # wrong
OneMessageOptions(holders=2.5)  # wrong
PairwiseOptions(holders=2)  # wrong
PairwiseOptions(minimum_cohort="5")  # wrong
secagg.mean(vectors, clip=1.0, protocol=secagg.Suite.HYBRID)  # wrong
wrong: dict[str, Vector] = secagg.mean(vectors, clip=1.0)  # wrong
"""


def test_pyright_refuses_what_is_wrong_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    settings = {"include": ["program.py"], "extraPaths": [str(repository)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout  # noqa: S603 -- our own interpreter
    found = json.loads(told[told.index("{") :])["generalDiagnostics"]
    wrong = {each["range"]["start"]["line"] for each in found if each["severity"] == "error"}
    due = {number for number, line in enumerate(PROGRAM.splitlines()) if line.endswith("# wrong")}
    assert wrong == due, "\n".join(f"{each['range']['start']['line']}: {each['message']}" for each in found)


def test_types_name_every_protocol_and_options_name_theirs() -> None:
    assert get_args(ProtocolName) == names()
    for name in names():
        options = find(name).settings
        assert issubclass(options, ProtocolOptions)
        assert find(options()) is find(name)
