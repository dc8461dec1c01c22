"""`secagg round --protocol two-server`: a real round, what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.cli import main
from secagg.compression.model_update import ModelUpdate
from secagg.contract import Aggregate
from secagg.protocols.two_servers.server import IndexingServer
from secagg.simulation.synthetic_updates import SyntheticUpdates

SMALL = ("round", "--protocol", "two-server", "--clients", "9", "--dimension", "1500", "--codewords", "8")
Report = Callable[..., dict[str, Any]]


@pytest.fixture
def report_of(tmp_path: Path) -> Report:
    def run(*options: str) -> dict[str, Any]:
        assert main([*SMALL, "--json", str(tmp_path / "new" / "report.json"), *options]) == 0
        report: dict[str, Any] = json.loads((tmp_path / "new" / "report.json").read_text())
        return report

    return run


@pytest.mark.parametrize("compression", ["none", "sq", "pruning", "pq"])
@pytest.mark.parametrize("suite", ["classic", "hybrid"])
@pytest.mark.parametrize("mode", ["checked", "unchecked"])
def test_every_compression_gives_the_exact_sum(report_of: Report, compression: str, suite: str, mode: str) -> None:
    report = report_of("--compression", compression, "--suite", suite, "--mode", mode, "--drop", "1")
    assert (report["histogram is exact"], report["sum is exact"], report["both servers got the same"]) == (True,) * 3
    assert report["contributors"] == report["minimum cohort"] == 8
    assert report["dropped before uploading"] == [1]
    assert report["mode"] == mode


@pytest.mark.parametrize("depth", ["0", "1", "2"])
def test_every_depth_gives_the_exact_histogram_and_rejects_who_cheats(report_of: Report, depth: str) -> None:
    report = report_of("--depth", depth, "--cheat", "2")
    assert report["histogram is exact"] is True
    assert report["cheated"] == [1, 5]
    assert list(report["rejected"]) == ["client/1", "client/5"]
    assert report["contributors"] == 7


def test_half_an_upload_is_counted_by_neither_server(report_of: Report) -> None:
    report = report_of("--drop", "3")
    assert report["dropped before uploading"] == [1]
    assert report["dropped after the half for server 0"] == [4]
    assert report["dropped after the half for server 1"] == [7]
    assert (report["contributors"], report["uploaded"]) == (6, 6)
    assert report["sum is exact"] is True
    assert report["rejected"] == report["failed"] == {}
    assert report["left out"] == []


def test_more_clients_than_one_batch_are_all_counted(report_of: Report) -> None:
    report = report_of("--clients", "35", "--drop", "0")
    assert report["contributors"] == 35
    assert report["histogram is exact"] is True


def test_the_servers_keep_the_halves_of_one_batch_at_most(report_of: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, receive = list[int](), IndexingServer.receive

    def counted(server: IndexingServer, message: bytes) -> bytes:
        upload = receive(server, message)
        kept.append(len(server.waiting()))
        return upload

    monkeypatch.setattr(IndexingServer, "receive", counted)
    report_of("--clients", "50", "--drop", "0")
    assert len(kept) == 100
    assert max(kept) == 16


def test_bytes_are_those_of_each_server_and_step(report_of: Report) -> None:
    report = report_of("--depth", "0", "--drop", "0")
    zero, one = report["bytes sent by a client to each server"]
    # Lanes of seven bits for all codewords but one of 166 blocks, and sixteen plain values.
    explicit = -(-160 * 7 * 7 // 8) + 16 * 4
    assert zero < 1000
    assert explicit < one < explicit + 1700
    assert report["bytes sent by a client"] == zero + one
    between = report["bytes between servers"]
    assert list(between) == ["proposal", "answer", "conclusion", "signed list", "commitment", "share of the sum"]
    assert min(between.values()) > 0
    checks = sum(between[step] for step in ("proposal", "answer", "conclusion"))
    assert report["bytes between servers for a client"] == round(checks / 9)
    paper = 160 * 3 / 8
    assert paper < report["bytes by the count of the paper"] < paper + 16 * 4 + 1


def test_what_is_printed_says_who_is_not_in_the_sum_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--drop", "1", "--cheat", "1"]) == 0
    printed = capsys.readouterr().out
    assert "checked, lanes are integers modulo 127" in printed
    assert "dropped out before uploading: client 1\n" in printed
    assert "voted more than once in a block: client 2\n" in printed
    assert re.search("rejected: client/2: .*server/1: the openings of an upload contradict each other", printed)
    assert "released: 1 sum, over 7 clients; both servers got it" in printed
    assert "the histogram and the decoded sum are exactly what these clients' updates give" in printed
    assert "the paper counts" in printed


def test_who_is_not_checked_spoils_the_sum_and_is_not_found_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    cheating = ("--mode", "unchecked", "--cheat", "1", "--depth", "0", "--drop", "0", "--json", str(file))
    assert main([*SMALL, *cheating]) != 0
    printed = capsys.readouterr()
    if file.exists():
        report = json.loads(file.read_text())
        assert report["rejected"] == {}
        assert report["histogram is exact"] is False
        assert "nobody was checked" in printed.out
    else:
        # What the cheater took from another codeword can leave that one's count below zero.
        assert "the two shares add up to no sum" in printed.err


def test_a_wrong_sum_is_said_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = SyntheticUpdates.ideal

    def without_one(inputs: SyntheticUpdates, contributors: Any) -> Aggregate:
        return right(inputs, list(contributors)[1:])

    monkeypatch.setattr(SyntheticUpdates, "ideal", without_one)
    assert main([*SMALL]) == 1
    assert "the histogram and the decoded sum are NOT what" in capsys.readouterr().out


def test_a_decoder_that_is_off_by_a_bit_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, calls = ModelUpdate.decode, list[int]()

    def off_by_a_little(codec: ModelUpdate, aggregate: Aggregate) -> Any:
        calls.append(1)
        decoded = right(codec, aggregate)
        return {name: np.nextafter(values, 1) for name, values in decoded.items()} if len(calls) == 1 else decoded

    monkeypatch.setattr(ModelUpdate, "decode", off_by_a_little)
    assert main([*SMALL]) == 1
    assert "are NOT what these clients' updates give" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--clients", "1"], "--clients is in 2..20000; got 1"),
        (["--dimension", "100"], "a model of 100 values is too small"),
        (["--drop", "8"], "--drop is in 0..7; got 8"),
        (["--drop", "2", "--cheat", "6"], "--cheat is in 0..5; got 6"),
        (["--cheat", "1", "--compression", "sq"], "--cheat is for --compression pq"),
        (["--codewords", "1"], "a codebook has 2 codewords or more"),
        (["--depth", "9"], "depth is an integer in 0..3; got 9"),
        (["--mode", "active"], "there --mode is checked or unchecked"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(
    capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main([*SMALL, *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [("pairwise", "there --mode is active or semi_honest"), ("enclave", "there --mode is not for it")],
)
def test_a_mode_of_another_protocol_is_refused(
    capsys: pytest.CaptureFixture[str], protocol: str, sentence: str
) -> None:
    assert main(["round", "--protocol", protocol, "--mode", "checked"]) == 2
    assert sentence in capsys.readouterr().err
