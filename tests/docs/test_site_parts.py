"""The tools of the site: diagrams, links of documents, generated parts, and the check of links."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs import generated, machines, tables
from docs.drawing import drawing
from docs.included import Found, source_page
from docs.links import faults_of
from secagg.planning.costs import PlanRequest, Scheme, compare
from secagg.protocols.pairwise_mask.member import CLIENT_TRANSITIONS
from secagg.protocols.pairwise_mask.session import SERVER_TRANSITIONS
from secagg.session.registry import find, names
from secagg.wire import MessageKind


def words_of(kind: MessageKind) -> str:
    return kind.name.lower().replace("_", " ")


def test_a_session_of_pairwise_masks_sends_what_its_tables_say() -> None:
    """Follow both tables in turn: the message that a client awaits, then the one that the server awaits."""
    sent = [each.text for each in machines.messages_of("pairwise") if each.sender]
    due = zip(CLIENT_TRANSITIONS.values(), SERVER_TRANSITIONS.values(), strict=True)
    assert sent == [words_of(kind) for (one, _), (other, _) in due for kind in (one, other)]


@pytest.mark.parametrize("protocol", names())
def test_the_stages_of_a_sequence_are_those_of_the_registry(protocol: str) -> None:
    stages = [each.text for each in machines.messages_of(protocol) if not each.sender]
    assert [stage for stage in stages if stage not in {"opening", "release"}] == [
        stage.name for stage in find(protocol).stages
    ]


@pytest.mark.parametrize("protocol", machines.HELPERS)
def test_what_helpers_are_asked_is_in_the_sequence(protocol: str) -> None:
    helper = machines.HELPERS[protocol]
    assert {helper} <= {each.receiver for each in machines.messages_of(protocol)}
    assert {helper} <= {each.sender for each in machines.messages_of(protocol)}


def test_steps_that_are_refused_are_in_no_diagram() -> None:
    found = machines.states("two-servers")
    assert "collecting --> signed: sign the list" in found
    assert "collecting --> agreed" not in found
    assert "failed --> [*]" in found


@pytest.mark.parametrize("machine", ["pairwise-client", "one-message", "lightsecagg", "enclave", "two-servers"])
def test_every_state_and_every_word_is_drawn(machine: str) -> None:
    drawn = ET.fromstring(drawing(machines.states(machine)))  # noqa: S314 - made here
    texts = [text.text for text in drawn.iter() if text.tag.endswith("tspan")]
    named = {part.replace("_", " ") for line in machines.states(machine).splitlines() for part in line.split()[:1]}
    assert named - {"stateDiagram-v2", "[*]"} <= set(texts)
    width = float(drawn.attrib["viewBox"].split()[2])
    places = [float(text.attrib["x"]) for text in drawn.iter() if "x" in text.attrib]
    assert all(0 <= place <= width for place in places)


def test_an_unknown_diagram_is_refused() -> None:
    with pytest.raises(ValueError, match="pie is not supported"):
        drawing("pie\n  a: 1")
    with pytest.raises(ValueError, match="not supported in a state"):
        drawing("stateDiagram-v2\n    a --> ")
    with pytest.raises(ValueError, match="not supported in a sequence"):
        drawing("sequenceDiagram\n    loop every day")


def test_links_of_a_document_lead_to_pages_sources_and_pictures() -> None:
    found = Found()
    text = (
        "[a](../enclave/README.md#boot) [b](run.py) [c](https://example.org) [d](#here) `[e](run.py)`\n"
        "```\n[f](run.py)\n```\n![g](../../benchmarks/results/iso_frontier.png) [h](/SECURITY.md)"
    )
    page, document = "protocols/pairwise-specification.md", "protocols/pairwise_mask/README.md"
    assert found.linked(text, page, document) == (
        "[a](enclave-specification.md#boot) [b](../source/protocols/pairwise_mask/run.py.md) [c](https://example.org) "
        "[d](#here) `[e](run.py)`\n```\n[f](run.py)\n```\n![g](../benchmarks/results/iso_frontier.png) "
        "[h](../trust/security.md)"
    )
    assert found.sources == {"protocols/pairwise_mask/run.py"}
    assert found.pictures == {"benchmarks/results/iso_frontier.png"}


def test_a_link_to_nothing_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"protocols/enclave/nowhere\.py is linked but"):
        Found().linked("[a](nowhere.py)", "protocols/enclave-specification.md", "protocols/enclave/README.md")


def test_a_folder_without_a_document_becomes_a_list() -> None:
    found = Found()
    assert found.page_of("protocols/two_servers/point_functions") is None
    assert found.listing("protocols/two_servers/point_functions") == source_page(
        "protocols/two_servers/point_functions"
    )


def test_the_table_of_costs_has_what_the_planner_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and round trips are compared; seconds depend on the machine."""
    monkeypatch.setattr(generated, "in_bytes", str)
    rows = [line.split(" | ") for line in generated.plan("20", "10000").splitlines()[2:]]
    comparison = compare(PlanRequest(shapes={"w": (100, 100)}, clients=20, bits=8))
    for row, name in zip(rows, names(), strict=True):
        option = comparison.shortest(name, Scheme.SCALAR)
        assert option is not None
        assert name in row[0]
        assert row[1:4] == [str(len(option.entry.stages)), str(option.costs.up_bytes), str(option.down_bytes)]


def test_what_a_page_prints_is_what_its_blocks_print_when_it_is_built() -> None:
    blocks = "```python\na = 2\nprint('first')\n```\n\n{{ printed }}\n\n```python\nprint('long ' * 20, a)\n```\n"
    made = generated.filled("a.md", f"{blocks}\n{{{{ printed }}}}\n")
    assert "\n```text\nfirst\n```\n" in made
    assert made.endswith(f"\n```text\n{('long ' * 16).strip()}\nlong long long long  2\n```\n")
    assert generated.said("examples/flower_torch/README.md").startswith("```text\nround 1, sum: ")


def test_a_page_that_asks_for_nothing_known_is_refused() -> None:
    with pytest.raises(ValueError, match="requests 'figures'"):
        generated.filled("a.md", "{{ figures }}")


def test_every_claim_is_in_the_ledger_s_page_with_what_it_does_not_say(repository: Path) -> None:
    text, ledger = generated.claims(), (repository / "proofs" / "claims.toml").read_text(encoding="utf-8")
    assert text.count("\n## ") + 1 == ledger.count("[[claim]]")
    assert text.count("- *does not say*") == ledger.count("\ndoes_not_say = ") - ledger.count("\ndoes_not_say = []")


def test_every_command_is_in_its_page() -> None:
    text = generated.commands()
    assert "## secagg holder serve" in text
    assert "--minimum-holders N" in text


def test_every_name_of_a_face_is_in_the_reference() -> None:
    assert "::: secagg.protocols.pairwise_mask.client.PairwiseMember" in generated.api("secagg.protocols.pairwise_mask")
    assert "EnclaveHelpers" in generated.api("secagg.protocols.enclave")


def test_the_scoreboard_has_the_verdicts_and_what_each_script_found() -> None:
    text, record = generated.scoreboard(), json.loads((generated.RESULTS / "scoreboard.json").read_text("utf-8"))
    assert "| cohort of one | **succeeded** |" in text
    for attack, what in record["attacks"].items():
        section = text.partition(f"## {attack.capitalize()}\n\n{what}\n\n")[2].partition("\n##")[0]
        for library in record["libraries"]:
            assert library["attacks"][attack]["why"][1:].rstrip(".") in section
    assert "- secagg, `active`: " in text
    assert text.count("- flwr: ") == len(record["attacks"])


def test_broken_links_and_what_is_fetched_from_elsewhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="a">x</h1><a href="deep/#b">1</a><a href="#a">2</a><a href="https://example.org">3</a>'
        '<link rel="canonical" href="https://example.org/">',
        encoding="utf-8",
    )
    (tmp_path / "deep" / "index.html").write_text(
        '<p id="b"><a href="../">4</a><a href="/index.html#a">5</a>', encoding="utf-8"
    )
    assert list(faults_of(tmp_path)) == []
    (tmp_path / "bad.html").write_text(
        '<a href="deep/#c">1</a><a href="gone.html">2</a><script src="https://cdn.example/m.js"></script>'
        '<link rel="stylesheet" href="//fonts.example/f.css"><a href="#nothing">3</a>',
        encoding="utf-8",
    )
    assert list(faults_of(tmp_path)) == [
        "bad.html: deep/#c has no such anchor",
        "bad.html: gone.html does not exist",
        "bad.html: https://cdn.example/m.js is loaded from another host; keep it in the site",
        "bad.html: //fonts.example/f.css is loaded from another host; keep it in the site",
        "bad.html: #nothing has no such anchor",
    ]


@pytest.mark.parametrize("protocol", ["light_secagg", "pairwise_mask"])
def test_a_review_lists_each_file_behind_those_that_it_uses(protocol: str) -> None:
    said, listed, _, handed = generated.review(protocol).split("\n\n")
    assert "(/secagg/session/roles.py)" in handed
    assert ("/client_record.py)" in handed) == (protocol == "pairwise_mask")
    rows = [line.split(" | ") for line in listed.splitlines()[2:]]
    files = [row[0].partition("](/")[2].rstrip(")") for row in rows]
    assert said == f"{len(files)} files, {sum(int(row[1]) for row in rows):,} lines of code."
    assert files[-1] == f"protocols/{protocol}/client.py"
    assert files.index("secagg/errors.py") < files.index("secagg/wire.py") < files.index("secagg/contract/layout.py")
    assert f"protocols/{protocol}/server.py" not in files
    assert all(row[2].endswith(" |") and len(row[2]) > len("about |") for row in rows)


def test_cells_of_a_table_name_their_column() -> None:
    head = '<table>\n<thead><tr><th>a &amp; "b"</th><th style="x"><code>c</code></th></tr></thead>'
    page = f"<p><td></p>{head}<tbody><tr><td>1</td><td>2</td></tr><tr><td>3</td><td>4</td></tr></tbody></table>"
    found = re.findall(r'<td data-label="([^"]*)"><div>(\d)</div>', tables.labelled(page))
    quoted = "a &amp; &quot;b&quot;"
    assert found == [(quoted, "1"), ("c", "2"), (quoted, "3"), ("c", "4")]
    assert tables.labelled(page).startswith("<p><td></p>"), "only tables change"
