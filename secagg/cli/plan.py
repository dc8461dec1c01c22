"""``secagg plan``: prints the costs of compression schemes and protocols for a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

from numpy.typing import NDArray

from secagg.compression.byte_accounting import Shapes
from secagg.compression.random_pruning import exact_sparsity
from secagg.errors import InvalidParameters
from secagg.options import declared, spelled
from secagg.parameters import Suite
from secagg.planning.advice import PlannedNoise, advice, explained
from secagg.planning.costs import WHOLE_UPDATES, Comparison, Option, PlanRequest, compare, shapes_of_blocks
from secagg.planning.seconds import Network, Seconds, seconds_of
from secagg.platforms.model_files import read_model
from secagg.privacy.client_noise import NoiseSettings
from secagg.quick.model_session import clip_for
from secagg.session.client_policy import USUAL_BITS

from .figures import Column, in_bytes, in_seconds, shown, table, writable, write_json
from .train import run_seconds

MOST_BLOCKS: Final = 1 << 32
_MOST_FILE_BYTES = 1 << 24
_USUAL_DELTA = 1e-6
_CLIENTS: Final = 100
_OF_SIZES: Final = (
    *("codewords", "block_size", "cohort_bits", "sparsity", "megabits", "latency", "noise", "releases"),
    *("delta", "base", "dropped", "explain"),
)
"""Options that cannot be combined with --seconds."""
_OF_SECONDS: Final = ("set", "protocol", "values", "workers", "gigabits")


def shapes_of(options: argparse.Namespace) -> Shapes:
    """Return the shapes of the model in a file, or of a number of blocks."""
    if options.model is not None and options.model.suffix == ".json":
        return _shapes_in(options.model)
    if options.model is not None:
        return {name: each.shape for name, each in _floats(options.model).items()}
    if options.blocks is None or not 1 <= options.blocks <= MOST_BLOCKS:
        raise InvalidParameters(f"--blocks must be between 1 and {MOST_BLOCKS}; got {options.blocks}")
    return shapes_of_blocks(options.blocks, options.block_size)


def run_plan(options: argparse.Namespace) -> int:
    """Print the comparison and advice."""
    others = _OF_SECONDS if options.seconds is None else _OF_SIZES
    if strange := [f"--{name.replace('_', '-')}" for name in others if getattr(options, name) != options.usual(name)]:
        needed = "only applies with" if options.seconds is None else "cannot be combined with"
        raise InvalidParameters(f"{strange[0]} {needed} --seconds")
    if options.seconds is not None:
        return run_seconds(options)
    report, network = options.json, Network(options.megabits, options.latency)
    request, noise = _request(options), _noise(options)
    if report is not None:
        writable(report)
    comparison = compare(request)
    started = perf_counter()
    rows = [_row(option, seconds_of(option, request.suite, network), request.clients) for option in comparison.options]
    measuring, said = perf_counter() - started, list(advice(request, comparison))
    if options.base is not None:
        said = [*_clips(options), *said]
    if noise is not None:
        said += noise.advice(request.weights, request.clients)
    shown(_text(request, rows, said))
    why = [*explained(request, comparison), *_notes(network, measuring)]
    shown(why if options.explain else ["Why, whom clients trust, and how this was counted: --explain"])
    if report is not None:
        write_json(report, _summary(request, comparison, rows, said))
        print(f"\nwritten to {report}")
    return 0


# --- Private ----------------------------------------------------------------------------------------------------------


def _request(options: argparse.Namespace) -> PlanRequest:
    return PlanRequest(
        shapes=shapes_of(options),
        codewords=options.codewords,
        block_size=options.block_size,
        clients=_CLIENTS if options.clients is None else options.clients,
        bits=options.bits,
        cohort_bits=options.cohort_bits,
        sparsity=exact_sparsity(options.sparsity),
        dropped=options.dropped,
        suite=Suite[options.suite.upper()],
    )


def _floats(file: Path) -> Mapping[str, NDArray[Any]]:
    return {name: each for name, each in read_model(file).items() if each.dtype.kind == "f" and each.size}


def _clips(options: argparse.Namespace) -> Iterator[str]:
    """Suggest a clip for an update, the difference of two models."""
    if options.model is None or options.model.suffix == ".json":
        raise InvalidParameters("--base is the model before training; pass the trained model with --model FILE")
    trained, before = _floats(options.model), _floats(options.base)
    if {name: each.shape for name, each in trained.items()} != {name: each.shape for name, each in before.items()}:
        raise InvalidParameters("--model and --base have different tensor names or shapes; use two files of one model")
    update = {name: each - before[name] for name, each in trained.items()}
    for bits in sorted({options.bits, USUAL_BITS}):
        yield (
            f"With {bits} bits per value, --clip {clip_for(update, bits=bits):g} leaves room for changes 1.5 times "
            "as large as these."
        )


def _noise(options: argparse.Namespace) -> PlannedNoise | None:
    if options.noise is not None:
        releases = 1 if options.releases is None else options.releases
        delta = _USUAL_DELTA if options.delta is None else options.delta
        with spelled("--noise"):
            return PlannedNoise(declared(NoiseSettings)["noise_multiplier"].parsed(options.noise), releases, delta)
    if options.releases is not None or options.delta is not None:
        raise InvalidParameters("--releases and --delta only apply with --noise; add --noise, or remove them")
    return None


def _shapes_in(file: Path) -> Shapes:
    """Read a JSON object with a list of sizes for each tensor name."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidParameters(f"cannot read {file}: {error.strerror}; pass a JSON file with --model") from None
    if len(content) > _MOST_FILE_BYTES:
        raise InvalidParameters(f"{file} is larger than 16 MiB; the JSON must only have names and shapes, no values")
    try:
        read: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidParameters(f'{file} is not JSON; write {{"layer.weight": [64, 32], "layer.bias": [64]}}') from None
    tensors = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    shapes = {name: tuple(cast("list[int]", shape)) for name, shape in tensors.items() if isinstance(shape, list)}
    if not shapes or len(shapes) < len(tensors):
        raise InvalidParameters(
            f'{file} needs a list of sizes for each tensor, such as {{"layer.weight": [64, 32], "layer.bias": [64]}}'
        )
    return shapes


def _summary(
    request: PlanRequest, comparison: Comparison, rows: list[dict[str, Any]], said: list[str]
) -> dict[str, Any]:
    return {
        "weights": request.weights,
        "clients": request.clients,
        "codewords": request.codewords,
        "block size": request.block_size,
        "bits": request.bits,
        "cohort bits": request.cohort_bits,
        "noise": {scheme.value: request.noise(scheme) for scheme in WHOLE_UPDATES},
        "sparsity": float(request.sparsity),
        "suite": request.suite.value,
        "options": rows,
        "left out": list(comparison.left_out),
        "advice": said,
    }


def _row(option: Option, seconds: Seconds, clients: int) -> dict[str, Any]:
    costs = option.costs
    return {
        "scheme": option.described,
        "protocol": option.protocol,
        "form": costs.variant,
        "plan": costs.plan,
        "learned": "histogram" if costs.reveals_counts else "sum",
        "bits per weight": round(option.bits_per_weight, 4),
        "bytes of the packed values": costs.payload_bytes,
        "bytes up": costs.up_bytes,
        "bytes down": option.down_bytes,
        "bytes between servers": costs.between_bytes,
        "bytes between servers in total": clients * costs.between_bytes,
        "exchanges": len(option.entry.stages),
        "client seconds": seconds.client,
        "server seconds": seconds.server,
        "round seconds": seconds.round,
        "AES blocks": costs.server.cipher_calls,
        "word operations": costs.server.word_operations,
        "trust": option.entry.trust,
    }


_COLUMNS: Final[Sequence[Column]] = (
    Column("protocol", lambda row: row["protocol"]),
    Column("form", lambda row: row["form"], rank=2),
    Column("learned", lambda row: row["learned"], rank=6),
    Column("bits/weight", lambda row: f"{row['bits per weight']:.2f}", rank=3),
    Column("up", lambda row: in_bytes(row["bytes up"])),
    Column("down", lambda row: in_bytes(row["bytes down"]), rank=3),
    Column("between", lambda row: in_bytes(row["bytes between servers"]), rank=5),
    Column("in total", lambda row: in_bytes(row["bytes between servers in total"]), rank=5),
    Column("exchanges", lambda row: str(row["exchanges"]), rank=5),
    Column("a client", lambda row: in_seconds(row["client seconds"]), rank=3),
    Column("server", lambda row: in_seconds(row["server seconds"]), rank=3),
    Column("round", lambda row: in_seconds(row["round seconds"]), rank=1),
)


def _text(request: PlanRequest, rows: list[dict[str, Any]], said: list[str]) -> Iterator[str]:
    yield (
        f"{request.weights:,} values, {request.clients:,} clients; codebooks of {request.codewords} codewords of "
        f"{request.block_size} values"
    )
    if any((cut.codewords, cut.block_size) != (request.codewords, request.block_size) for cut in request.tensors):
        yield "some tensors have few blocks and use fewer codewords or shorter blocks"
    yield ""
    yield from table("scheme", [(row["scheme"], row) for row in rows], _COLUMNS)
    yield ""
    yield from said
    yield "Bytes are one client's, without the model. Seconds are estimates: expect a factor of four."


def _notes(network: Network, measuring: float) -> Iterator[str]:
    yield f"For the error of each scheme, see {files('secagg.compression') / 'README.md'}."
    yield (
        f"Seconds do not include encoding: small sessions were run on this machine, in {in_seconds(measuring)}, and "
        "scaled by counted work. The server's seconds are for all clients and include its helpers. A round is one "
        f"client's seconds, its bytes at {network.megabits:g} Mbit/s, and {network.latency:g} s for each exchange."
    )
