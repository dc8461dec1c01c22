"""One whole session in memory, with real cryptography, and what every round of it took."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask import ServerState
from secagg.simulation.cohort import Cohort, Setting, WindowedInputs, client_ids, gather, spread_dropouts
from secagg.simulation.measurement import MeasuredRun, RoundFigures

from .figures import Bar, in_bytes, in_seconds, peak_mib, some

LEAST_CLIENTS, MOST_CLIENTS = 2, 20_000
MOST_THREADS: Final = 256
MOST_VALUES: Final = 1 << 28
_FLOAT32_BYTES: Final = 4
NAMES: Final = {
    ServerState.AWAITING_KEY_ADVERTISEMENTS: "0 advertise keys",
    ServerState.AWAITING_ENCRYPTED_SHARES: "1 share keys",
    ServerState.AWAITING_MASKED_INPUTS: "2 masked input",
    ServerState.AWAITING_SURVIVOR_SIGNATURES: "3 consistency check",
    ServerState.AWAITING_UNMASKING_SHARES: "4 unmasking",
    ServerState.COMPLETED: "  removing masks",
}
_BEFORE_UPLOAD: Final = tuple(NAMES)[:3]


def run_round(  # noqa: PLR0913 -- one for each option of the command
    *, clients: int, dimension: int, drop: int, input_bits: int, seed: str, setting: Setting, report: Path | None
) -> int:
    """Run the session, print what it took, and fail unless its sum is exact."""
    for name, value, least, most in (
        ("clients", clients, LEAST_CLIENTS, MOST_CLIENTS),
        ("dimension", dimension, 1, MOST_VALUES),
        ("drop", drop, 0, clients - 1),
        ("corrupted", setting.corrupted, 0, clients - 1),
        ("bits", input_bits, 1, MAXIMUM_MODULUS_BITS),
        ("threads", setting.threads, 1, MOST_THREADS),
    ):
        if not least <= value <= most:
            raise InvalidParameters(f"--{name} is in {least}..{most}; got {value}")
    inputs = WindowedInputs(input_bits=input_bits, length=dimension, clients=clients, seed=seed.encode())
    dropouts = spread_dropouts(clients, drop, setting.mode)
    cohort = gather(inputs.payload_of, clients, capacity=inputs.capacity, dropouts=dropouts, setting=setting)
    bar = Bar()
    started = perf_counter()
    try:
        result = cohort.run(lambda state, done, count: bar.update(NAMES[state], done, count))
    finally:
        bar.clear()
    seconds = perf_counter() - started
    # Who contributed is not taken from the server: everybody whom nothing kept from uploading.
    gone = {client for figures in result.rounds if figures.state in _BEFORE_UPLOAD for client in figures.lost}
    contributors = [client for client in client_ids(clients) if client not in gone]
    is_exact = inputs.is_sum_of(result.aggregate, contributors)
    summary = _summary(cohort, result, contributors, seconds, is_exact=is_exact)
    print("\n".join(_text(summary, setting)))
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(summary, indent=2) + "\n")
        print(f"\nwritten to {report}")
    return 0 if is_exact else 1


# --- Private ----------------------------------------------------------------------------------------------------------


def _summary(
    cohort: Cohort, result: MeasuredRun, contributors: Sequence[ClientId], seconds: float, *, is_exact: bool
) -> dict[str, Any]:
    """Collect everything that is printed and written."""
    configuration, everybody = cohort.plan.configuration, len(cohort.clients)
    (segment,) = configuration.layout.require_rings()
    uploading = {figures.state: figures for figures in result.rounds}[ServerState.AWAITING_MASKED_INPUTS]
    sent = sum(figures.bytes_up / max(1, figures.messages_up) for figures in result.rounds)
    received = sum(figures.bytes_down / max(1, figures.messages_down) for figures in result.rounds)
    return {
        "mode": configuration.mode.value,
        "graph": configuration.topology.value,
        "suite": configuration.suite.value,
        "clients": everybody,
        "dimension": segment.length,
        "modulus bits": segment.modulus_bits,
        "corrupted": cohort.plan.corrupted,
        "degree": configuration.degree_among(result.server.roster.population),
        "threshold": configuration.threshold,
        "committee": configuration.committee_among(result.server.roster.population) if configuration.quorum else 0,
        "quorum": configuration.quorum,
        "minimum cohort": configuration.minimum_cohort,
        "rounds": [_row(figures) for figures in result.rounds],
        "server seconds removing masks": round(result.unmask_seconds, 4),
        "seconds": round(seconds, 3),
        "contributors": len(contributors),
        "revealed sets": [len(clients) for clients in result.server.revealed],
        "revealed set is the contributors": result.server.revealed == frozenset({frozenset(contributors)}),
        "faults": [str(fault) for fault in result.server.faults],
        "sum is exact": is_exact,
        "bytes sent by a client": round(sent),
        "bytes received by a client": round(received),
        "bytes of the masked input": round(uploading.bytes_up / max(1, uploading.messages_up)),
        "bytes of the same as float32": _FLOAT32_BYTES * segment.length,
        "bytes of the packed vector": segment.payload_bytes,
        "peak memory MiB": peak_mib(),
    }


def _row(figures: RoundFigures) -> dict[str, Any]:
    return {
        "round": NAMES[figures.state],
        "answered": len(figures.answered),
        "dropped": [client.value for client in figures.dropped],
        "failed": {str(client): reason for client, reason in figures.failed.items()},
        "messages up": figures.messages_up,
        "messages down": figures.messages_down,
        "bytes up": figures.bytes_up,
        "bytes down": figures.bytes_down,
        "client seconds": round(figures.client_seconds, 4),
        "slowest client seconds": round(figures.slowest_client_seconds, 4),
        "server seconds": round(figures.server_seconds, 4),
    }


_COLUMNS: Final[Sequence[tuple[str, Callable[[dict[str, Any]], str]]]] = (
    ("answered", lambda row: f"{row['answered']:,}"),
    ("gone", lambda row: f"{len(row['dropped']) + len(row['failed']):,}"),
    ("messages", lambda row: f"{row['messages up'] + row['messages down']:,}"),
    ("up each", lambda row: in_bytes(row["bytes up"] / max(1, row["messages up"]))),
    ("up", lambda row: in_bytes(row["bytes up"])),
    ("down each", lambda row: in_bytes(row["bytes down"] / max(1, row["messages down"]))),
    ("down", lambda row: in_bytes(row["bytes down"])),
    ("a client", lambda row: in_seconds(row["client seconds"] / max(1, row["messages down"]))),
    ("slowest", lambda row: in_seconds(row["slowest client seconds"])),
    ("clients", lambda row: in_seconds(row["client seconds"])),
    ("server", lambda row: in_seconds(row["server seconds"])),
)


def _text(summary: dict[str, Any], setting: Setting) -> Iterator[str]:
    """Write the summary for people."""
    yield (
        f"{summary['clients']:,} clients, {summary['dimension']:,} values each; sums modulo "
        f"2^{summary['modulus bits']}; {summary['mode']} mode, {summary['graph']} graph, {summary['suite']}"
    )
    yield (
        f"planned for {summary['corrupted']} corrupted clients: {summary['degree']} neighbours, of whose shares any "
        f"{summary['threshold']} recover a secret; nothing is released of fewer than {summary['minimum cohort']}"
    )
    if summary["quorum"]:
        yield f"the survivors are certified by {summary['quorum']} of a committee of {summary['committee']}"
    yield ""
    yield f"{'round':<20}" + "".join(f"{name:>11}" for name, _ in _COLUMNS)
    for row in summary["rounds"]:
        yield f"{row['round']:<20}" + "".join(f"{cell(row):>11}" for _, cell in _COLUMNS)
    removing = in_seconds(summary["server seconds removing masks"])
    yield f"{NAMES[ServerState.COMPLETED]:<20}" + " " * 11 * (len(_COLUMNS) - 1) + f"{removing:>11}"
    yield ""
    for row in summary["rounds"]:
        if row["dropped"]:
            yield f"dropped out before answering in round {row['round']}: client {some(row['dropped'])}"
        yield from (f"left in round {row['round']}: {client}: {reason}" for client, reason in row["failed"].items())
    yield from (f"fault: {fault}" for fault in summary["faults"])
    sets = ", ".join(f"{size:,}" for size in summary["revealed sets"])
    is_not = "" if summary["revealed set is the contributors"] else "NOT "
    yield f"revealed: {len(summary['revealed sets'])} sum, over {sets} clients, which are {is_not}those that uploaded"
    yield f"the sum is {'exactly' if summary['sum is exact'] else 'NOT'} the plain sum of their inputs"
    sent, vector = summary["bytes sent by a client"], summary["bytes of the packed vector"]
    yield (
        f"a client sends {in_bytes(sent)}: {sent / vector:.4f} of its packed vector, "
        f"{sent / summary['bytes of the same as float32']:.4f} of the same as float32; "
        f"it receives {in_bytes(summary['bytes received by a client'])}"
    )
    threads = "one thread" if setting.threads == 1 else f"{setting.threads} threads"
    yield (
        f"{summary['seconds']:.1f} s on {threads}, one client after another"
        + (f"; {summary['peak memory MiB']} MiB at the peak, everybody included" if summary["peak memory MiB"] else "")
    )
