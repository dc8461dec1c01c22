"""Scenarios with one wrong field, identity or message; ``lab_server`` runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from lab_truth import initial_model

from secagg.compression.model_update import encode_parameters
from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.flower import SecAggGrid, SecAggSettings
from secagg.identifiers import ClientId
from secagg.platforms.schemes import SchemeChoice
from secagg.platforms.terms import RECORD
from secagg.session.identities import make_identities

LIED_TO = 2
Scenario = Callable[[Any], dict[str, Any]]


def with_field(message: Message, name: str, value: bytes | int | str) -> Message:
    """Change only one client's message; all clients' records are one object."""
    record = ConfigRecord({**message.content.config_records[RECORD], name: value})
    message.content = RecordDict({**message.content, RECORD: record})
    return message


def with_terms(message: Message, **changes: Any) -> Message:
    """Change the terms or parameters in one client's message; ``{task}`` is the unchanged task."""
    record = message.content.config_records[RECORD]
    if "parameters" in changes:
        return with_field(message, "parameters", changes["parameters"])
    terms = json.loads(str(record["terms"]))
    if "task" in changes:
        changes["task"] = changes["task"].replace("{task}", terms["task"])
    return with_field(message, "terms", json.dumps({**terms, **changes}))


def terms_for_some(settings: Callable[[Any], dict[str, Any]] | None = None, **changes: Any) -> Scenario:
    """Return a scenario in which two clients receive something else."""

    def scenario(lab: Any) -> dict[str, Any]:
        def tamper(message: Message) -> Iterable[Message]:
            brings = "terms" in message.content.config_records[RECORD]
            is_told = brings and message.metadata.dst_node_id in lab.nodes[:LIED_TO]
            yield with_terms(message, **changes) if is_told else message

        outcome: dict[str, Any] = lab.secure(**(settings(lab) if settings else {}), tamper=tamper)
        return outcome

    return scenario


def coarser_parameters() -> bytes:
    """Return parameters of the same tensors in another layout."""
    settings = SecAggSettings(metrics="loss", fraction_bits=15)
    choice = SchemeChoice(settings, 8000)
    return encode_parameters(choice.parameters(initial_model(), seed=bytes(32), epoch=1))


def two_models(lab: Any) -> dict[str, Any]:
    """Send two clients a second model in the same message."""

    def tamper(message: Message) -> Iterable[Message]:
        if message.metadata.dst_node_id in lab.nodes[:LIED_TO] and "arrays" in message.content:
            arrays = message.content.array_records["arrays"]
            message.content = RecordDict({**message.content, "others": arrays})
        yield message

    outcome: dict[str, Any] = lab.secure(tamper=tamper)
    return outcome


def unreadable_model(lab: Any) -> dict[str, Any]:
    """Send two clients an array that Flower cannot read."""

    def tamper(message: Message) -> Iterable[Message]:
        if message.metadata.dst_node_id in lab.nodes[:LIED_TO] and "arrays" in message.content:
            broken = ArrayRecord({"layer": Array("float32", (2,), "no.such.type", bytes(8))})
            message.content = RecordDict({**message.content, "arrays": broken})
        yield message

    outcome: dict[str, Any] = lab.secure(tamper=tamper)
    return outcome


def other_authority(lab: Any) -> dict[str, Any]:
    """Use a roster of the server's own authority."""
    folder = Path(os.environ["LAB_KEYS"]).parent / "others"
    make_identities(folder, map(ClientId, range(lab.count)), SystemCoins())
    outcome: dict[str, Any] = lab.secure(mode="active", roster=str(folder / "roster.txt"))
    return outcome


def server_side(lab: Any) -> dict[str, Any]:
    """Use the grid in ways that would reveal single updates; each is refused before anything is sent."""
    grid, said = SecAggGrid(lab.grid, settings=SecAggSettings()), dict[str, Any]()

    def messages(kind: str = "train", *, bound: float = 0.0, more: bool = False) -> list[Message]:
        found = list[Message]()
        for node in lab.nodes:
            model = {name: Array(np.asarray(values + bound * len(found))) for name, values in initial_model().items()}
            content = RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord({"server-round": 1})})
            if more:
                content["second"] = ArrayRecord(model)
            found.append(Message(content, node, kind))
        return found

    attempts: dict[str, Callable[[], object]] = {
        "pushed": lambda: grid.push_messages(messages()),
        "pushed_otherwise": lambda: grid.push_messages(messages("train.lenient")),
        "mixed": lambda: grid.send_and_receive([*messages(), *messages("query")]),
        "different_models": lambda: grid.send_and_receive(messages(bound=1.0)),
        "two_records": lambda: grid.send_and_receive(messages(more=True)),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except SecAggError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def sparse_threshold(lab: Any) -> dict[str, Any]:
    """Lose more clients of a sparse session than the threshold allows, but fewer than the minimum cohort does."""
    chaos = {p: {"at": "TRAIN", "do": "raise"} for p in (5, 6)}
    outcome: dict[str, Any] = lab.secure(topology="sparse", threshold=0.95, minimum_cohort=20, chaos=chaos)
    return outcome


LIES: dict[str, Scenario] = {
    "other_terms": terms_for_some(weighted_by="another"),
    "other_task": terms_for_some(task="{task} again"),
    "other_round": terms_for_some(round_number=1 << 40),
    "other_layout": terms_for_some(parameters=coarser_parameters()),
    "other_field": terms_for_some(metrics=[1]),
    "two_models": two_models,
    "unreadable_model": unreadable_model,
    "other_authority": other_authority,
    "server_side": server_side,
    "sparse_threshold": sparse_threshold,
}
