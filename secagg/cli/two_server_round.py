"""One round of two servers in memory, with real cryptography, and what it took."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.contract import Aggregate, IndexSegment, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.floors import IndexingFloors
from secagg.protocols.two_servers.journal import NoJournal
from secagg.protocols.two_servers.ledger import UploadLedger
from secagg.protocols.two_servers.one_hot.statement import SEED_BYTES
from secagg.protocols.two_servers.server import IndexingServer
from secagg.session.certificates import IDENTITY_KEY_BYTES, SigningKey, issue_certificate
from secagg.simulation.cheating_clients import CheatingClient
from secagg.simulation.measured_indexing import Cast, Delivery, MeasuredRound, measured_round
from secagg.simulation.synthetic_updates import SyntheticUpdates, UpdateSetting

from .figures import Bar, in_bytes, in_seconds, peak_mib, some

LEAST_CLIENTS, MOST_CLIENTS = 2, 20_000
MOST_VALUES: Final = 1 << 26
MODES: Final[Mapping[str, SharingMode]] = {
    "checked": SharingMode.CHECKED_POINT_FUNCTIONS,
    "unchecked": SharingMode.UNCHECKED_POINT_FUNCTIONS,
}
_TASK: Final = b"a rehearsal"
_ROUND: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoServerSetting:
    """The choices that a rehearsal leaves to whoever starts it."""

    drop: int
    cheat: int
    suite: Suite
    mode: SharingMode
    depth: int | None
    threads: int


def run_two_server_round(updates: UpdateSetting, setting: TwoServerSetting, report: Path | None) -> int:
    """Run one round, print what it took, and fail unless its sum is exact."""
    for name, value, least, most in (
        ("clients", updates.clients, LEAST_CLIENTS, MOST_CLIENTS),
        ("dimension", updates.dimension, 1, MOST_VALUES),
        ("drop", setting.drop, 0, updates.clients - LEAST_COHORT),
        ("cheat", setting.cheat, 0, updates.clients - setting.drop - LEAST_COHORT),
    ):
        if not least <= value <= most:
            raise InvalidParameters(f"--{name} is in {least}..{most}; got {value}")
    inputs = SyntheticUpdates(updates)
    cast = Cast.of(updates.clients, drop=setting.drop, cheat=setting.cheat)
    now = datetime.now(UTC)
    authority, signing_keys = _new_signing_key(), (_new_signing_key(), _new_signing_key())
    configuration = IndexingConfiguration(
        task=_TASK,
        suite=setting.suite,
        authority=authority.public_key,
        server_keys=(signing_keys[0].public_key, signing_keys[1].public_key),
        layout=inputs.codec.layout,
        mode=setting.mode,
        depth=setting.depth,
        minimum_cohort=max(LEAST_COHORT, len(cast.honest)),
        maximum_cohort=updates.clients,
        maximum_rejections=setting.cheat,
        expiry=int((now + timedelta(days=1)).timestamp()),
    )
    if setting.cheat and not configuration.index_segments:
        raise InvalidParameters("--cheat is for --compression pq: of what is not an index, nothing is checked")
    bar, started = Bar(), perf_counter()
    with Secret.random("pair key", SEED_BYTES, SystemCoins()) as pair_key:
        servers = [
            IndexingServer(
                configuration,
                ServerId(index),
                round_number=_ROUND,
                signing_key=signing_key,
                pair_key=pair_key,
                journal=NoJournal(),
                coins=SystemCoins(),
                threads=setting.threads,
            )
            for index, signing_key in enumerate(signing_keys)
        ]
    clients = (
        (_new_client(number, authority, configuration, inputs, setting, cast), _encoder(inputs, number), delivery)
        for number, delivery in cast.deliveries()
    )
    try:
        measured = measured_round(
            servers[0],
            servers[1],
            clients,
            count=len(list(cast.deliveries())),
            now=now,
            progress=lambda done, count: bar.update("1 shared upload", done, count),
        )
    finally:
        bar.clear()
    seconds = perf_counter() - started
    exact = _exactness(inputs, measured)
    summary = _summary(inputs, configuration, measured, cast, seconds, exact)
    print("\n".join(_text(summary, setting)))
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(summary, indent=2) + "\n")
        print(f"\nwritten to {report}")
    return 0 if all(exact) else 1


# --- Private ----------------------------------------------------------------------------------------------------------


def _encoder(inputs: SyntheticUpdates, number: int) -> Callable[[], Payload]:
    return lambda: inputs.payload_of(number)


def _new_signing_key() -> SigningKey:
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        return SigningKey(seed)


def _new_client(  # noqa: PLR0913, PLR0917 -- whatever a client is made from
    number: int,
    authority: SigningKey,
    configuration: IndexingConfiguration,
    inputs: SyntheticUpdates,
    setting: TwoServerSetting,
    cast: Cast,
) -> Client:
    signing_key = _new_signing_key()
    kind = CheatingClient if number in cast.cheaters else Client
    return kind(
        certificate=issue_certificate(authority, ClientId(number), signing_key.public_key),
        signing_key=signing_key,
        floors=IndexingFloors(
            suites=frozenset({setting.suite}),
            authority=authority.public_key,
            server_keys=configuration.server_keys,
            minimum_cohort=configuration.minimum_cohort,
            maximum_length=sum(segment.length for segment in configuration.layout.segments),
            modes=frozenset({setting.mode}),
        ),
        layout=inputs.codec.layout,
        capacity=inputs.codec.capacity,
        ledger=UploadLedger(_TASK),
        coins=SystemCoins(),
        threads=setting.threads,
    )


@dataclass(frozen=True, slots=True)
class _Exact:
    """What of the result is exact, to the last bit."""

    histogram: bool
    decoded: bool
    same_at_both: bool

    def __iter__(self) -> Iterator[bool]:
        return iter((self.histogram, self.decoded, self.same_at_both))


def _exactness(inputs: SyntheticUpdates, measured: MeasuredRound) -> _Exact:
    """Compare with the sum in the clear of those who are said to be in it."""
    zero, one = measured.results
    ideal = inputs.ideal(zero.counted)
    decoded, plain = inputs.codec.decode(zero.aggregate), inputs.codec.decode(ideal)
    return _Exact(
        histogram=_equal(zero.aggregate, ideal),
        decoded=all(np.array_equal(plain[name], decoded[name]) for name in plain),
        same_at_both=_equal(zero.aggregate, one.aggregate) and zero.counted == one.counted,
    )


def _equal(left: Aggregate, right: Aggregate) -> bool:
    pairs = zip(left.values, right.values, strict=True)
    counts = (left.contributors, left.total_weight) == (right.contributors, right.total_weight)
    return counts and all(np.array_equal(one, other) for one, other in pairs)


def _summary(  # noqa: PLR0913, PLR0917 -- everything that is printed
    inputs: SyntheticUpdates,
    configuration: IndexingConfiguration,
    measured: MeasuredRound,
    cast: Cast,
    seconds: float,
    exact: _Exact,
) -> dict[str, Any]:
    figures, result = measured.figures, measured.results[0]
    clients = len(list(cast.deliveries()))
    rejected = dict[str, dict[str, str]]()
    for index, each in enumerate(measured.results):
        for client, reason in sorted(each.rejected.items()):
            rejected.setdefault(str(client), {})[str(ServerId(index))] = reason
    paper = upload_bytes(configuration.layout, Accounting.PAPER)
    return {
        "protocol": "two servers",
        "compression": inputs.setting.compression.value,
        "suite": configuration.suite.value,
        "mode": "checked" if configuration.is_checked else "unchecked",
        "lanes": f"integers modulo {configuration.group.order}",
        "clients": inputs.setting.clients,
        "dimension": inputs.values,
        "segments": [_segment(configuration, segment) for segment in configuration.layout.segments],
        "minimum cohort": configuration.minimum_cohort,
        "dropped before uploading": cast.lost_at(None),
        "dropped after the half for server 0": cast.lost_at(Delivery.ZERO_ALONE),
        "dropped after the half for server 1": cast.lost_at(Delivery.ONE_ALONE),
        "cheated": list(cast.cheaters),
        "failed": {str(client): reason for client, reason in figures.failed.items()},
        "rejected": rejected,
        "left out": [str(client) for client in result.left_out],
        "contributors": len(result.counted),
        "uploaded": len(figures.uploaded),
        "histogram is exact": exact.histogram,
        "sum is exact": exact.decoded,
        "both servers got the same": exact.same_at_both,
        "bytes sent by a client": sum(figures.largest_up),
        "bytes sent by a client to each server": list(figures.largest_up),
        "bytes received by a client": round(figures.bytes_down / clients),
        "bytes between servers": dict(figures.between),
        "bytes between servers for a client": round(
            sum(figures.between[step] for step in ("proposal", "answer", "conclusion")) / max(1, len(figures.uploaded))
        ),
        "bytes of the packed vector": configuration.layout.payload_bytes,
        "bytes by the count of the paper": float(paper),
        "bytes of the same as float32": inputs.float32_bytes,
        "seconds": round(seconds, 3),
        "client seconds": round(figures.client_seconds, 4),
        "seconds of a client": round(figures.client_seconds / clients, 4),
        "slowest client seconds": round(figures.slowest_client_seconds, 4),
        "server seconds": [
            {"uploads": round(upload, 4), "checks and sums": round(check, 4), "release": round(release, 4)}
            for upload, check, release in zip(
                figures.upload_seconds, figures.check_seconds, figures.release_seconds, strict=True
            )
        ],
        "peak memory MiB": peak_mib(),
    }


def _segment(configuration: IndexingConfiguration, segment: RingSegment | IndexSegment) -> str:
    match segment:
        case RingSegment():
            return f"{segment.length:,} values of {segment.modulus_bits} bits"
        case IndexSegment():
            depth = configuration.shape(segment).depth
            shared = f"in trees of depth {depth}" if depth else "without trees"
            return f"{segment.blocks:,} indices into {segment.codewords} codewords, shared {shared}"


_NAME_WIDTH: Final = 34


def _text(summary: dict[str, Any], setting: TwoServerSetting) -> Iterator[str]:
    """Write the summary for people."""
    yield (
        f"{summary['clients']:,} clients, {summary['dimension']:,} values each; two servers, {summary['suite']}, "
        f"{summary['mode']}, lanes are {summary['lanes']}"
    )
    yield f"compression {summary['compression']}: " + "; ".join(summary["segments"])
    yield f"nothing is released of fewer than {summary['minimum cohort']}, nor unless both servers sign one list"
    yield ""
    yield from _table(summary)
    yield ""
    yield from _people(summary)
    yield ""
    yield from _result(summary)
    threads = "one thread" if setting.threads == 1 else f"{setting.threads} threads"
    yield (
        f"{summary['seconds']:.1f} s on {threads}, one client after another, encoding included"
        + (f"; {summary['peak memory MiB']} MiB at the peak, everybody included" if summary["peak memory MiB"] else "")
    )


def _table(summary: dict[str, Any]) -> Iterator[str]:
    up, seconds = summary["bytes sent by a client to each server"], summary["server seconds"]
    yield f"{'':<{_NAME_WIDTH}}{'server 0':>12}{'server 1':>12}{'together':>12}"
    yield _row("one client sends", [in_bytes(up[0]), in_bytes(up[1]), in_bytes(sum(up))])
    for name in ("uploads", "checks and sums", "release"):
        each = [server[name] for server in seconds]
        yield _row(f"seconds: {name}", [in_seconds(each[0]), in_seconds(each[1]), in_seconds(sum(each))])
    each = [sum(server.values()) / max(1, summary["uploaded"]) for server in seconds]
    yield _row("seconds for one upload", [in_seconds(each[0]), in_seconds(each[1]), in_seconds(sum(each))])
    yield (
        f"a client takes {in_seconds(summary['seconds of a client'])}, the slowest "
        f"{in_seconds(summary['slowest client seconds'])}, and receives "
        f"{in_bytes(summary['bytes received by a client'])}"
    )
    yield ""
    yield f"{'between the servers':<{_NAME_WIDTH}}{'':>24}{'bytes':>12}"
    for step, count in summary["bytes between servers"].items():
        yield _row(step, ["", "", in_bytes(count)])
    yield _row("checks of one upload", ["", "", in_bytes(summary["bytes between servers for a client"])])


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<{_NAME_WIDTH}}" + "".join(f"{cell:>12}" for cell in cells)


def _people(summary: dict[str, Any]) -> Iterator[str]:
    for place in ("before uploading", "after the half for server 0", "after the half for server 1"):
        if summary[f"dropped {place}"]:
            yield f"dropped out {place}: client {some(summary[f'dropped {place}'])}"
    if summary["cheated"]:
        yield f"voted more than once in a block: client {some(summary['cheated'])}"
    yield from (f"not taken in: {client}: {reason}" for client, reason in summary["failed"].items())
    for client, reasons in summary["rejected"].items():
        yield f"rejected: {client}: " + "; ".join(f"{server}: {reason}" for server, reason in reasons.items())
    yield from (f"left out, as too few weigh the same: {client}" for client in summary["left out"])


def _result(summary: dict[str, Any]) -> Iterator[str]:
    same = "both servers got" if summary["both servers got the same"] else "NOT both servers got"
    yield f"released: 1 sum, over {summary['contributors']:,} clients; {same} it"
    is_histogram = any("indices" in segment for segment in summary["segments"])
    what = "the histogram and the decoded sum are" if is_histogram else "the sum is"
    is_exact = summary["histogram is exact"] and summary["sum is exact"]
    yield f"{what} {'exactly' if is_exact else 'NOT'} what these clients' updates give in the clear, bit by bit"
    if not is_exact and summary["cheated"] and summary["mode"] == "unchecked":
        yield "nobody was checked: whoever votes more than once spoils the sum, and nobody can tell who did"
    sent, float32 = summary["bytes sent by a client"], summary["bytes of the same as float32"]
    paper = summary["bytes by the count of the paper"]
    yield (
        f"a client sends {in_bytes(sent)}: {8 * sent / summary['dimension']:.3f} bits for each value, "
        f"{float32 / sent:.1f} times less than float32; the paper counts {in_bytes(paper)}, for one server that is "
        f"trusted with all of it: {sent / paper:.1f} times less"
    )
