"""`secagg round`: real sessions of every protocol, the command's output and files, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from secagg.cli import main
from secagg.contract import Layout
from secagg.contract.codewords import Tables
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.scale import tree
from secagg.session import certificates
from secagg.session.registry import find, names
from secagg.session.roles import Released, Subject
from secagg.simulation.rehearsal import spread_dropouts
from secagg.simulation.synthetic_updates import Compression, SyntheticUpdates, UpdateSetting, WindowedInputs

SMALL = ("round", "--clients", "12", "--dimension", "600")
Report = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep each sentence on one line, whatever the tests' terminal is."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def report_of(tmp_path: Path) -> Report:
    def run(*options: str) -> dict[str, Any]:
        assert main([*SMALL, "--json", str(tmp_path / "new" / "report.json"), *options]) == 0
        report: dict[str, Any] = json.loads((tmp_path / "new" / "report.json").read_text())
        return report

    return run


@pytest.mark.parametrize("protocol", names())
@pytest.mark.parametrize("suite", ["classic", "hybrid"])
def test_a_session_with_dropouts_gives_the_exact_sum(report_of: Report, protocol: str, suite: str) -> None:
    report = report_of("--protocol", protocol, "--suite", suite, "--drop", "2", "--compression", "none")
    assert report["sum is exact"] is True
    assert report["revealed set is the contributors"] is True
    assert sum(len(stage["dropped"]) for stage in report["stages"]) == 2
    assert report["faults"] == []
    assert report["stages"][0]["messages down"] >= report["stages"][0]["answered"]


@pytest.mark.parametrize("options", [(), ("--share-checks",)], ids=["alone", "shared"])
def test_checks_are_shared_where_that_is_asked_for_and_it_is_said(
    options: tuple[str, ...], report_of: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = list[bytes]()

    class Counted:
        @classmethod
        def from_public_bytes(cls, encoded: bytes) -> Counted:
            return cls(encoded)

        def __init__(self, encoded: bytes) -> None:
            self._encoded = encoded

        def verify(self, signature: bytes, statement: bytes) -> None:
            verified.append(signature)
            Ed25519PublicKey.from_public_bytes(self._encoded).verify(signature, statement)

    monkeypatch.setattr(certificates, "Ed25519PublicKey", Counted)
    report = report_of(*options)
    assert report["sum is exact"] is True
    assert report["checks are shared"] is bool(options)
    assert report["processor seconds"] > 0
    assert ("verified once" in capsys.readouterr().out) is bool(options)
    assert (len(verified) == len(set(verified))) is bool(options)


@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "one-message"])
def test_updates_that_are_rounded_under_the_mask_err_as_a_uniform_dither_does(report_of: Report, protocol: str) -> None:
    report = report_of("--protocol", protocol, "--compression", "dither", "--drop", "2")
    assert report["sum is exact"] is True
    assert report["rounding error in steps"] == pytest.approx((report["contributors"] / 12) ** 0.5, rel=0.2)
    assert "rounded from" in report["segments"][0]


@pytest.mark.parametrize(
    ("protocol", "compression"),
    [("pairwise", "none"), ("one-message", "none"), ("two-servers", "pq"), ("enclave", "none"), ("enclave", "pq")],
)
def test_a_sum_with_noise_is_as_near_as_its_noise_reaches(report_of: Report, protocol: str, compression: str) -> None:
    report = report_of("--protocol", protocol, "--noise", "1/2", "--compression", compression)
    assert report["noise deviations"]
    assert report["sum is exact"] is True


@pytest.mark.parametrize("protocol", ["pairwise", "one-message"])
def test_a_budget_says_for_how_many_sums_it_is_and_refuses_the_first_that_passes_it(
    report_of: Report, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    options = ("--protocol", protocol, "--compression", "none", "--noise", "2", "--set", "budget_delta=1e-5")
    report = report_of(*options, "--epsilon", "8")
    assert report["sum is exact"] is True
    said = "the budget of a client, epsilon 8 at delta 1e-05, its update replaced by another, pays for 9 sums like this"
    assert any(line.startswith(said) for line in report["description"])
    assert main([*SMALL, *options, "--epsilon", "2"]) != 0
    assert re.search(
        r"its budget is 2: its 0 uploads .* a noise multiplier of 2\.\d+ would fit", capsys.readouterr().err
    )


@pytest.mark.parametrize("release", ["decoded-sum", "histogram"])
@pytest.mark.parametrize("accumulation", ["direct", "oblivious"])
def test_the_enclave_releases_what_is_asked_for(report_of: Report, release: str, accumulation: str) -> None:
    report = report_of("--protocol", "enclave", "--release", release, "--accumulation", accumulation)
    assert report["sum is exact"] is True
    form = f"counts in {accumulation} form and releases the {release.replace('-', ' ')}"
    assert any(form in line for line in report["description"])


def test_a_client_that_votes_twice_is_left_out_by_name(report_of: Report) -> None:
    report = report_of("--protocol", "two-servers", "--cheat", "2", "--drop", "0")
    assert (report["sum is exact"], report["contributors"]) == (True, 10)
    assert {f"client/{number}" for number in report["cheated"]} == report["left out"].keys()


def test_a_setting_without_an_option_is_set_by_name(report_of: Report) -> None:
    assert report_of("--set", "check_words=11")["settings"]["check_words"] == "11"


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("pairwise", ["--noise", "1/2"]),
        ("pairwise", ["--compression", "dither"]),
        ("one-message", []),
        ("enclave", ["--release", "histogram"]),
        ("enclave", ["--release", "decoded-sum"]),
        ("two-servers", ["--cheat", "1"]),
    ],
)
def test_the_sums_of_groups_add_up_to_that_of_all(
    report_of: Report, protocol: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of("--clients", "13", "--groups", "2", "--drop", "1", "--protocol", protocol, *options)
    counted = [group["contributors"] for group in report["groups"]]
    assert report["sum is exact"] is True
    assert [group["clients"] for group in report["groups"]] == [6, 7]
    assert sorted(report["revealed sets"]) == sorted(counted)
    assert report["contributors"] == sum(counted) == 13 - 1 - ("--cheat" in options)
    assert "revealed: 2 sums" in capsys.readouterr().out
    for one in report["noise deviations"]:
        assert one == pytest.approx(np.hypot(*(group["noise deviations"][0] for group in report["groups"])), rel=1e-6)


def test_a_total_that_is_wrong_fails_though_every_group_is_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain_sum = tree.joined

    def wrong(groups: Sequence[Released], layout: Layout, capacity: int, tables: Tables) -> Released:
        total = plain_sum(groups, layout, capacity, tables)
        total.aggregate.values[0][0] ^= 1
        return total

    monkeypatch.setattr(tree, "joined", wrong)
    assert main([*SMALL, "--groups", "2", "--protocol", "one-message"]) == 1
    assert "the sum is NOT the plain sum of their inputs" in capsys.readouterr().out


def test_what_is_printed_names_the_dropouts_the_revealed_set_and_the_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--clients", "24", "--drop", "5", "--corrupted", "0"]) == 0
    captured = capsys.readouterr()
    assert "dropped out before answering in stage 2 masked input: client 1\n" in captured.out
    assert "dropped out before answering in stage 0 advertise keys: client 20\n" in captured.out
    assert re.search(r"^revealed: 1 sum, over 2\d clients, which are those that uploaded", captured.out, re.MULTILINE)
    assert "the sum is exactly the plain sum of their inputs" in captured.out
    assert re.search(r"^2 masked input +\d+ +1 +", captured.out, re.MULTILINE)
    assert captured.err == ""


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("protocol", ["pairwise", "two-servers"])
def test_no_line_is_wider_than_the_terminal(
    width: int, protocol: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    assert main(["round", "--protocol", protocol, "--clients", "5", "--dimension", "300"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("stage"))
    assert max(map(len, lines)) <= width
    assert ("gone" in lines[start]) == (width >= 80)
    assert "\033" not in printed.out + printed.err


def test_what_is_simulated_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--protocol", "enclave"]) == 0
    assert "the enclave is simulated: it protects nobody from this machine" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [WindowedInputs, SyntheticUpdates])
def test_a_wrong_sum_is_said_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[Any]
) -> None:
    def is_sum_of(*_: object) -> bool:
        return False

    monkeypatch.setattr(kind, "is_sum_of", is_sum_of)
    compression = "none" if kind is WindowedInputs else "sq"
    assert main([*SMALL, "--drop", "0", "--compression", compression]) == 1
    assert "the sum is NOT the plain sum of their inputs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--clients", "1"], "--clients must be between 2 and 20000; got 1"),
        (["--dimension", "0"], "--dimension must be between 1 and "),
        (["--drop", "12"], "--drop must be between 0 and 11; got 12"),
        (["--drop", "-1"], "--drop must be between 0 and 11; got -1"),
        (["--bits", "65"], "--bits must be between 1 and 64; got 65"),
        (["--bits", "62"], "use fewer clients or fewer bits"),
        (["--threads", "0"], "--threads must be between 1 and "),
        (["--noise", "-1"], "--noise must be positive; got -1"),
        (["--corrupted", "many"], "--corrupted must be an integer; got 'many'"),
        (["--protocol", "enclave", "--topology", "full"], "--topology only applies to pairwise"),
        (["--protocol", "enclave", "--mode", "active"], "--mode only applies to pairwise"),
        (["--protocol", "enclave", "--epsilon", "8"], "--epsilon only applies to pairwise and one-message"),
        (["--epsilon", "8"], "never uploads without noise"),
        (["--noise", "1", "--epsilon", "0"], "budget_epsilon must be above 0"),
        (["--release", "histogram"], "--release only applies to enclave"),
        (["--depth", "1"], "--depth only applies to two-servers"),
        (["--compression", "pq"], "pairwise does not support IndexSegment"),
        (["--protocol", "two-servers", "--compression", "dither"], "choose a scheme without fine bits"),
        (["--compression", "sq", "--bits", "8"], "--bits does not apply to --compression sq"),
        (["--protocol", "enclave", "--bits", "8"], "--bits does not apply to --compression pq"),
        (["--codewords", "8"], "--codewords does not apply to --compression none"),
        (["--protocol", "enclave", "--codewords", "1"], "a codebook must have at least 2 codewords"),
        (["--protocol", "enclave", "--dimension", "100"], "a model of 100 values is too small"),
        (["--cheat", "1"], "pairwise has no misbehavior that it would detect"),
        (["--protocol", "two-servers", "--cheat", "11"], "--cheat leaves fewer than"),
        (["--groups", "7"], "12 clients need 1 to 6 groups of 2 to 10000; got 7"),
        (["--groups", "0"], "12 clients need 1 to 6 groups"),
        (["--groups", "2", "--clients", "20001"], "20001 clients need 3 to 10000 groups"),
        (["--groups", "2", "--drop", "11"], "--drop must be between 0 and 5; got 6"),
        (["--groups", "6"], "no sparse graph of 2 clients"),
        (["--set", "colour=red"], "pairwise has no setting 'colour'; there are mode, topology"),
        (["--set", "check_words"], "--set must be name=value"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_to_change(
    capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main([*SMALL, *options]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


def test_an_unwritable_report_is_refused_before_the_session(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main([*SMALL, "--json", str(tmp_path / "file" / "report.json")]) == 2
    captured = capsys.readouterr()
    assert "use another path" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("protocol", names())
def test_dropouts_are_dealt_out_in_turn_and_nobody_drops_out_twice(protocol: str) -> None:
    stages = find(protocol).stages
    dealt = spread_dropouts(100, 10, stages)
    assert sum(map(len, dealt.values())) == len(frozenset[ClientId]().union(*dealt.values())) == 10
    assert max(map(len, dealt.values())) - min(map(len, dealt.values())) <= 1
    uploading = next(stage.name for stage in stages if stage.takes_update)
    assert ClientId(1) in dealt[uploading]


def test_more_dropouts_than_clients_are_refused() -> None:
    with pytest.raises(InvalidParameters):
        spread_dropouts(3, 3, find("pairwise").stages)


def test_more_clients_than_the_codec_can_add_up_are_refused_before_anything_is_sent() -> None:
    inputs = WindowedInputs(input_bits=4, length=10, clients=8, seed=b"")
    subject = Subject(task=b"t", round_number=1, layout=inputs.layout, capacity=inputs.capacity)
    with pytest.raises(InvalidParameters, match="use a wider ring, or invite fewer"):
        find("pairwise").settings().plan(subject, 20, bytes(32), SystemCoins())


@pytest.mark.parametrize(
    ("options", "bounded"),
    [
        (["--protocol", "two-servers", "--compression", "peak", "--cheat", "2"], {"update", "lengths"}),
        (["--protocol", "enclave", "--compression", "peak"], {"update", "lengths"}),
        (["--protocol", "two-servers", "--compression", "peak", "--unchecked"], set[str]()),
        (["--protocol", "enclave", "--compression", "pq"], {"matrix"}),
        (["--protocol", "pairwise", "--compression", "sq"], set[str]()),
        (["--protocol", "pairwise"], set[str]()),
    ],
)
def test_a_round_says_whose_length_is_bounded_and_whose_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], bounded: set[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["round", "--clients", "8", "--drop", "0", "--dimension", "300", *options, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert {name for name, length in found["largest norms"].items() if length is not None} == bounded
    said = capsys.readouterr().out
    assert said.count("even if malicious") == len(bounded)
    assert said.count("nobody checks it") == len(found["largest norms"]) - len(bounded)
    assert sorted(found["left out"]) == [f"client/{number}" for number in found["cheated"]]


def test_the_length_that_a_round_prints_is_that_of_every_update(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = SyntheticUpdates(UpdateSetting(clients=4, dimension=300, compression=Compression.PEAK))
    lengths = [
        float(np.linalg.norm(inputs.codec.decode(inputs.ideal([ClientId(number)]))["update"])) for number in (1, 2, 3)
    ]
    bound = inputs.bounds["update"]
    assert bound is not None
    # The rotation's padding is dropped, and with it some of the length.
    assert all(0.8 * bound < length <= bound for length in lengths)
    assert (
        main(["round", "--protocol", "enclave", "--clients", "4", "--dimension", "300", "--compression", "peak"]) == 0
    )
    assert f"at most {bound:.4g}, even if malicious" in capsys.readouterr().out
