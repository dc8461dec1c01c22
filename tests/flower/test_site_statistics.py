"""Statistics in Flower: rounds in memory by every protocol, and a simulation of real apps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.platforms.charges import DIRECTORY_VARIABLE
from secagg.platforms.keys.identities import make_identities
from secagg.platforms.settings import SecAggSettings
from secagg.site_statistics import Site, summed
from tests.harness.town_of_sites import declared, functions, people

pytestmark = pytest.mark.flower
NODES = 5
APP = Path(__file__).resolve().parent / "apps" / "lab_statistics.py"
HOLDERS = [part for number in range(NODES) for part in ("--client", str(number))]
PROTOCOLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("pairwise", {}, {}),
    ("pairwise", {"mode": "active"}, {}),
    ("enclave", {}, {"allow_simulated_enclave": True}),
    ("two-servers", {"weighting": "uniform"}, {"allow_simulated_second_server": True}),
    ("one-message", {}, {}),
]


class Nodes:
    """Nodes that answer at once, each by its own function and state."""

    def __init__(self, apps: list[Any]) -> None:
        flwr = pytest.importorskip("flwr.app")
        self.flwr, self.apps, self.run = flwr, apps, SimpleNamespace(run_id=7)
        self.contexts = [
            flwr.Context(7, 100 + node, {"partition-id": node}, flwr.RecordDict(), {}) for node in range(len(apps))
        ]
        self.replies, self.lengths = dict[str, Any](), list[tuple[int, list[int]]]()

    def get_node_ids(self) -> list[int]:
        return [100 + node for node in range(len(self.apps))]

    def push_messages(self, messages: Any) -> list[str]:
        pushed = list[str]()
        for message in messages:
            node, identity = message.metadata.dst_node_id - 100, f"message {len(self.lengths)}"
            message.metadata.__dict__["_message_id"] = identity
            records = {name: type(record)(dict(record.items())) for name, record in message.content.items()}
            copy = self.flwr.Message(
                self.flwr.RecordDict(records), message.metadata.dst_node_id, message.metadata.message_type
            )
            copy.metadata.__dict__["_message_id"] = identity
            reply = self.replies[identity] = self.apps[node](copy, self.contexts[node])
            sizes = (
                [] if reply.has_error() else [len(each["message"]) for each in reply.content.config_records.values()]
            )
            self.lengths.append((node, sizes))
            pushed.append(identity)
        return pushed

    def pull_messages(self, message_ids: Any) -> list[Any]:
        return [self.replies.pop(identity) for identity in sorted(message_ids) if identity in self.replies]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("flwr")
    monkeypatch.setenv("SECAGG_STATE_DIRECTORY", str(tmp_path / "states"))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    identity: Any = import_module("flwr.supercore.task_identity").TaskIdentity
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(identity, name, 1)
    make_identities(tmp_path / "keys", map(ClientId, range(NODES)), SystemCoins())
    return import_module("secagg.flower")


def named(folder: Path, protocol: str, settings: dict[str, Any]) -> SecAggSettings:
    """Return the settings of a server, with the files that the protocol needs."""
    found = dict(settings)
    if protocol != "pairwise" or settings:
        found["roster"] = str(folder / "keys" / "roster.json")
    if protocol == "one-message":
        signed = ["holder", "record", "--authority", str(folder / "keys" / "authority.key"), "--number", "1"]
        out = ["--roster", found["roster"], "--out", str(folder / "record")]
        assert import_module("secagg.cli").main([*signed, *HOLDERS, *out]) == 0
        found["epoch"] = str(folder / "record")
    return SecAggSettings(protocol=protocol, **found)


def sites(**changed: Any) -> list[Site]:
    return [
        Site(declaration=declared(**changed), functions=functions(people(number, 20 * number)))
        for number in range(NODES)
    ]


def app(plugin: Any, site: Site, folder: Path, **floors: Any) -> Callable[..., Any]:
    def of_node(context: object) -> Site:
        del context
        return site

    made: Callable[..., Any] = plugin.SiteStatistics(of_node, identity=str(folder / "keys"), **floors)
    return made


@pytest.mark.parametrize(("protocol", "settings", "floors"), PROTOCOLS)
def test_statistics_of_nodes_are_those_of_all_their_people(
    plugin: Any, tmp_path: Path, protocol: str, settings: dict[str, Any], floors: dict[str, Any]
) -> None:
    nodes = Nodes([app(plugin, site, tmp_path, **floors) for site in sites()])
    results = plugin.ask(nodes, None, declared(), settings=named(tmp_path, protocol, settings), timeout=60.0)
    here = summed(declared(), [site.functions for site in sites()])
    assert results.statistics == here.statistics
    assert results.sites == NODES


def test_a_node_answers_its_own_declaration_alone_and_once(plugin: Any, tmp_path: Path) -> None:
    nodes = Nodes([app(plugin, site, tmp_path) for site in sites()])
    active = named(tmp_path, "pairwise", {"mode": "active"})
    with pytest.raises(SecAggError):
        plugin.ask(nodes, None, declared(name="others"), settings=active, timeout=60.0)
    assert not any(sizes for _, sizes in nodes.lengths)
    plugin.ask(nodes, None, declared(), settings=active, timeout=60.0)
    answered = len(nodes.lengths)
    with pytest.raises(SecAggError):
        plugin.ask(nodes, None, declared(), settings=active, timeout=60.0)
    assert not any(sizes for _, sizes in nodes.lengths[answered:])


def test_a_server_sees_the_same_of_a_node_whatever_its_people_are(plugin: Any, tmp_path: Path) -> None:
    seen = list[list[tuple[int, list[int]]]]()

    def raising() -> list[Any]:
        raise RuntimeError("a value of a patient")

    for own in (functions(people(1, 40)), dict.fromkeys(declared().variables, raising), functions(people(0, 0))):
        own_sites = [Site(declaration=declared(), functions=own), *sites()[1:]]
        nodes = Nodes([app(plugin, site, tmp_path) for site in own_sites])
        plugin.ask(nodes, None, declared(), settings=SecAggSettings(), timeout=60.0)
        seen.append(nodes.lengths)
    assert seen[0] == seen[1] == seen[2]


def test_a_simulation_has_the_statistics_of_all_its_people(
    make_workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(APP.parents[3]))
    place = make_workplace(tmp_path)
    try:
        place.run(sys.executable, str(APP), str(tmp_path / "out.json"), timeout=600)
    finally:
        place.end()
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    here = summed(declared(), [functions(people(number, 20 * number)) for number in range(NODES)])
    assert found == json.loads(json.dumps(here.statistics))
