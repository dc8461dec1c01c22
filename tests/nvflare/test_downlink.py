"""The compressed downlink and the rate from losses, over NVFlare's filters and encoding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.scaffold import Scaffold

from secagg.errors import InvalidParameters, MalformedMessage, ThresholdNotMet
from secagg.nvflare import secure
from secagg.nvflare.client import SecAggFilter
from tests.nvflare.sites import SITES, Federation, Model, Site
from tests.nvflare.test_jobs import lab
from tests.nvflare.test_recipe import recipe, replace
from tests.nvflare.test_rounds_in_memory import federation

pytestmark = pytest.mark.nvflare
GOAL = np.random.default_rng(3).normal(size=(60, 200)).astype(np.float32)
START: Model = {"w": np.zeros_like(GOAL), "b": np.zeros(200, np.float32)}
POLICY: dict[str, Any] = {"allow_simulated_enclave": True}
SUMS: dict[str, Any] = {"compression": "peak-2", "weighting": "uniform", "down": "sums"}
AUTO: dict[str, Any] = {"compression": "peak", "weighting": "uniform", "rate": "auto", "evaluation_metrics": "loss"}


class Trainers:
    """Sites that move half of the way to a goal, and keep the messages they received."""

    def __init__(self) -> None:
        self.received = dict[int, dict[str, npt.NDArray[Any]]]()

    def train(self, site: Site, model: FLModel) -> FLModel:
        self.received[site.number] = {name: np.array(values) for name, values in model.params.items()}
        own = np.random.default_rng(site.number).normal(size=GOAL.shape).astype(np.float32)
        params = {**model.params, "w": model.params["w"] + 0.5 * (GOAL + 0.1 * own - model.params["w"])}
        return FLModel(params=params, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1})

    def evaluate(self, site: Site, model: FLModel) -> FLModel:
        del site
        return FLModel(metrics={"loss": float(np.square(model.params["w"] - GOAL).mean())})


def sizes(made: Federation) -> list[int]:
    return [count.bytes_down for _, count in made.round.stages]


def test_sites_train_the_servers_model_to_the_bit_without_being_sent_it(folder: Path) -> None:
    trainers, model = Trainers(), dict(START)
    made = federation(folder, "enclave", SUMS, POLICY, train=trainers.train)
    down = list[int]()
    for _ in range(4):
        model = made.rounds.restored(model)
        sent = model
        model, means = made.run(sent)
        assert means.contributors == SITES
        down.append(sum(sizes(made)))
        for received in trainers.received.values():
            assert list(received) == list(sent)
            assert all(received[name].tobytes() == sent[name].tobytes() for name in sent)
    assert float(np.square(model["w"] - GOAL).mean()) < 0.1
    whole = SITES * sum(values.nbytes for values in START.values())
    assert max(down[1:]) < whole / 5.8


def test_a_site_that_starts_again_leaves_a_round_and_is_sent_the_model(folder: Path) -> None:
    trainers = Trainers()
    made = federation(folder, "enclave", {**SUMS, "minimum_cohort": 3, "threshold": 0.6}, POLICY, train=trainers.train)
    model, _ = made.run(made.rounds.restored(START))
    made.sites["site-2"].client.held = None
    model, means = made.run(made.rounds.restored(model))
    assert means.contributors == SITES - 1
    _, means = made.run(made.rounds.restored(model))
    assert means.contributors == SITES


def test_a_model_without_a_tensor_that_the_terms_name_is_refused_and_not_trained(folder: Path) -> None:

    def lacking(site: str, task: str, data: Any) -> Any:
        del site
        if task == "train":
            dxo = from_shareable(data)
            dxo.data = {name: values for name, values in dxo.data.items() if name != "b"}
            dxo.update_shareable(data)
        return data

    class Watching(SecAggFilter):
        def process(self, shareable: Any, fl_ctx: Any) -> Any:
            try:
                return super().process(shareable, fl_ctx)
            except MalformedMessage as error:
                refused.append(str(error))
                raise

    trainers, refused = Trainers(), list[str]()
    made = federation(folder, "enclave", SUMS, POLICY, train=trainers.train)
    model, _ = made.run(made.rounds.restored(START))
    trainers.received.clear()
    made.meddling = lacking
    for site in made.sites.values():
        site.filter = Watching()
    with pytest.raises(ThresholdNotMet):
        made.run(made.rounds.restored(model))
    assert not trainers.received
    assert refused == ["only the session's tensors of floats are held"] * SITES


def test_sites_of_a_simulated_job_have_a_compressed_downlink(tmp_path: Path) -> None:
    output = lab(tmp_path, "lab_downlink.py", "sums")
    uploads = re.findall(r"round \d, sealed upload: sent 3 \((.*?) kB\), received 3", output)
    first, *others = map(float, uploads)
    assert len(others) == 3
    # Three times 12,000 values of 32 bits are 144 kB.
    assert first < 15
    assert max(others) < 24
    found = Path(json.loads((tmp_path / "home" / "result.json").read_text()))
    model = np.load(found / "server" / "simulate_job" / "models" / "server.npy")
    assert float(np.square(model - GOAL).mean()) < 0.1


def test_a_workflow_that_changes_the_mean_is_told_no_sums(tmp_path: Path) -> None:
    made = recipe(tmp_path)
    replace(made._job._deploy_map["server"].app_config, Scaffold(num_clients=5, num_rounds=3))  # noqa: SLF001
    with pytest.raises(InvalidParameters, match=r"'sums' only works with FedAvg, .* not with Scaffold"):
        secure(made, protocol="enclave", roster="any", **SUMS)
