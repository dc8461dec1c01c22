"""The planner: what every combination of a scheme and a protocol costs for one model, the shortest upload first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from secagg.compression.byte_accounting import Shapes
from secagg.errors import InvalidParameters
from secagg.planning.advice import advice
from secagg.planning.costs import TRUST, Comparison, Option, Protocol, compare
from secagg.planning.pairwise_costs import ONE_IN
from secagg.planning.paper.models import CELEBA, FEMNIST_3_CHANNEL, SENT140
from secagg.planning.planned_update import WHOLE_UPDATES, PlanRequest, shapes_of_blocks
from secagg.protocols.two_servers.server_messages import BATCH

from .figures import in_bytes

MOST_BLOCKS: Final = 1 << 32
_MODELS: Final[Mapping[str, Shapes]] = {"celeba": CELEBA, "sent140": SENT140, "femnist": FEMNIST_3_CHANNEL}
_MOST_FILE_BYTES = 1 << 24


def shapes_of(*, model: str | None, file: Path | None, blocks: int | None, block_size: int) -> Shapes:
    """Return the shapes of the model that is named, described in a file, or given as a number of blocks.

    Raises:
        InvalidParameters: the file cannot be read or describes no model, or there is no such number of blocks.
    """
    if model is not None:
        return _MODELS[model]
    if file is not None:
        return _shapes_in(file)
    if blocks is None or not 1 <= blocks <= MOST_BLOCKS:
        raise InvalidParameters(f"--blocks is in 1..{MOST_BLOCKS}; got {blocks}")
    return shapes_of_blocks(blocks, block_size)


def run_plan(request: PlanRequest, report: Path | None) -> int:
    """Print the comparison and what follows from it."""
    comparison = compare(request)
    said = list(advice(request, comparison))
    print("\n".join(_text(request, comparison, said)))
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(_summary(request, comparison, said), indent=2) + "\n", encoding="utf-8")
        print(f"\nwritten to {report}")
    return 0


# --- Private ----------------------------------------------------------------------------------------------------------


def _shapes_in(file: Path) -> Shapes:
    """Read a JSON object that gives a list of sizes for each tensor's name."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidParameters(f"cannot read {file}: {error.strerror}; name a JSON file with --shapes") from None
    if len(content) > _MOST_FILE_BYTES:
        raise InvalidParameters(f"{file} is larger than 16 MiB; --shapes takes names and shapes, not values")
    try:
        read: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidParameters(f'{file} is no JSON; write {{"layer.weight": [64, 32], "layer.bias": [64]}}') from None
    tensors = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    shapes = {name: tuple(cast("list[int]", shape)) for name, shape in tensors.items() if isinstance(shape, list)}
    if not shapes or len(shapes) < len(tensors):
        raise InvalidParameters(
            f'{file} gives no list of sizes for each tensor; write {{"layer.weight": [64, 32], "layer.bias": [64]}}'
        )
    return shapes


def _summary(request: PlanRequest, comparison: Comparison, said: list[str]) -> dict[str, Any]:
    """Collect everything that is printed and written."""
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
        "learn": request.learn.value,
        "options": [_row(option) for option in comparison.giving(request.learn)],
        "left out": list(_left_out(request, comparison)),
        "advice": said,
    }


def _row(option: Option) -> dict[str, Any]:
    return {
        "scheme": option.described,
        "protocol": option.name,
        "learned": option.learned.value,
        "bits per weight": round(option.bits_per_weight, 4),
        "bytes of the packed values": option.payload_bytes,
        "bytes up": option.up_bytes,
        "bytes down": option.down_bytes,
        "bytes between servers": option.between_bytes,
        "AES blocks": option.work.cipher_calls,
        "word operations": option.work.word_operations,
        "trust": TRUST[option.protocol],
        "status": option.status.value,
    }


def _left_out(request: PlanRequest, comparison: Comparison) -> Iterator[str]:
    yield from comparison.left_out
    giving = comparison.giving(request.learn)
    if len(giving) < len(comparison.options):
        yield (
            f"{len(comparison.options) - len(giving)} combinations that give the sum alone; --learn sum compares them "
            "as well"
        )


_COLUMNS: Final[Sequence[tuple[str, Callable[[Option], str]]]] = (
    ("scheme", lambda option: option.described),
    ("protocol", lambda option: option.name),
    ("learned", lambda option: option.learned.value),
    ("bits/weight", lambda option: f"{option.bits_per_weight:.2f}"),
    ("up", lambda option: in_bytes(option.up_bytes)),
    ("down", lambda option: in_bytes(option.down_bytes)),
    ("between", lambda option: in_bytes(option.between_bytes) if option.between_bytes else "-"),
    ("AES blocks", lambda option: _power(option.work.cipher_calls)),
    ("word ops", lambda option: _power(option.work.word_operations)),
    ("trust", lambda option: f"[{_number(option.protocol)}]"),
    ("status", lambda option: option.status.value),
)
_TEXT_COLUMNS = frozenset({"scheme", "protocol", "learned", "trust", "status"})


def _text(request: PlanRequest, comparison: Comparison, said: list[str]) -> Iterator[str]:
    """Write the comparison for people."""
    yield (
        f"{request.weights:,} values, {request.clients:,} clients; codebooks of {request.codewords} codewords of "
        f"{request.block_size} values; the server is to learn the {request.learn}"
    )
    if any((cut.codewords, cut.block_size) != (request.codewords, request.block_size) for cut in request.tensors):
        yield "some tensors have fewer codewords, for they have few blocks, or shorter blocks, which divide their rows"
    yield ""
    options = comparison.giving(request.learn)
    yield from _table(options)
    yield ""
    for protocol in Protocol:
        if any(option.protocol is protocol for option in options):
            yield f"[{_number(protocol)}] {TRUST[protocol]}"
    yield ""
    yield from said
    yield from (f"Left out: {sentence}." for sentence in _left_out(request, comparison))
    yield ""
    yield from _notes(request, {option.protocol for option in options})


def _table(options: Sequence[Option]) -> Iterator[str]:
    rows = [[name for name, _ in _COLUMNS], *([cell(option) for _, cell in _COLUMNS] for option in options)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            text.ljust(width) if name in _TEXT_COLUMNS else text.rjust(width)
            for (name, _), text, width in zip(_COLUMNS, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _notes(request: PlanRequest, protocols: set[Protocol]) -> Iterator[str]:
    """Say what is counted and what is not."""
    yield "Bytes are those of one client, without the model itself. Cheapest means the shortest upload: what a scheme"
    yield "loses is in compression/README.md. Work is counted and not measured, for all clients at the busiest machine:"
    yield "AES blocks, of which one takes 1.4 ns at the 11.3 GB/s of benchmarks/README.md, and operations on words."
    if Protocol.PAIRWISE in protocols:
        yield (
            f"Pairwise masks: active mode, {request.suite.value}, planned for {request.clients // ONE_IN} corrupted "
            "clients and as many that drop out."
        )
    if Protocol.CODED_MASKS in protocols:
        yield "Coded masks: semi_honest mode, planned for as many corrupted clients and dropouts; for comparison."
    if Protocol.ENCLAVE in protocols:
        yield "Enclave: between is what enters it. Its evidence, some kilobytes, more or less by vendor, comes on top."
    if Protocol.POINT_FUNCTIONS in protocols:
        yield f"Two servers: between is for batches of {BATCH} uploads."
        yield "The shares of the sum, which are exchanged once a round, come on top."


def _number(protocol: Protocol) -> int:
    return list(Protocol).index(protocol) + 1


def _power(count: int) -> str:
    """Write a large count with two digits and a power of ten."""
    if not count:
        return "-"
    digits, _, exponent = f"{count:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"
