"""``secagg round``: runs one session of any protocol in memory, with real cryptography, and measures each stage."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secagg.errors import InvalidParameters
from secagg.options import declared, spelled
from secagg.session.registry import ProtocolEntry, find, names, planned_settings

from . import spreading
from .figures import (
    Bar,
    Column,
    against_float32,
    in_bytes,
    in_seconds,
    peak_mib,
    shown,
    some,
    table,
    writable,
    write_json,
)
from .options import PROTOCOLS, protocol_name

if TYPE_CHECKING:
    from secagg.contract import IndexSegment, RingSegment
    from secagg.session.run import StageFigures
    from secagg.simulation.rehearsal import Rehearsal, Rehearsed
    from secagg.simulation.synthetic_updates import SyntheticUpdates, WindowedInputs

LEAST_CLIENTS, MOST_CLIENTS = 2, 20_000
MOST_THREADS: Final = 256
MOST_VALUES: Final = 1 << 28
_FLOAT32_BYTES: Final = 4
_TASKS: Final = "tasks of workers"
_PLAIN: Final = "none"
SHORT: Final[Mapping[str, str]] = {
    "mode": "mode",
    "noise": "noise_multiplier",
    "epsilon": "budget_epsilon",
    "topology": "topology",
    "corrupted": "corrupted",
    "depth": "depth",
    "release": "form",
    "accumulation": "accumulation",
    "unchecked": "is_checked",
}
"""Options whose names differ from their settings."""


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg round``."""
    command = commands.add_parser(
        "round",
        help="one session in memory, with real cryptography, measured stage by stage",
        usage="secagg round [option ...]",
        description="Run one session in memory, with real cryptography, and print the costs of each stage, the "
        "dropouts, what was revealed, and whether the sum is exact.",
    )
    command.add_argument("--protocol", type=protocol_name, default="pairwise", help=PROTOCOLS)
    command.add_argument("--clients", type=int, default=100, help="number of clients (default: %(default)s)")
    command.add_argument("--groups", type=int, help="number of groups, each with a session, whose sums are added")
    command.add_argument("--dimension", type=int, default=100_000, help="values per client (default: %(default)s)")
    command.add_argument(
        "--drop",
        type=int,
        help="number of dropouts, distributed over the stages, the upload first (default: one in twenty)",
    )
    command.add_argument(
        "--compression",
        choices=(_PLAIN, "sq", "dither", "pruning", "pq", "peak"),
        help="compression of a model of that dimension (default: pq if the protocol takes indices, else none)",
    )
    more = command.add_argument_group("further options")
    more.add_argument("--bits", type=int, help="bits of one value without compression (default: 16)")
    more.add_argument("--codewords", type=int, help="codewords per codebook of pq (default: 64)")
    more.add_argument("--block-size", type=int, help="values per codeword of pq (default: 9)")
    more.add_argument("--suite", choices=("classic", "hybrid"), help="(default: hybrid for enclave, else classic)")
    more.add_argument("--cheat", type=int, default=0, help="number of clients that vote more than once in a block")
    more.add_argument("--threads", type=int, default=1, help="number of threads (default: %(default)s)")
    more.add_argument(
        "--share-checks",
        action="store_true",
        help="verify each signature once for all clients of this process; for thousands of clients",
    )
    more.add_argument(
        "--seed", default="", help="seed of the inputs, up to 16 bytes; keys and masks are fresh in every run"
    )
    more.add_argument("--json", type=Path, metavar="FILE", help="file for all figures, in addition to the output")
    of_some = command.add_argument_group("settings of some protocols; other protocols refuse them")
    of_some.add_argument("--mode", choices=("active", "semi_honest"), help="trust in the server (default: the least)")
    of_some.add_argument("--topology", choices=("sparse", "full"), help="graph of shared masks (default: sparse)")
    of_some.add_argument(
        "--noise", help="standard deviation of the noise over the sensitivity; added by clients, or by two servers"
    )
    of_some.add_argument("--epsilon", help="with --noise: budget of each client, which refuses a sum above it")
    of_some.add_argument("--corrupted", help="number of clients that may collude (default: one in ten)")
    of_some.add_argument("--release", choices=("decoded-sum", "histogram"), help="what an enclave releases")
    of_some.add_argument("--accumulation", choices=("oblivious", "direct"), help="how an enclave counts")
    of_some.add_argument("--depth", help="depth of the point functions' trees (default: that of the shortest upload)")
    of_some.add_argument(
        "--unchecked", action="store_const", const="no", help="two servers: no proof of one vote for each block"
    )
    of_some.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting")
    spreading.add_options(command)
    command.set_defaults(run=run_round)


def run_round(options: argparse.Namespace) -> int:
    """Run the session, print its costs, and fail unless its sum is exact."""
    entry = find(options.protocol)
    rehearsals = _planned(entry, options)
    if options.json is not None:
        writable(options.json)
    bar = Bar()
    try:
        with spreading.workers_for(
            entry, options, lambda told: bar.update(_TASKS, told.tasks_done, told.tasks_done + told.tasks_left)
        ) as workers:
            results = spreading.run_all(rehearsals, bar.update, workers.opened)
    finally:
        bar.clear()
    summaries = [_summary(*one, options) for one in zip(rehearsals, results, strict=True)]
    if options.groups is None:
        (summary,) = summaries
        lines = _text(summary, options.threads)
    else:
        total = spreading.total_of(rehearsals, results)
        summary = spreading.summary_of(rehearsals[0], total, summaries)
        lines = spreading.text(summary)
    shown(lines)
    if options.json is not None:
        write_json(options.json, summary)
        print(f"\nwritten to {options.json}")
    return 0 if summary["sum is exact"] else 1


# --- Private ----------------------------------------------------------------------------------------------------------


def _planned(entry: ProtocolEntry, options: argparse.Namespace) -> list[Rehearsal]:
    apart = spreading.options_of_groups(options)
    for each in apart.values():
        _require_ranges(each)
    inputs = _inputs(entry, options)
    return [_rehearsal(entry, each, inputs, first) for first, each in apart.items()]


def _require_ranges(options: argparse.Namespace) -> None:
    clients = options.clients
    for name, value, least, most in (
        ("clients", clients, LEAST_CLIENTS, MOST_CLIENTS),
        ("dimension", options.dimension, 1, MOST_VALUES),
        ("drop", options.drop or 0, 0, clients - 1),
        ("cheat", options.cheat, 0, clients - 1),
        ("threads", options.threads, 1, MOST_THREADS),
    ):
        if not least <= value <= most:
            raise InvalidParameters(f"--{name} must be between {least} and {most}; got {value}")


def _rehearsal(
    entry: ProtocolEntry, options: argparse.Namespace, inputs: SyntheticUpdates | WindowedInputs, first: int
) -> Rehearsal:
    from secagg.parameters import LEAST_COHORT, Suite
    from secagg.session.client_policy import usual_corrupted
    from secagg.simulation.rehearsal import Rehearsal, client_ids, spread_dropouts

    clients = options.clients
    drop = clients // 20 if options.drop is None else options.drop
    dropouts = spread_dropouts(clients, drop, entry.stages, first)
    late = len(dropouts[entry.stages[0].name]) if len(entry.stages) > 1 else 0
    honest = [client for client in client_ids(clients, first) if not any(client in gone for gone in dropouts.values())]
    if options.cheat and len(honest) < options.cheat + LEAST_COHORT:
        raise InvalidParameters(f"--cheat leaves fewer than {LEAST_COHORT} honest clients; let fewer cheat or drop out")
    facts = {
        "population": clients,
        "corrupted": usual_corrupted(clients),
        "dropped": drop - late,
        "late": late,
        "minimum_cohort": max(LEAST_COHORT, clients - drop - options.cheat),
        "maximum_cohort": clients,
        "maximum_rejections": options.cheat,
    }
    if options.suite is not None:
        facts["suite"] = Suite[options.suite.upper()]
    facts.update(_facts_of_noise(inputs, options))
    short = {name: value for name in SHORT if (value := getattr(options, name)) is not None}
    return Rehearsal(
        entry=entry,
        settings=_settings_of(entry, facts, short, options.set),
        inputs=inputs,
        clients=clients,
        first=first,
        dropouts=dropouts,
        cheaters=frozenset(honest[1 : 1 + options.cheat]),
        threads=options.threads,
        shares_checks=options.share_checks,
    )


def _settings_of(entry: ProtocolEntry, facts: Mapping[str, Any], short: Mapping[str, Any], assigned: list[str]) -> Any:  # noqa: ANN401 -- the protocol's own class
    """Return a protocol's settings.

    Args:
        facts: values known to the rehearsal, by setting name; a protocol uses those that it has.
        short: values of the given options in ``SHORT``.
        assigned: ``name=value`` for other settings.
    """
    known = declared(entry.settings)
    given = dict[str, Any]()
    for option, text in short.items():
        if SHORT[option] not in known:
            raise InvalidParameters(f"--{option} only applies to {_owners(SHORT[option])}, not to {entry.name}")
        with spelled(f"--{option}"):
            given[SHORT[option]] = known[SHORT[option]].parsed(text)
    return planned_settings(entry, facts, given, assigned, called="--set")


def _owners(setting: str) -> str:
    return " and ".join(name for name in names() if any(field.name == setting for field in fields(find(name).settings)))


def _inputs(entry: ProtocolEntry, options: argparse.Namespace) -> SyntheticUpdates | WindowedInputs:
    from secagg.contract import IndexSegment
    from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
    from secagg.session.client_policy import USUAL_BITS
    from secagg.simulation.synthetic_updates import Compression, SyntheticUpdates, UpdateSetting, WindowedInputs

    name = options.compression or ("pq" if IndexSegment in entry.segments else _PLAIN)
    for option, value, belongs in (
        ("bits", options.bits, name == _PLAIN),
        ("codewords", options.codewords, name == "pq"),
        ("block-size", options.block_size, name == "pq"),
    ):
        if value is not None and not belongs:
            raise InvalidParameters(f"--{option} does not apply to --compression {name}")
    if name == _PLAIN:
        bits = USUAL_BITS if options.bits is None else options.bits
        if not 1 <= bits <= MAXIMUM_MODULUS_BITS:
            raise InvalidParameters(f"--bits must be between 1 and {MAXIMUM_MODULUS_BITS}; got {bits}")
        return WindowedInputs(
            input_bits=bits,
            length=options.dimension,
            clients=options.clients,
            seed=options.seed.encode(),
            spare_bits=_room_for_noise(options),
        )
    return SyntheticUpdates(
        UpdateSetting(
            clients=options.clients,
            dimension=options.dimension,
            compression=Compression(name),
            codewords=64 if options.codewords is None else options.codewords,
            block_size=9 if options.block_size is None else options.block_size,
            seed=options.seed,
        )
    )


def _room_for_noise(options: argparse.Namespace) -> int:
    """Return the number of additional bits that a ring needs for the session's noise."""
    if options.noise is None:
        return 0
    with spelled("--noise"):
        from secagg.privacy.client_noise import NoiseSettings

        multiplier = declared(NoiseSettings)["noise_multiplier"].parsed(options.noise)
    if multiplier <= 0:
        raise InvalidParameters(f"--noise must be positive; got {options.noise}")
    share: Fraction = multiplier * 2 * (math.isqrt(options.dimension) + 1)
    # Room for four standard deviations of uniform values, and of the noise of few clients.
    return math.ceil(4 * (1 + share)).bit_length()


def _facts_of_noise(inputs: SyntheticUpdates | WindowedInputs, options: argparse.Namespace) -> dict[str, Any]:
    """Return the facts about the inputs that a noise plan needs; they model updates that are rotated and rounded."""
    from secagg.simulation.synthetic_updates import WindowedInputs

    if options.noise is None:
        return {}
    return {"l2_bounds": inputs.l2_bounds, "is_rotated": isinstance(inputs, WindowedInputs)}


def _summary(rehearsal: Rehearsal, result: Rehearsed, options: argparse.Namespace) -> dict[str, Any]:
    from secagg.compression.byte_accounting import Accounting, upload_bytes

    inputs, released = rehearsal.inputs, result.released
    stages = result.session.figures[:-1]
    return {
        "protocol": rehearsal.entry.name,
        "clients": rehearsal.clients,
        "dimension": inputs.values,
        "compression": options.compression,
        "segments": [_segment(segment) for segment in inputs.layout.segments],
        "description": list(result.description),
        "settings": {name: str(value) for name, value in _items(rehearsal.settings)},
        "stages": [_row(number, figures, rehearsal) for number, figures in enumerate(stages)],
        "release seconds": round(result.session.figures[-1].server_seconds, 4),
        "cheated": sorted(client.value for client in rehearsal.cheaters),
        "left out": {str(client): str(error) for client, error in sorted(released.left_out.items())},
        "contributors": len(released.counted),
        "largest norms": {
            name: bound if set(released.unbounded) <= set(inputs.layout.ring_positions) else None
            for name, bound in inputs.bounds.items()
        },
        "segments that nobody bounds": list(released.unbounded),
        "revealed sets": [len(clients) for clients in released.revealed],
        "revealed set is the contributors": released.revealed == frozenset({result.contributors}),
        "faults": [str(fault) for fault in result.session.faults],
        "noise deviations": [round(deviation, 3) for deviation in result.deviations],
        "sum is exact": result.is_exact,
        "rounding error in steps": spreading.rounding_error(rehearsal, result),
        "bytes sent by a client": round(sum(each.bytes_up / max(1, len(each.answered)) for each in stages)),
        "bytes received by a client": round(sum(each.bytes_down / max(1, each.sent) for each in stages)),
        "bytes between the server and its helpers": sum(each.bytes_between for each in result.session.figures),
        "bytes of the packed vector": inputs.layout.payload_bytes,
        "bytes by the count of the paper": float(upload_bytes(inputs.layout, Accounting.PAPER)),
        "bytes of the same as float32": _FLOAT32_BYTES * inputs.values,
        "seconds": round(result.seconds, 3),
        "processor seconds": round(result.processor_seconds, 3),
        "checks are shared": rehearsal.shares_checks,
        "peak memory MiB": peak_mib(),
    }


def _segment(segment: RingSegment | IndexSegment) -> str:
    from secagg.contract import RingSegment

    if isinstance(segment, RingSegment):
        fine = f", rounded from {segment.ring.modulus_bits} under the mask" if segment.fine_bits else ""
        return f"{segment.length:,} values of {segment.modulus_bits} bits{fine}"
    return f"{segment.blocks:,} indices into {segment.codewords} codewords"


def _items(settings: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 -- the protocol's own class
    return ((field.name, getattr(settings, field.name)) for field in fields(settings))


def _row(number: int, figures: StageFigures, rehearsal: Rehearsal) -> dict[str, Any]:
    dropped = rehearsal.dropouts.get(figures.name, frozenset())
    failed = {client: reason for client, reason in figures.failed.items() if client not in dropped}
    return {
        "stage": f"{number} {figures.name}",
        "answered": len(figures.answered),
        "dropped": sorted(client.value for client in dropped),
        "failed": {str(client): reason for client, reason in sorted(failed.items())},
        "messages up": len(figures.answered),
        "messages down": figures.sent,
        "bytes up": figures.bytes_up,
        "bytes down": figures.bytes_down,
        "bytes between": figures.bytes_between,
        "client seconds": round(figures.client_seconds, 4),
        "slowest client seconds": round(figures.slowest_client_seconds, 4),
        "server seconds": round(figures.server_seconds, 4),
    }


_COLUMNS: Final[Sequence[Column]] = (
    Column("answered", lambda row: f"{row['answered']:,}"),
    Column("gone", lambda row: f"{len(row['dropped']) + len(row['failed']):,}", rank=1),
    Column("messages", lambda row: f"{row['messages up'] + row['messages down']:,}", rank=3),
    Column("up each", lambda row: in_bytes(row["bytes up"] / max(1, row["messages up"]))),
    Column("up", lambda row: in_bytes(row["bytes up"]), rank=2),
    Column("down each", lambda row: in_bytes(row["bytes down"] / max(1, row["messages down"])), rank=1),
    Column("down", lambda row: in_bytes(row["bytes down"]), rank=3),
    Column("between", lambda row: in_bytes(row["bytes between"]), rank=2),
    Column("a client", lambda row: in_seconds(row["client seconds"] / max(1, row["messages down"]))),
    Column("slowest", lambda row: in_seconds(row["slowest client seconds"]), rank=2),
    Column("clients", lambda row: in_seconds(row["client seconds"]), rank=3),
    Column("server", lambda row: in_seconds(row["server seconds"])),
)


def _text(summary: dict[str, Any], threads: int) -> Iterator[str]:
    first, *others = summary["description"] or [summary["protocol"]]
    yield f"{summary['clients']:,} clients, {summary['dimension']:,} values each; {first}"
    if len(summary["segments"]) > 1:
        yield f"compressed: {'; '.join(summary['segments'])}"
    yield from others
    yield ""
    yield from table("stage", [(row["stage"], row) for row in summary["stages"]], _COLUMNS)
    yield f"  release: {in_seconds(summary['release seconds'])}"
    yield ""
    yield from _people(summary)
    sets = ", ".join(f"{size:,}" for size in summary["revealed sets"])
    is_not = "" if summary["revealed set is the contributors"] else "NOT "
    yield f"revealed: {len(summary['revealed sets'])} sum, over {sets} clients, which are {is_not}those that uploaded"
    yield spreading.verdict(summary)
    yield from _sizes(summary)
    yield (
        f"{summary['seconds']:.1f} s on {'one thread' if threads == 1 else f'{threads} threads'}, one client after "
        f"another, encoding included; {summary['processor seconds']:.1f} s of processor time"
        + (f"; {summary['peak memory MiB']} MiB at the peak, everybody included" if summary["peak memory MiB"] else "")
    )
    if summary["checks are shared"]:
        yield "each signature was verified once for all clients; without --share-checks each client verifies its own"


def _people(summary: dict[str, Any]) -> Iterator[str]:
    for row in summary["stages"]:
        if row["dropped"]:
            yield f"dropped out before answering in stage {row['stage']}: client {some(row['dropped'])}"
        yield from (f"left in stage {row['stage']}: {client}: {reason}" for client, reason in row["failed"].items())
    if summary["cheated"]:
        yield f"cheated: client {some(summary['cheated'])}"
    yield from (f"left out: {client}: {reason}" for client, reason in summary["left out"].items())
    yield from (f"fault: {fault}" for fault in summary["faults"])
    for name, length in summary["largest norms"].items():
        bound = "unbounded, because nobody checks it" if length is None else f"at most {length:.4g}, even if malicious"
        yield f"norm of one client's contribution to the sum, {name}: {bound}"


def _sizes(summary: dict[str, Any]) -> Iterator[str]:
    sent, float32 = summary["bytes sent by a client"], summary["bytes of the same as float32"]
    yield (
        f"a client sends {in_bytes(sent)}: {8 * sent / summary['dimension']:.3f} bits for each value, "
        f"{against_float32(float32, sent)}, {sent / summary['bytes of the packed vector']:.4f} of its "
        f"packed vector; it receives {in_bytes(summary['bytes received by a client'])}"
    )
    if len(summary["segments"]) > 1:
        yield f"the paper counts {in_bytes(summary['bytes by the count of the paper'])} of the upload"
    if summary["bytes between the server and its helpers"]:
        yield f"{in_bytes(summary['bytes between the server and its helpers'])} went between the server and its helpers"
