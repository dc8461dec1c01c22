"""Runs of NVFlare's own controllers with failing rounds: the kept state, and the job's result."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor as LearnablePersistor
from nvflare.app_common.aggregators import InTimeAccumulateWeightedAggregator
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator

from secagg.errors import ThresholdNotMet
from secagg.nvflare.controller import (
    ROUNDS_FILE,
    SecureFedAvg,
    SecureRounds,
    SecureScaffold,
    SecureScatterAndGather,
    SiteRound,
)
from secagg.platforms.failed_rounds import SKIPPED
from secagg.platforms.server_round import FOR_EVER
from secagg.platforms.settings import SecAggSettings
from tests.nvflare.sites import JOB, SITES, Federation, Site

pytestmark = pytest.mark.nvflare
STEP = 2.0**-15
MODEL: dict[str, Any] = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array([3], np.int64)}
SETTINGS: dict[str, Any] = {"weighting": "uniform", "clip": 8.0}


def counting(site: Site, model: FLModel) -> FLModel:
    """Add a number in sixteenths to the weights, and 2 to the counter."""
    params = {
        "w": model.params["w"] + np.float32(site.number / 16),
        "count": model.params["count"].astype(np.int64) + 2,
    }
    meta: dict[str, Any] = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    if "scaffold_c_global" in (model.meta or {}):
        meta["scaffold_c_diff"] = {"w": np.full((2, 3), 0.125, np.float32)}
    return FLModel(params=params, params_type=ParamsType.FULL, metrics={"loss": 0.5}, meta=meta)


class Momentum(FullModelShareableGenerator):
    """A server's optimizer, as in FedOpt: it steps at every call."""

    moved = 0

    def shareable_to_learnable(self, shareable: Shareable, fl_ctx: FLContext) -> Any:
        self.moved += 1
        return super().shareable_to_learnable(shareable, fl_ctx)


class Persistor(LearnablePersistor):
    """Provides a model, and keeps saved ones."""

    def __init__(self, model: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.saved = model, list[dict[str, Any]]()

    def load_model(self, fl_ctx: FLContext) -> Any:
        del fl_ctx
        return make_model_learnable({name: values.copy() for name, values in self.model.items()}, {})

    def save_model(self, learnable: Any, fl_ctx: FLContext) -> None:
        del fl_ctx
        self.saved.append({name: np.array(values) for name, values in learnable["weights"].items()})


class Lab:
    """The environment of a job's controller; two sites are lost in some rounds."""

    def __init__(self, folder: Path, controller: Any, lost: Callable[[int, str], bool]) -> None:
        self.asked = list[tuple[int, str]]()
        self.lost, self.controller, self.folder = lost, controller, folder / "job"
        self.folder.mkdir()
        self.federation = Federation(folder, SecAggSettings(), train=counting, meddling=self._seen)
        workspace = SimpleNamespace(get_run_dir=lambda _: str(self.folder))
        names = list(self.federation.sites)
        self.engine = SimpleNamespace(
            get_workspace=lambda: workspace,
            get_clients=lambda: [SimpleNamespace(name=name) for name in names],
            new_context=self._context,
            fire_event=lambda *_: None,
            persist_components=lambda *_, **__: None,
            get_component=self._component,
        )
        persistor = Persistor(MODEL)
        self.saved = persistor.saved
        self.generator = Momentum()
        self.components: dict[str, Any] = {
            "persistor": persistor,
            "shareable_generator": self.generator,
            "aggregator": InTimeAccumulateWeightedAggregator(expected_data_kind="WEIGHT_DIFF"),
        }
        self.context = FLContext()
        for key, value in (("__engine__", self.engine), ("__run_num__", JOB), ("__identity_name__", "server")):
            self.context.put(key=key, value=value, private=True, sticky=False)
        for name in ("send", "cancel_task", "get_client_disconnect_time"):
            setattr(controller, name, getattr(self.federation, name))
        self.panics = list[str]()
        controller.system_panic = lambda reason, fl_ctx=None: self.panics.append(reason)  # noqa: ARG005 -- NVFlare's own
        controller.get_num_standing_tasks = lambda: 0

    def _seen(self, name: str, task: str, data: Shareable) -> Shareable:
        number = len(self.controller._outcomes)  # noqa: SLF001 -- rounds that are over
        self.asked.append((number, task))
        is_lost = int(name[-1]) > 3 and self.lost(number, task)
        return Shareable() if is_lost else data

    def _component(self, name: str) -> Any:
        return self.components.get(name)

    @contextmanager
    def _context(self) -> Generator[FLContext]:
        yield self.context

    def run(self) -> list[dict[str, Any]]:
        controller = self.controller
        controller._engine = self.engine  # noqa: SLF001 -- NVFlare sets it
        self.components["aggregator"].handle_event(EventType.START_RUN, self.context)
        controller.initialize(self.context)
        controller.control_flow(self.federation.abort_signal, self.context)
        found: list[dict[str, Any]] = json.loads((self.folder / ROUNDS_FILE).read_text())
        return found


def made(kind: type[SecureRounds], rounds: int, **settings: Any) -> Any:
    common: dict[str, Any] = {"secagg": {**SETTINGS, **settings}, "training_timeout": 30.0, "num_rounds": rounds}
    if kind is SecureScatterAndGather:
        ids: dict[str, Any] = {"persistor_id": "persistor", "shareable_generator_id": "shareable_generator"}
        return kind(min_clients=SITES, aggregator_id="aggregator", persist_every_n_rounds=5, **ids, **common)
    return kind(num_clients=SITES, persistor_id="persistor", **common)


KINDS = [SecureFedAvg, SecureScaffold, SecureScatterAndGather]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_round_keeps_the_model_and_is_in_the_jobs_result(folder: Path, kind: type[SecureRounds]) -> None:
    lab = Lab(folder, made(kind, 4), lambda number, task: number == 1 and task == "train")
    outcomes = lab.run()
    assert not lab.panics
    assert [SKIPPED in each for each in outcomes] == [False, True, False, False]
    assert "not enough clients: 4 must upload, 3 did" in outcomes[1][SKIPPED]
    assert outcomes[0]["contributors"] == SITES
    # Three rounds of changes; the counter is an integer in every round and in the file.
    last = lab.saved[-1]
    assert np.abs(last["w"] - MODEL["w"] - 3 * 3 / 16).max() < 3 * STEP
    assert (last["count"].dtype, last["count"].tolist()) == (np.dtype(np.int64), [9])
    if kind is SecureScatterAndGather:
        assert lab.generator.moved == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"on_failure": "stop"}, {"failed_rounds": 1}])
def test_a_job_that_stops_has_saved_the_last_good_model(
    folder: Path, kind: type[SecureRounds], settings: dict[str, Any]
) -> None:
    lab = Lab(folder, made(kind, 9, **settings), lambda number, task: number > 0 and task == "train")
    outcomes = lab.run()
    assert len(outcomes) == 1 + (1 if "on_failure" in settings else 2)
    assert lab.panics
    assert np.abs(lab.saved[-1]["w"] - MODEL["w"] - 3 / 16).max() < STEP


def test_a_job_without_any_result_ends_with_the_error(folder: Path) -> None:
    lab = Lab(folder, made(SecureFedAvg, 3), lambda _, task: task == "train")
    assert len(lab.run()) == 1
    assert lab.panics
    assert not lab.saved


@pytest.mark.parametrize("task", ["secagg", "train"])
def test_a_round_begins_again_only_where_no_site_was_asked_for_an_update(folder: Path, task: str) -> None:
    lost = list[str]()

    def is_lost(number: int, asked: str) -> bool:
        if number == 1 and asked == task:
            lost.append(asked)
        return number == 1 and asked == task and len(lost) <= SITES - 3

    lab = Lab(folder, made(SecureFedAvg, 2, on_failure="retry"), is_lost)
    outcomes = lab.run()
    assert lab.asked.count((1, "train")) == SITES
    assert (SKIPPED in outcomes[1]) is (task == "train")


def test_the_first_stage_waits_as_long_as_training_for_sites_whose_trainer_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = list[float]()

    def heard(self: SiteRound, seconds: float) -> Any:
        limits.append(seconds)
        return plain(self, seconds)

    plain = SiteRound.heard
    monkeypatch.setattr(SiteRound, "heard", heard)
    Lab(folder, made(SecureFedAvg, 1, stage_timeout=7.0), lambda *_: False).run()
    assert 25 < limits[0] <= 30
    waiting = SiteRound(
        SimpleNamespace(terms=SimpleNamespace(digest=b"")),  # type: ignore[arg-type]
        None,
        "train",
        Shareable,
        training_timeout=0.0,
        training_patience=None,
    )
    assert waiting._first == FOR_EVER  # noqa: SLF001 -- as training without a limit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failing", [range(4, 6), range(1, 6)])
def test_failed_trainings_are_in_no_mean_and_end_a_job_in_which_nobody_trains(
    folder: Path, kind: type[SecureRounds], failing: range
) -> None:
    lab = Lab(folder, made(kind, 2), lambda *_: False)

    def train(site: Site, model: FLModel) -> FLModel:
        if site.number in failing:
            raise RuntimeError("this site's data are missing")
        return counting(site, model)

    for site in lab.federation.sites.values():
        site.train = train
    outcomes = lab.run()
    if len(failing) == SITES:
        assert "training failed at too many clients" in lab.panics[0]
        assert [each["round"] for each in outcomes] == [0]
        assert SKIPPED in outcomes[0]
        return
    assert not lab.panics
    assert [(each["secagg-trained"], each["secagg-failed"]) for each in outcomes] == [(3, 2)] * 2
    # Those of sites 1 to 3.
    assert np.abs(lab.saved[-1]["w"] - MODEL["w"] - 2 * 2 / 16).max() < 2 * STEP
    assert lab.saved[-1]["count"].tolist() == [7]


def test_an_aborted_job_skips_nothing(folder: Path) -> None:
    lab = Lab(folder, made(SecureFedAvg, 3), lambda number, task: number > 0 and task == "train" and abort())

    def abort() -> bool:
        lab.federation.abort_signal.trigger(value=True)
        return True

    lab.run()
    assert {number for number, _ in lab.asked} == {0, 1}


def test_too_few_sites_is_what_the_error_says(folder: Path) -> None:
    controller = made(SecureFedAvg, 2)
    lab = Lab(folder, controller, lambda _, task: task == "train")
    lab.run()
    assert ThresholdNotMet.__name__ in lab.panics[0] or "not enough" in lab.panics[0]
