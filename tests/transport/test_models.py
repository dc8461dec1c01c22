"""Sums of models over HTTP: a server and clients with files, and refusals before any party waits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.cli import main
from secagg.errors import Misuse
from secagg.platforms.client_node import DIRECTORY_VARIABLE
from secagg.platforms.model_files import read_model, write_model
from secagg.session.roles import LazyUpdate, Released, ServerSession, Subject
from secagg.transport.client import Join
from secagg.transport.description import SessionDescription
from secagg.transport.server import SumServer
from tests.harness.commands import refusal
from tests.harness.planted import always
from tests.harness.wire_town import Process, Town

CLIENTS = 4
URL = "http://127.0.0.1:1"
Model = dict[str, npt.NDArray[Any]]


def base() -> Model:
    drawn = np.random.default_rng(0)
    return {
        "layer.weight": drawn.normal(0, 1, (8, 4)).astype(np.float32),
        "norm.mean": np.zeros(4),
        "norm.batches": np.array(3, np.int64),
        "mask": np.array([True, False]),
    }


def trained(number: int) -> Model:
    """Return a client's files, with these changes in tenths and these steps."""
    change = {"f": number / 10, "i": number, "b": 0}
    return {name: (each + change[each.dtype.kind]).astype(each.dtype) for name, each in base().items()}


def written(folder: Path, name: str, model: Model) -> str:
    write_model(folder / name, model)
    return str(folder / name)


def serve(town: Town, suffix: str, *arguments: str) -> Process:
    path = written(town.folder, f"base.{suffix}", base())
    out = str(town.folder / f"next.{suffix}")
    server = town.command(
        "serve", "--model", path, "--clip", "2", "--listen", f"127.0.0.1:{town.port}", "--out", out, *arguments
    )
    found = re.search(r":(\d+),", server.wait_for("listening at "))
    assert found is not None
    town.port = int(found[1])
    return server


def give(town: Town, suffix: str, number: int, *arguments: str, model: Model | None = None) -> Process:
    file = written(town.folder, f"trained-{number}.{suffix}", trained(number) if model is None else model)
    key = town.folder / "keys" / f"client-{number}.key"
    who = ("--identity", str(key)) if key.exists() else ("--client", str(number))
    own = ("--model", file, "--base", str(town.folder / f"base.{suffix}"), "--state", str(town.folder / f"s{number}"))
    return town.command("contribute", f"{town.url}:{town.port}", *own, *who, *arguments)


@pytest.mark.wire
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_model_is_summed_by_two_commands_and_weighed_by_examples(town: Town, suffix: str) -> None:
    server = serve(town, suffix, "--clients", str(CLIENTS))
    examples = (256, 512, 768, 1024)
    clients = [give(town, suffix, number, "--examples", str(examples[number])) for number in range(CLIENTS)]
    assert [client.ended() for client in clients] == [0] * CLIENTS, clients[0].text
    assert server.ended() == 0, server.text
    assert "with the mean change of 4 clients, 4 trained, with 2560 examples in all" in server.text
    assert "secagg-" not in server.text + clients[0].text
    assert "lower the server's --clip to about the largest change of one value, or raise --set" in clients[0].text
    found, before = read_model(town.folder / f"next.{suffix}"), base()
    assert {name: each.dtype for name, each in found.items()} == {name: each.dtype for name, each in before.items()}
    # 0, 1, 2 and 3 tenths, by quarters of the examples: (1 * 2 + 2 * 3 + 3 * 4) / 10 tenths.
    for name in ("layer.weight", "norm.mean"):
        assert np.abs(found[name] - before[name] - 0.2).max() < 1e-4
    assert found["norm.batches"] == 3 + round((0 + 1 + 2 + 3) / 4)
    assert found["mask"].tolist() == [True, False]


@pytest.mark.wire
def test_a_training_that_diverged_counts_in_no_mean(town: Town) -> None:
    server = serve(town, "npz", "--clients", str(CLIENTS), "--set", "weighting=uniform")
    lost = {name: each * np.nan if each.dtype.kind == "f" else each for name, each in base().items()}
    clients = [give(town, "npz", number) for number in range(CLIENTS - 1)] + [give(town, "npz", 3, model=lost)]
    assert [client.ended() for client in clients] == [0] * CLIENTS, clients[3].text
    assert server.ended() == 0, server.text
    assert "all values that training changed are NaN" in clients[3].text
    assert "training failed at 1 of 4 clients" in server.text
    found = read_model(town.folder / "next.npz")
    assert np.abs(found["norm.mean"] - 0.1).max() < 1e-4


@pytest.mark.wire
def test_clients_add_the_noise_that_both_ends_say(town: Town) -> None:
    noise = ("--set", "noise=0.001", "--set", "norm=5", "--task", "noised")
    alone = ("--set", "exclude=norm.batches", "--set", "weighting=uniform")
    server = serve(town, "npz", "--clients", str(CLIENTS), *noise, *alone)
    hopeful = give(town, "npz", 0, "--task", "noised")
    assert hopeful.ended() == 2
    assert "the server plans noise and norm [0.001, 5.0], but this client requires [0.0, 0.0]" in hopeful.text
    clients = [give(town, "npz", number, *noise) for number in range(CLIENTS)]
    assert [client.ended() for client in clients] == [0] * CLIENTS, clients[0].text
    assert server.ended() == 0, server.text
    assert "noise of clients" in server.text
    change = read_model(town.folder / "next.npz")["layer.weight"] - base()["layer.weight"]
    # Steps of 2^-16 by themselves have a smaller spread.
    assert 1e-4 < np.std(change) < 0.1
    assert abs(change.mean() - 0.15) < 0.05


@pytest.mark.wire
def test_a_killed_server_resumes_the_sum_of_its_own_model(town: Town) -> None:
    roster = ("--set", f"roster={town.make_keys()}", "--state", str(town.folder / "server"))
    own = ("--examples", "100")
    server = serve(town, "safetensors", *roster)
    clients = [give(town, "safetensors", number, *own) for number in range(4)]
    for each in clients:
        each.wait_for("clients trust certified keys")
    server.kill()
    for name, model in (("other.npz", trained(1)), ("more.npz", {**base(), "more": np.zeros(1)})):
        again = ("serve", "--model", written(town.folder, name, model), "--clip", "2", "--listen", "127.0.0.1:0")
        other = town.command(*again, "--out", str(town.folder / "next.npz"), *roster)
        assert other.ended() == 2
        assert "with different arguments; use the same ones again" in other.text
    server = serve(town, "safetensors", *roster)
    clients.append(give(town, "safetensors", 4, *own))
    assert [client.ended() for client in clients] == [0] * 5, clients[0].text
    assert server.ended() == 0, server.text
    found = read_model(town.folder / "next.safetensors")["norm.mean"]
    assert np.abs(found - 0.2).max() < 1e-4


@pytest.mark.wire
def test_an_enclave_counts_peaks_and_bounds_norms(town: Town) -> None:
    town.make_keys()
    roster = ("--protocol", "enclave", "--set", f"roster={town.folder / 'keys' / 'roster.txt'}")
    peaks = ("--set", "compression=peak", "--set", "weighting=uniform", "--set", "exclude=norm.batches")
    own = ("--protocol", "enclave", "--set", "allow_simulated_enclave=yes")
    for more, task, chosen in ((0, "peaks", peaks), (1, "bounded", ("--set", "max_norm=10", *peaks[2:]))):
        server = serve(town, "npz", *roster, *chosen, "--task", task)
        models = [trained(1 + number + more) for number in range(5)]
        clients = [give(town, "npz", number, *own, "--task", task, model=each) for number, each in enumerate(models)]
        assert [client.ended() for client in clients] == [0] * 5, clients[0].text
        assert server.ended() == 0, server.text
        change = read_model(town.folder / "next.npz")["layer.weight"] - base()["layer.weight"]
        assert 0.05 < change.mean() < 0.8
        assert (np.ptp(change) < 1e-3) == (task == "bounded")


# --- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--values", "4"), "--model sums tensors like a Flower app"),
        (("--bits", "8"), "cannot be combined with --values, --bits"),
        (("--page",), "cannot be combined with --values"),
        (("--group", "1/2"), "cannot be combined with --values"),
        (("--engine", "memory"), "cannot be combined with --values"),
        (("--out", "mean.npy"), "mean.npy is neither .npz nor .safetensors"),
        (("--clip", "0"), "secagg: --clip must be"),
        (("--set", "clip=1.0"), "--set clip has no effect here: --clip limits changes"),
        (("--set", "metrics=loss"), "--set metrics has no effect here"),
        (("--set", "down=sums"), "--set down has no effect here"),
        (("--set", "on_failure=stop"), "--set on-failure has no effect here"),
        (("--set", "stage_patience=3.0"), "--set stage-patience has no effect here"),
        (("--set", "compression=scalar-8"), "--set compression must be fixed-point, pruning-0.9 or similar, or peak"),
        (("--set", "compression=module:Name"), "--set compression must be fixed-point"),
        (("--set", "tensors=a*;b*"), "--set tensors must have no turns"),
        (("--set", "tensors=none*"), "--set tensors names none*, but the model has layer.weight"),
        (("--set", "noise=1.0"), "is the norm to which clients clip if --set noise is above 0"),
        (("--set", "noise=1.0", "--set", "norm=1.0", "--set", "weighting=uniform"), "norm.batches contains integers"),
        (("--set", "max-norm=1.0"), "use --protocol enclave"),
        (("--clip", "1e9", "--set", "fraction_bits=40"), "lower --clip or --set fraction-bits"),
    ],
)
def test_a_server_of_a_model_refuses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    path = written(tmp_path, "base.npz", base())
    out = str(tmp_path / "next.npz")
    assert said in refusal(capsys, "serve", "--model", path, "--clients", "5", "--out", out, *arguments)


def test_a_server_of_a_model_needs_a_model_and_a_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "none.npz cannot be read" in refusal(
        capsys, "serve", "--model", "none.npz", "--clients", "5", "--out", "a.npz"
    )
    path = written(tmp_path, "base.npz", base())
    assert refusal(capsys, "serve", "--model", path, "--clients", "5").endswith("also set --out\n")
    (tmp_path / "base.npz").write_bytes(b"PK")
    said = refusal(capsys, "serve", "--model", path, "--clients", "5", "--out", str(tmp_path / "next.npz"))
    assert "is not a file of named tensors" in said


def test_a_model_of_more_tensors_than_a_description_has_room_for_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.transport.description.DESCRIPTION_BYTES", 500)
    path = written(tmp_path, "base.npz", base())
    said = refusal(capsys, "serve", "--model", path, "--clients", "5", "--out", str(tmp_path / "next.npz"))
    assert "clients accept descriptions of at most 500 bytes, but this one has " in said


Describe = Callable[..., SessionDescription]


@pytest.fixture
def describe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Describe:
    """Return the description of a server's session, which ends immediately."""
    found = list[SessionDescription]()

    async def begun(_: SumServer, session: ServerSession, description: SessionDescription, **__: object) -> Released:
        session.abort()
        found.append(description)
        raise Misuse("it has begun")

    async def told(_: SumServer) -> None:
        pass

    def made(*arguments: str, model: Model | None = None) -> SessionDescription:
        path = written(tmp_path, "server.npz", base() if model is None else model)
        own = ("--clients", "5", "--out", str(tmp_path / "next.npz"), "--listen", "127.0.0.1:0", "--round", "7")
        assert main(["serve", "--model", path, *own, *arguments]) == 2
        return found.pop()

    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    monkeypatch.setattr(SumServer, "run", begun)
    monkeypatch.setattr(SumServer, "told", told)
    return made


def joined(monkeypatch: pytest.MonkeyPatch, description: SessionDescription) -> list[str]:
    """Let `secagg contribute` receive a description and answer one message, and record it before.

    Its session uses the update immediately.
    """
    waited_for = list[str]()

    class Taking:
        def member(self, _: object) -> Taking:
            return self

        def join(self, subject: Subject, update: LazyUpdate, _: object) -> None:
            update.take(subject.layout)
            raise Misuse("it is in the sum")

    async def met(_: str, join: Join, **__: object) -> None:
        session = join(description, None)
        waited_for.append("the client")
        session.answer(b"")

    monkeypatch.setattr("secagg.transport.client.contribute", met)
    monkeypatch.setattr("secagg.platforms.plugs.plug_of", always(Taking()))
    return waited_for


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a client that names its session, and return why it ends."""
    capsys.readouterr()
    assert main([*arguments]) == 2
    return capsys.readouterr().err


def client(folder: Path, *arguments: str, model: Model | None = None) -> tuple[str, ...]:
    path = written(folder, "trained.npz", trained(1) if model is None else model)
    base_of = () if "--base" in arguments else ("--base", written(folder, "base.npz", base()))
    return ("contribute", URL, "--model", path, *base_of, "--client", "0", "--state", str(folder / "s"), *arguments)


def test_a_client_joins_with_the_model_that_was_trained_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, describe: Describe
) -> None:
    zeros = {name: np.zeros_like(each) for name, each in base().items()}
    description, of_changes = describe(), describe("--task", "changes", model=zeros)
    joined(monkeypatch, description)
    assert "it is in the sum" in refused(capsys, *client(tmp_path, "--examples", "10"))
    # A server whose model is all zeros sums a file of changes unchanged.
    joined(monkeypatch, of_changes)
    own = client(tmp_path, "--examples", "10", "--task", "changes", model={**zeros, "norm.mean": np.ones(4)})
    without = own[: own.index("--base")] + own[own.index("--base") + 2 :]
    assert "it is in the sum" in refused(capsys, *without)


@pytest.mark.parametrize(
    ("arguments", "model", "said"),
    [
        ((), None, "the server weights clients by examples, 1024 of which count fully; set --examples N"),
        (("--examples", "0"), None, "--examples (training examples) must be at least 1; got 0"),
        (("--examples", "9", "--task", "other"), None, "the server sums 'sum', but this client only accepts 'other'"),
        (("--examples", "9", "--set", "minimum_cohort=10"), None, "this client requires at least 10"),
        (("--examples", "9", "--set", "adapter={}"), None, "this client's adapter has another fingerprint"),
        (("--examples", "9"), {"norm.mean": np.zeros(4)}, "training did not return these tensors"),
        (("--examples", "9"), {**base(), "norm.mean": np.zeros(5)}, "'norm.mean' was sent with shape (4,)"),
        (("--examples", "9"), {**base(), "norm.batches": np.array(2.5)}, "was sent as int64 but returned as float64"),
        (("--examples", "9"), {**base(), "mask": np.ones(2, bool)}, "changed the boolean tensor 'mask'"),
    ],
)
def test_a_client_refuses_before_anybody_waits(  # noqa: PLR0913, PLR0917 -- fixtures
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    describe: Describe,
    arguments: tuple[str, ...],
    model: Model | None,
    said: str,
) -> None:
    waited_for = joined(monkeypatch, describe())
    found = refused(capsys, *client(tmp_path, *arguments, model=model))
    assert said in found
    assert not waited_for
    assert "secagg-" not in found


def test_a_client_refuses_another_base_and_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, describe: Describe
) -> None:
    joined(monkeypatch, describe())
    other = written(tmp_path, "other.npz", trained(2))
    said = refused(capsys, *client(tmp_path, "--examples", "9", "--base", other))
    assert "the server's model differs from --base" in said
    own = client(tmp_path, "--examples", "9")
    without = own[: own.index("--base")] + own[own.index("--base") + 2 :]
    assert "set --base to the model before training" in refused(capsys, *without)
    np.save(tmp_path / "update.npy", np.zeros(4))
    update = ("contribute", URL, "--update", str(tmp_path / "update.npy"), "--client", "0")
    assert "only apply with --model" in refusal(capsys, *update, "--base", other)
    assert "only apply with --model" in refusal(capsys, *update, "--examples", "3")
    assert "the server sums a model or statistics, not an array" in refused(capsys, *update)


def test_a_client_of_a_model_refuses_a_server_of_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planned = {"clients": 5, "all_clients": 5, "group": 1, "groups": 1, "values": 4, "clip": 1.0, "bits": 8}
    description = SessionDescription(
        session="0" * 32, protocol="pairwise", task="sum", round_number=1, answer_bytes=1, terms=planned
    )
    joined(monkeypatch, description)
    assert "the server sums values or statistics, not a model" in refused(capsys, *client(tmp_path))


def test_a_trained_model_is_in_one_sum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, describe: Describe
) -> None:
    description, again = describe(), describe("--round", "8")
    joined(monkeypatch, description)
    assert "it is in the sum" in refused(capsys, *client(tmp_path, "--examples", "9"))
    waited_for = joined(monkeypatch, again)
    assert "this update was already uploaded" in refused(capsys, *client(tmp_path, "--examples", "9"))
    assert not waited_for
    assert "it is in the sum" in refused(capsys, *client(tmp_path, "--examples", "9", model=trained(2)))


def test_a_server_that_moves_the_clip_within_a_task_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, describe: Describe
) -> None:
    description, moved = describe("--clip", "1"), describe("--clip", "0.5", "--round", "8")
    joined(monkeypatch, description)
    assert "it is in the sum" in refused(capsys, *client(tmp_path, "--examples", "9"))
    waited_for = joined(monkeypatch, moved)
    said = refused(capsys, *client(tmp_path, "--examples", "9", model=trained(2)))
    assert "the clip of tensors of floats is 0.5, but was 1.0" in said
    assert not waited_for


def test_no_terminal_obeys_the_terms_of_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, describe: Describe
) -> None:
    description = describe()
    joined(monkeypatch, replace(description, terms={**description.terms, "noise": "none\x1b[2J\x9b8m\r\u202e"}))
    said = refused(capsys, *client(tmp_path, "--examples", "9"))
    assert "none [2J 8m  , " in said
    assert all(each.isprintable() or each == "\n" for each in said)


@pytest.mark.parametrize("name", ["task", "round_number", "protocol", "parameters", "about"])
def test_terms_that_say_two_things_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, describe: Describe, name: str
) -> None:
    description = describe()
    terms = dict(description.terms)
    if name == "parameters":
        terms[name] = "no base64"
    elif name == "about":
        terms[name] = 5
    else:
        changed = {"task": "another", "round_number": 9, "protocol": "lightsecagg"}[name]
        terms["about"] = json.dumps({**json.loads(terms["about"]), name: changed})
    joined(monkeypatch, replace(description, terms=terms))
    assert "the secagg record lacks" in refused(capsys, *client(tmp_path, "--examples", "9"))
