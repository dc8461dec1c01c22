"""Statistics over HTTP: a server and three sites as processes, and their refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from secagg.analytics import summed
from tests.harness.commands import refusal
from tests.harness.standing_holders import StandingHolders
from tests.harness.town_of_sites import People, declared, functions, people, write_declaration, write_people
from tests.harness.wire_town import Process, Town

SITES = 3
HOLDERS = 4
CERTIFIED = {
    "enclave": ["--set", "allow_simulated_enclave=yes"],
    "two-servers": ["--set", "allow_simulated_second_server=yes"],
    "one-message": [],
}
"""A site's policy for protocols whose sites have keys."""
URL = "http://127.0.0.1:1"


def written(folder: Path, name: str = "outcomes", **changed: Any) -> str:
    return write_declaration(folder / f"{name}.toml", name=name, **changed)


def visits(folder: Path, number: int) -> tuple[str, People]:
    found = people(number, 30 * number)
    return write_people(folder / f"visits-{number}.csv", found), found


def serve(town: Town, *arguments: str) -> Process:
    server = town.command("serve", "--listen", "127.0.0.1:0", "--out", str(town.folder / "out.json"), *arguments)
    found = re.search(r":(\d+),", server.wait_for("listening at "))
    assert found is not None
    town.port = int(found[1])
    return server


def answer(town: Town, number: int, declaration: str, *arguments: str) -> Process:
    state = ("--state", str(town.folder / f"state-{number}"))
    key = town.folder / "keys" / f"client-{number}.key"
    who = ("--identity", str(key)) if key.exists() else ("--client", str(number))
    data, _ = visits(town.folder, number)
    return town.command(
        "contribute", f"{town.url}:{town.port}", "--statistics", declaration, "--data", data, *who, *state, *arguments
    )


@pytest.fixture
def holding(town: Town) -> Iterator[Callable[[], list[str]]]:
    """Run standing holders, and return the options of a server that uses them."""
    made = list[StandingHolders]()

    def start() -> list[str]:
        authority = town.folder / "keys" / "authority.key"
        made.append(StandingHolders(town.folder, authority, HOLDERS, serve=("--minimum-cohort", "3")))
        sockets = ",".join(map(made[0].socket, range(HOLDERS)))
        return ["--set", f"epoch={town.folder / 'record'}", "--set", f"holders={sockets}"]

    yield start
    for holders in made:
        holders.end()


@pytest.mark.wire
@pytest.mark.parametrize("protocol", ["pairwise", "lightsecagg", "enclave", "two-servers", "one-message"])
def test_three_sites_have_the_statistics_of_all_their_people(
    town: Town, protocol: str, holding: Callable[[], list[str]]
) -> None:
    declaration = written(town.folder)
    chosen, own = ("--protocol", protocol), list[str]()
    who = ["--clients", "3", *(["--set", "threshold=1.0"] if protocol == "lightsecagg" else [])]
    if protocol in CERTIFIED:
        assert town.command("keys", "--clients", "3", "--out", str(town.folder / "keys")).ended() == 0
        who, own = ["--set", f"roster={town.folder / 'keys' / 'roster.txt'}"], CERTIFIED[protocol]
    if protocol == "one-message":
        who += holding()
    server = serve(town, "--statistics", declaration, *who, *chosen)
    sites = [answer(town, number, declaration, *chosen, *own) for number in range(SITES)]
    assert [site.ended() for site in sites] == [0] * SITES, sites[0].text
    assert server.ended() == 0
    assert "statistics of 3 sites" in server.text
    found = json.loads((town.folder / "out.json").read_text())
    here = summed(declared(), [functions(visits(town.folder, number)[1]) for number in range(SITES)])
    assert found["statistics"] == json.loads(json.dumps(here.statistics))
    assert found["statistics"]["people"]["count"] == 90


@pytest.mark.wire
def test_a_site_answers_its_own_declaration_once_for_each_version_of_its_data(town: Town) -> None:
    assert town.command("keys", "--clients", "3", "--out", str(town.folder / "keys")).ended() == 0
    roster = ("--set", f"roster={town.folder / 'keys' / 'roster.txt'}", "--set", "corrupted=0")
    declaration, other = written(town.folder), written(town.folder, "others")
    server = serve(town, "--statistics", declaration, *roster)
    curious = answer(town, 0, other)
    assert curious.ended() == 2
    assert "the server's statistics differ from this site's declaration 'others'" in curious.text
    server.terminate()
    server = serve(town, "--statistics", declaration, *roster)
    # Three sites cannot tolerate one that colludes with the server, so each must assume none.
    none = ("--set", "assumed_corrupted=0")
    sites = [answer(town, number, declaration, *none) for number in range(SITES)]
    assert [site.ended() for site in sites] == [0] * SITES, "".join(site.text for site in sites)
    assert server.ended() == 0
    again = serve(town, "--statistics", declaration, *roster)
    refused = answer(town, 0, declaration, *none)
    assert refused.ended() != 0
    assert "has uploaded once for the model" in refused.text
    again.terminate()
    again = serve(town, "--statistics", declaration, *roster)
    sites = [answer(town, number, declaration, "--data-version", "2", *none) for number in range(SITES)]
    assert [site.ended() for site in sites] == [0] * SITES, "".join(site.text for site in sites)
    assert again.ended() == 0


def test_what_cannot_be_asked_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    declaration, site = written(tmp_path), ("contribute", URL, "--client", "0", "--state", str(tmp_path / "state"))
    data, _ = visits(tmp_path, 1)
    asked = ("serve", "--statistics", declaration, "--clients", "3")
    out = ("--out", str(tmp_path / "out.json"))
    assert "also set --out" in refusal(capsys, *asked)
    assert "cannot be combined with --values, --clip" in refusal(capsys, *asked, *out, "--values", "4")
    assert "--page or --group" in refusal(capsys, *asked, *out, "--page")
    assert "as TOML" in refusal(capsys, "serve", "--statistics", data, *out, "--clients", "3")
    few = written(tmp_path, "few", least_clients=4)
    assert "minimum_cohort is 4, but" in refusal(capsys, "serve", "--statistics", few, *asked[3:], *out)
    mine = (*site, "--statistics", declaration)
    assert "set --data" in refusal(capsys, *mine)
    assert "cannot be read as CSV" in refusal(capsys, *mine, "--data", str(tmp_path / "none.csv"))
    (tmp_path / "other.csv").write_text("age\n1\n")
    assert "the declaration uses 'weight'" in refusal(capsys, *mine, "--data", str(tmp_path / "other.csv"))
    assert "is lost" in refusal(capsys, *mine, "--data", data, "--patience", "0")
    assert "this site requires noise of 3" in refusal(capsys, *mine, "--data", data, "--set", "noise=3.0")
    assert "norm is not a client setting" in refusal(capsys, *mine, "--data", data, "--set", "norm=3.0")
