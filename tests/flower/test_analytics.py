"""Statistics in Flower: rounds in memory by every protocol, and a simulation of real apps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import secagg.flower as plugin
from secagg.analytics import Declaration, Results, Site, summed
from secagg.errors import SecAggError
from secagg.platforms.settings import SecAggSettings
from tests.flower.test_rounds_in_memory import CLIENTS, MemoryGrid, adding, folders
from tests.harness.platform_keys import PROTOCOLS, named
from tests.harness.town_of_sites import declared, functions, people

__all__ = ["folders"]
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
NODES = CLIENTS
SCENARIOS = ["statistics"]


class Nodes(MemoryGrid):
    """Nodes that answer immediately, each with its own function; records the answers' lengths."""

    def __init__(self, apps: list[Any]) -> None:
        def answered(message: Any, context: Any, call_next: Any) -> Any:
            del call_next
            return apps[context.node_config["partition-id"]](message, context)

        super().__init__(cast("plugin.SecAggMod", answered), adding(0))
        self.lengths = list[tuple[int, list[int]]]()

    def get_node_ids(self) -> list[int]:
        return [100 + node for node in range(NODES)]

    def push_messages(self, messages: Any) -> list[str]:
        pushed = super().push_messages(messages)
        for identity, message in zip(pushed, self.sent[len(self.sent) - len(pushed) :], strict=True):
            reply = self.replies[identity]
            records = [] if reply.has_error() else reply.content.config_records.values()
            self.lengths.append((message.metadata.dst_node_id, [len(each["message"]) for each in records]))
        return pushed


def settings_of(folder: Path, protocol: str, settings: dict[str, Any]) -> SecAggSettings:
    keys: dict[str, Any] = named(folder, protocol, settings, range(NODES))
    return SecAggSettings(protocol=protocol, **settings, **keys)


def ask(nodes: Nodes, declaration: Declaration, settings: SecAggSettings) -> Results:
    return plugin.ask(cast("Any", nodes), cast("Any", None), declaration, settings=settings, timeout=60.0)


def sites(**changed: Any) -> list[Site]:
    return [
        Site(declaration=declared(**changed), functions=functions(people(number, 20 * number)))
        for number in range(NODES)
    ]


def app(site: Site, folder: Path, **policy: Any) -> Callable[..., Any]:
    def of_node(context: object) -> Site:
        del context
        return site

    made: Callable[..., Any] = plugin.SiteStatistics(of_node, identity=str(folder / "keys"), **policy)
    return made


@pytest.mark.parametrize(("protocol", "settings", "policy"), PROTOCOLS)
def test_statistics_of_nodes_are_those_of_all_their_people(
    folders: Path, protocol: str, settings: dict[str, Any], policy: dict[str, Any]
) -> None:
    nodes = Nodes([app(site, folders, **policy) for site in sites()])
    results = ask(nodes, declared(), settings_of(folders, protocol, settings))
    here = summed(declared(), [site.functions for site in sites()])
    assert results.statistics == here.statistics
    assert results.sites == NODES


def test_a_node_answers_its_own_declaration_alone_and_once(folders: Path) -> None:
    nodes = Nodes([app(site, folders) for site in sites()])
    active = settings_of(folders, "pairwise", {"mode": "active"})
    with pytest.raises(SecAggError):
        ask(nodes, declared(name="others"), active)
    assert not any(sizes for _, sizes in nodes.lengths)
    ask(nodes, declared(), active)
    answered = len(nodes.lengths)
    with pytest.raises(SecAggError):
        ask(nodes, declared(), active)
    assert not any(sizes for _, sizes in nodes.lengths[answered:])


def test_a_server_sees_the_same_of_a_node_whatever_its_people_are(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[list[tuple[int, list[int]]]]()

    def raising() -> list[Any]:
        raise RuntimeError("a value of a patient")

    for own in (functions(people(1, 40)), dict.fromkeys(declared().variables, raising), functions(people(0, 0))):
        own_sites = [Site(declaration=declared(), functions=own), *sites()[1:]]
        # Each has a new town, without an earlier ledger.
        monkeypatch.setenv("SECAGG_STATE_DIRECTORY", str(folders / str(len(seen))))
        nodes = Nodes([app(site, folders) for site in own_sites])
        ask(nodes, declared(), SecAggSettings())
        seen.append(nodes.lengths)
    assert seen[0] == seen[1] == seen[2]


def test_a_simulation_has_the_statistics_of_all_its_people(outcomes: dict[str, Any]) -> None:
    here = summed(declared(), [functions(people(number, 20 * number)) for number in range(8)])
    assert outcomes["statistics"]["statistics"] == json.loads(json.dumps(here.statistics))
