"""Rounds of every protocol over NVFlare's filters and encoding, and a server's attacks on them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from secagg.errors import InvalidParameters, Misuse, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.nvflare.client import (
    COMPONENT,
    CONTROL,
    SITE_FILE,
    STAGE_TASK,
    SecAggClient,
    _LateTraining,
    _Open,
    arrays_in,
    changes_of,
    failure_in,
    like,
    task_of,
)
from secagg.platforms import Left
from secagg.platforms.client_round import Training
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import RECORD
from tests.harness.platform_keys import PROTOCOLS, named
from tests.harness.tutorial import tutorial_scheme
from tests.nvflare.sites import MODEL, SITES, Federation, Site, adding, plain_mean

pytestmark = pytest.mark.nvflare
STEP = 2.0**-16


def federation(
    folder: Path, protocol: str, settings: dict[str, Any], policy: dict[str, Any], **more: Any
) -> Federation:
    keys = named(folder, protocol, settings, range(1, SITES + 1))
    chosen = SecAggSettings(protocol=protocol, **settings, **keys)  # type: ignore[arg-type]
    (folder / "keys").mkdir(exist_ok=True)
    return Federation(folder, chosen, policy={"identity": str(folder / "keys"), **policy}, **more)


def plain_updates() -> list[bytes]:
    """Return the values that a server must not see: each site's trained model, and its change."""
    return [
        part.tobytes()
        for number in range(1, SITES + 1)
        for values in MODEL.values()
        for part in (values + np.float32(number / 16), np.full_like(values, number / 16))
    ]


@pytest.mark.parametrize(
    ("protocol", "settings", "policy"), [*PROTOCOLS, ("pairwise", {"compression": "scalar-8"}, {})]
)
def test_the_mean_is_that_of_fedavg_and_no_update_reaches_the_server(
    folder: Path, protocol: str, settings: dict[str, Any], policy: dict[str, Any]
) -> None:
    made = federation(folder, protocol, {"metrics": "accuracy", **settings}, policy)
    model, means = made.run(MODEL)
    expected = plain_mean(MODEL)
    if settings.get("weighting") == "uniform":
        expected = {name: values + np.float32(3 / 16) for name, values in MODEL.items()}
    for name, values in expected.items():
        assert model[name].dtype == values.dtype
        assert np.abs(model[name] - values).max() < STEP
    assert means.metrics["accuracy"] == pytest.approx(3, abs=1e-3), "metrics have equal weights"
    assert means.contributors == SITES
    assert not any(plain in reached for plain in plain_updates() for reached in made.reached)


def test_the_search_for_updates_finds_one_that_is_in_the_clear(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = federation(folder, "pairwise", {}, {})
    monkeypatch.setattr(made.sites["site-2"].filter, "process", lambda shareable, _: shareable)
    _, means = made.run(MODEL)
    assert means.contributors == SITES - 1
    assert any(plain in reached for plain in plain_updates() for reached in made.reached)


@pytest.mark.parametrize("task", [STAGE_TASK, "train"])
def test_a_site_that_is_lost_is_left_out_at_every_stage(folder: Path, task: str) -> None:
    made = federation(folder, "pairwise", {}, {}, gone={("site-5", task)})
    model, means = made.run(MODEL)
    assert means.contributors == SITES - 1
    step = sum(n * (n + 1) for n in range(1, SITES)) / sum(range(2, SITES + 1)) / 16
    assert np.abs(model["w"] - MODEL["w"] - step).max() < STEP


def test_too_few_sites_are_no_sum(folder: Path) -> None:
    made = federation(folder, "pairwise", {}, {}, gone={("site-4", "train"), ("site-5", "train")})
    with pytest.raises(ThresholdNotMet):
        made.run(MODEL)


def test_differences_integers_and_metrics_travel_as_scripts_return_them(folder: Path) -> None:
    model = {**MODEL, "count": np.array([3, 4], dtype=np.int64)}

    def train(site: Site, sent: FLModel) -> FLModel:
        changes = {
            name: np.full_like(values, 1) * values.dtype.type(site.number) for name, values in sent.params.items()
        }
        return FLModel(params=changes, params_type=ParamsType.DIFF)

    made = federation(folder, "pairwise", {"clip": 8.0}, {}, train=train)
    changed, means = made.run(model)
    assert means.counted.trained_at_least == SITES
    assert changed["count"].tolist() == [6, 7]
    assert np.abs(changed["w"] - model["w"] - 3).max() < STEP


def left(folder: Path, expected: Left, log: pytest.LogCaptureFixture, **more: Any) -> str:
    """Run a round in which site-5 leaves with a code, and return its log."""
    log.set_level(logging.DEBUG, "secagg.platforms")
    made = federation(folder, "pairwise", more.pop("settings", {}), {}, **more)
    made.run(MODEL)
    assert [count.left[expected] for _, count in made.round.stages if count.left] == [1]
    return log.text


def test_a_request_without_the_protocol_is_refused_before_training(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def bare(site: str, task: str, data: Shareable) -> Shareable:
        if (site, task) == ("site-5", "train"):
            del data[RECORD]
        return data

    trained = list[str]()

    def train(site: Site, model: FLModel) -> FLModel:
        trained.append(site.name)
        return adding(site, model)

    left(folder, Left.TERMS, caplog, meddling=bare, train=train)
    assert "site-5" not in trained


def test_another_jobs_terms_are_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def renamed(site: str, task: str, data: Shareable) -> Shareable:
        if (site, task) == ("site-5", STAGE_TASK) and "terms" in data[RECORD]:
            data[RECORD]["terms"] = data[RECORD]["terms"].replace("job-1", "job-2")
        return data

    assert "the server names task 'nvflare job job-2 00'" in left(folder, Left.TERMS, caplog, meddling=renamed)


def test_an_upload_that_a_session_does_not_pay_for_has_not_used_up_the_round(folder: Path) -> None:
    """Regression: a spent privacy budget also used up the round and one of the model's three uploads."""
    made = federation(folder, "pairwise", {}, {})
    terms = made.rounds.begun(MODEL, clients=SITES, task=f"{task_of(made.fl_ctx)} 00", number=1, weighted_by="n").terms
    begun = made.sites["site-1"].client._node(made.fl_ctx).begun(terms)  # noqa: SLF001 -- no session asks for so much
    found = _Open(begun)
    found.training = Training(begun.terms, begun.update, begun.charges, MODEL, found.train)

    def refuse() -> None:
        raise Misuse("the budget is spent")

    with pytest.raises(Misuse, match="the budget is spent"):
        _LateTraining(found).take(begun.update.layout, charge=refuse)
    assert begun.charges.count(terms.task.encode()) == 0


def test_a_server_names_one_task_in_a_job(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each task has its own bounds, so a server with a new task for each round could bisect the clipped values."""
    caplog.set_level(logging.DEBUG, "secagg.platforms")
    made = federation(folder, "pairwise", {}, {})
    made.run(MODEL)
    made.process, made.rounds = "01", Rounds(replace(made.settings, clip=2.0))
    with pytest.raises(ThresholdNotMet):
        made.run(MODEL)
    assert caplog.text.count("names task 'nvflare job job-1 01', but this run is 'nvflare job job-1 00'") == SITES


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"secagg-minimum-cohort": 9}', "a cohort of 4 is below 9"),
        ("[", "must have policy keys such as"),
        ("[]", "must have policy keys such as"),
        ('{"minimum-cohort": 9}', "must have policy keys such as"),
        ('{"secagg-minimum-cohort": "9"}', "minimum_cohort must be an integer"),
    ],
)
def test_an_operator_raises_the_policy_of_a_job_and_a_file_that_cannot_be_read_is_not_passed_over(
    folder: Path, caplog: pytest.LogCaptureFixture, written: str, said: str
) -> None:
    made = federation(folder, "pairwise", {}, {})
    (made.sites["site-5"].local / SITE_FILE).write_text(written)
    _, means = made.run(MODEL)
    assert means.contributors == SITES - 1
    assert said in caplog.text


@pytest.mark.parametrize(
    ("fails", "chosen"),
    [*[("raises", each) for each in PROTOCOLS], *[(fails, PROTOCOLS[0]) for fails in ("nan", "another shape")]],
)
def test_whatever_training_returns_the_server_sees_an_upload(
    fails: str, chosen: tuple[str, dict[str, Any], dict[str, Any]], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protocol, settings, policy = chosen

    def train(site: Site, model: FLModel) -> FLModel:
        found = adding(site, model)
        if site.name == "site-5" and fails == "raises":
            raise RuntimeError("a secret of this site")
        if site.name == "site-5":
            found.params["w"] = np.full(3, np.nan) if fails == "another shape" else found.params["w"] * np.nan
        return found

    made = federation(folder, protocol, {**settings, "weighting": "uniform"}, policy, train=train)
    _, means = made.run(MODEL)
    assert means.contributors == SITES
    assert not any(count.left for _, count in made.round.stages)
    assert all(count.received == SITES for _, count in made.round.stages if count.sent == SITES)
    assert "a secret of this site" not in caplog.text


def test_a_failed_training_is_zeros_of_the_scheme_and_not_of_the_ring(folder: Path) -> None:
    """Regression: with a zero point, ring elements of 0 represent the minimum value, and moved the mean."""
    text = tutorial_scheme().replace("from_integers(codes)", "from_integers(codes + 1)")
    text = text.replace("lift(aggregate.values[0]) *", "lift(aggregate.values[0]) * 1.0 - aggregate.contributors) *")
    text = text.replace("return self.segment.ring.lift", "return (self.segment.ring.lift")
    text = text.replace("capacity_between(-1, 1", "capacity_between(0, 2").replace("RingSegment(1", "RingSegment(2")
    (folder / "shifted.py").write_text(text, encoding="utf-8")
    name = f"{folder / 'shifted.py'}:Ternary"

    def train(site: Site, model: FLModel) -> FLModel:
        if site.number < 3:
            raise RuntimeError("this site's data are missing")
        return FLModel(params={"w": model.params["w"] + np.float32(0.125)})

    made = federation(folder, "pairwise", {"compression": name, "weighting": "uniform"}, {}, train=train)
    for site in made.sites.values():
        site.client = site.components[COMPONENT] = SecAggClient(site.client.policy, scheme=name)
    model, means = made.run({"w": np.zeros((150, 100), np.float32)})
    assert means.counted.examples == SITES - 2
    assert float(model["w"].mean()) == pytest.approx(0.125, abs=0.01)


def test_a_result_that_no_session_waits_for_stays_at_the_site(folder: Path) -> None:
    made = federation(folder, "pairwise", {}, {})
    site = made.sites["site-1"]
    made.run(MODEL)
    site.context.set_prop(FLContextKey.TASK_NAME, "train", private=True, sticky=False)
    for _ in range(2):
        reply = site.filtered(made.shareable_of(FLModel(params=dict(MODEL))), "out")
        assert failure_in(reply) is Left.LEFT
        assert reply.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR


def test_a_round_that_was_uploaded_for_is_refused_a_second_time(folder: Path) -> None:
    made = federation(folder, "pairwise", {}, {})
    made.run(MODEL)
    made.number -= 1
    with pytest.raises(ThresholdNotMet):
        made.run(MODEL)
    assert made.round.stages[0][1].left == {Left.LEFT: SITES}


def test_a_site_answers_for_itself_alone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = federation(folder, "pairwise", {"mode": "active"}, {})
    # Site 4 has the key file of site 5.
    (made.sites["site-4"].local / SITE_FILE).write_text(
        json.dumps({"secagg-identity": str(folder / "keys" / "client-5.key")})
    )
    with pytest.raises(ThresholdNotMet):
        made.run(MODEL)
    assert "is answered for by two nodes" in caplog.text


KEYED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    # So that one of five may be missing.
    ("pairwise", {"mode": "active", "corrupted": 0}, {"assumed_corrupted": 0}, STAGE_TASK),
    ("enclave", {"weighting": "uniform"}, {"allow_simulated_enclave": True}, "train"),
    ("two-servers", {"weighting": "uniform"}, {"allow_simulated_second_server": True}, "train"),
    ("one-message", {}, {}, "train"),
]
"""For each protocol with clients' keys, the task in which a client first answers, or uploads."""


@pytest.mark.parametrize("case", KEYED)
def test_garbage_in_another_clients_name_excludes_nobody_but_its_sender(
    folder: Path, case: tuple[str, dict[str, Any], dict[str, Any], str], caplog: pytest.LogCaptureFixture
) -> None:
    protocol, settings, policy, forged_task = case

    def forged(site: str, task: str, reply: Shareable) -> Shareable:
        if (site, task) == ("site-1", forged_task) and RECORD in reply:
            reply[RECORD] |= {"client": ClientId(5).encode(), "message": reply[RECORD]["message"][:-1]}
        return reply

    made = federation(folder, protocol, settings, policy, forging=forged)
    model, means = made.run(MODEL, training_patience=0.0)
    assert means.contributors == SITES - 1
    step = 3.5 / 16 if settings.get("weighting") == "uniform" else 68 / 18 / 16
    assert np.abs(model["b"] - MODEL["b"] - step).max() < STEP
    assert "node site-1 is excluded: authentication failed" in caplog.text


class Tensor:
    """The used interface of PyTorch's tensors; NumPy cannot read their 16-bit type."""

    def __init__(self, values: Any, dtype: str = "torch.float32") -> None:
        self.values, self.dtype = np.asarray(values), dtype

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def float(self) -> Any:
        return self.values.astype(np.float32)

    def numpy(self) -> Any:
        if self.values.dtype == np.float16:
            raise TypeError("unsupported ScalarType BFloat16")
        return self.values

    def new_tensor(self, values: Any) -> Tensor:
        return Tensor(values)


def test_tensors_of_another_library_come_back_as_such_and_bfloat16_is_read_with_32_bits() -> None:
    before = {"w": Tensor([1.0, 2.0])}
    assert arrays_in(before)["w"].tolist() == [1.0, 2.0]
    assert isinstance(like(before, {"w": np.ones(2)})["w"], Tensor)
    with pytest.raises(InvalidParameters, match="send it as float32"):
        arrays_in({"w": Tensor(np.ones(1, np.float16))})
    with pytest.raises(InvalidParameters, match="'w' is a list, not a tensor"):
        arrays_in({"w": [1.0]})
    read = arrays_in({"w": Tensor(np.full(2, 1.5, np.float16), dtype="torch.bfloat16")})["w"]
    assert read.dtype == np.float32
    assert read.tolist() == [1.5, 1.5]


def test_a_script_that_trains_in_place_is_summed_as_others_are(folder: Path) -> None:
    def train(site: Site, model: FLModel) -> FLModel:
        for values in model.params.values():
            np.add(values, values.dtype.type(site.number / 16), out=values)
        return FLModel(params=model.params, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: site.number + 1})

    model, means = federation(folder, "pairwise", {}, {}, train=train).run(MODEL)
    assert means.contributors == SITES
    for name, values in plain_mean(MODEL).items():
        assert np.abs(model[name] - values).max() < STEP


def test_a_site_that_does_not_train_for_a_message_keeps_no_session(folder: Path) -> None:
    """Otherwise the server could resume its remains, and keys would stay in memory until the job ends."""
    sessions = list[Any]()

    def meddle(name: str, task: str, data: Shareable) -> Shareable:
        if name == "site-5" and task == "train":
            sessions.append(made.sites[name].client._open.session)  # type: ignore[union-attr]  # noqa: SLF001
            del data["DXO"]
        return data

    made = federation(folder, "pairwise", {}, {}, meddling=meddle)
    _, means = made.run(MODEL)
    assert means.contributors == SITES - 1
    assert made.sites["site-5"].client._open is None  # noqa: SLF001 -- nothing is left
    with pytest.raises(SecAggError):
        sessions[0].answer(b"another message")


@pytest.mark.parametrize(
    "headers", [{"__rc__": ["a list"]}, {"__rc__": {"a": 1}}, {"__rc__": 3, "secagg-left": [1]}, ["no headers"], None]
)
@pytest.mark.parametrize("record", [None, [1], {"message": 1}, {"message": b"a", "client": b"short"}])
def test_whatever_a_site_answers_leaves_it_out_and_nobody_else(folder: Path, headers: Any, record: Any) -> None:
    def forge(name: str, task: str, reply: Shareable) -> Shareable:
        del task
        if name == "site-5":
            reply["__headers__"], reply[RECORD] = headers, record
        return reply

    _, means = federation(folder, "pairwise", {}, {}, forging=forge).run(MODEL)
    assert means.contributors == SITES - 1


CONTROLS: dict[str, Any] = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "b": np.zeros(3, dtype=np.float32),
    # NVFlare also has one for a counter of batches, and adds floats to it.
    "count": np.zeros(1, dtype=np.int64),
}


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
@pytest.mark.parametrize("is_forced", [False, True])
def test_scaffold_is_one_sum_of_two_trees_with_one_weight(folder: Path, kind: ParamsType, *, is_forced: bool) -> None:
    def train(site: Site, model: FLModel) -> FLModel:
        found = adding(site, model)
        assert np.array_equal(model.meta["scaffold_c_global"]["w"], CONTROLS["w"])
        if kind is ParamsType.DIFF:
            found.params = {name: found.params[name] - values for name, values in model.params.items()}
            found.params_type = kind
        # Tensors that are not trained have no change.
        found.meta["scaffold_c_diff"] = {"w": np.full((3, 4), -site.number / 8, np.float32)}
        return found

    made = federation(folder, "pairwise", {}, {}, train=train)
    for site in made.sites.values() if is_forced else ():
        site.force()
    model, means = made.run(MODEL, CONTROLS)
    for name, values in plain_mean(MODEL).items():
        assert np.abs(model[name] - values).max() < STEP
    found = changes_of(means.tensors, {f"{CONTROL}{name}": each for name, each in CONTROLS.items()}, [f"{CONTROL}w"])
    assert np.abs(found[f"{CONTROL}w"] + 70 / 20 / 8).max() < STEP
    assert np.abs(model[f"{CONTROL}b"]).max() == 0
    for number in range(1, SITES + 1):
        assert np.full((3, 4), -number / 8, np.float32).tobytes() not in b"".join(made.reached)


def test_scripts_that_know_no_scaffold_upload_zeros_and_the_round_is_refused(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "secagg")
    with pytest.raises(ThresholdNotMet, match="training failed at too many clients"):
        federation(folder, "pairwise", {}, {}).run(MODEL, CONTROLS)
    assert "returned no meta['scaffold_c_diff']" in caplog.text


@pytest.mark.parametrize("is_forced", [False, True])
def test_sites_evaluate_by_a_sum_of_metrics(folder: Path, *, is_forced: bool) -> None:
    def evaluate(site: Site, model: FLModel) -> FLModel:
        assert np.array_equal(model.params["w"], MODEL["w"])
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: site.number}
        return FLModel(metrics={"accuracy": site.number / 8, "secret": 0.123456}, meta=meta)

    made = federation(folder, "pairwise", {"evaluation_metrics": "accuracy"}, {}, train=evaluate, task_name="validate")
    for site in made.sites.values() if is_forced else ():
        site.force()
    _, means = made.run(MODEL, is_evaluation=True)
    assert means.metrics["accuracy"] == pytest.approx(3 / 8, abs=1e-3)
    assert means.examples == SITES
    assert b"secret" not in b"".join(made.reached)


def test_what_each_site_keeps_for_itself_is_in_no_sum(folder: Path) -> None:
    made = federation(folder, "pairwise", {"exclude": "b*"}, {})
    model, _ = made.run(MODEL)
    assert np.array_equal(model["b"], MODEL["b"])
    assert np.abs(model["w"] - plain_mean(MODEL)["w"]).max() < STEP
    with pytest.raises(InvalidParameters, match="secagg-exclude names other"):
        federation(folder, "pairwise", {"exclude": "other*"}, {}).run(MODEL)
    with pytest.raises(
        InvalidParameters, match=r"no non-empty tensor of numbers outside secagg-exclude \(\*\); send the arrays"
    ):
        federation(folder, "pairwise", {"exclude": "*"}, {}).run(MODEL)
