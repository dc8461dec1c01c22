"""One buffer of an enclave in memory, with real cryptography and simulated hardware, and what it took."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.contract import Aggregate, IndexSegment, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.protocols.enclave.client import Client
from secagg.protocols.enclave.floors import EnclaveFloors
from secagg.protocols.enclave.ledger import SealLedger
from secagg.protocols.enclave.plan import plan_enclave
from secagg.protocols.enclave.simulated_enclave import SimulatedEnclave
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, ReleaseForm
from secagg.protocols.enclave.trusted.histogram import Accumulation
from secagg.protocols.enclave.trusted.messages import ModelStamp
from secagg.session.certificates import IDENTITY_KEY_BYTES, Authority, SigningKey, issue_certificate
from secagg.simulation.measured_buffer import BufferFigures, MeasuredBuffer, measured_buffer
from secagg.simulation.synthetic_updates import SyntheticUpdates, UpdateSetting

from .figures import Bar, in_bytes, in_seconds, peak_mib, some

LEAST_CLIENTS, MOST_CLIENTS = 2, 20_000
MOST_VALUES: Final = 1 << 26
_TASK: Final = b"a rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveSetting:
    """The choices that a rehearsal leaves to whoever starts it."""

    drop: int
    suite: Suite
    form: ReleaseForm
    accumulation: Accumulation
    threads: int


def run_enclave_round(updates: UpdateSetting, setting: EnclaveSetting, report: Path | None) -> int:
    """Fill and release one buffer, print what it took, and fail unless its sum is exact."""
    for name, value, least, most in (
        ("clients", updates.clients, LEAST_CLIENTS, MOST_CLIENTS),
        ("dimension", updates.dimension, 1, MOST_VALUES),
        ("drop", setting.drop, 0, updates.clients - LEAST_COHORT),
    ):
        if not least <= value <= most:
            raise InvalidParameters(f"--{name} is in {least}..{most}; got {value}")
    inputs = SyntheticUpdates(updates)
    gone = {1 + turn * updates.clients // setting.drop for turn in range(setting.drop)}
    present = [number for number in range(1, updates.clients + 1) if number not in gone]
    now = datetime.now(UTC)
    authority = _new_signing_key()
    has_indices = any(isinstance(segment, IndexSegment) for segment in inputs.codec.layout.segments)
    configuration = plan_enclave(
        task=_TASK,
        layout=inputs.codec.layout,
        tables=inputs.codec.tables if has_indices else (),
        capacity=inputs.codec.capacity,
        authority=Authority(authority.public_key),
        minimum_cohort=max(LEAST_COHORT, len(present)),
        maximum_cohort=updates.clients,
        now=now,
        suite=setting.suite,
        form=setting.form,
        accumulation=setting.accumulation,
    )
    enclave = SimulatedEnclave(configuration, coins=SystemCoins(), threads=setting.threads)
    bar, started = Bar(), perf_counter()
    clients = (
        (_new_client(number, authority, configuration, inputs, setting), _encoder(inputs, number)) for number in present
    )
    try:
        result = measured_buffer(
            enclave,
            clients,
            count=len(present),
            model=ModelStamp(version=0, digest=bytes(32)),
            now=now,
            progress=lambda done, count: bar.update("1 sealed upload", done, count),
        )
    finally:
        bar.clear()
    seconds = perf_counter() - started
    is_exact = _is_exact(inputs, configuration, result.aggregate, [ClientId(number) for number in present])
    summary = _summary(inputs, configuration, result, sorted(gone), seconds, is_exact=is_exact)
    print("\n".join(_text(summary, setting)))
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(summary, indent=2) + "\n")
        print(f"\nwritten to {report}")
    return 0 if is_exact else 1


# --- Private ----------------------------------------------------------------------------------------------------------


def _encoder(inputs: SyntheticUpdates, number: int) -> Callable[[], Any]:
    return lambda: inputs.payload_of(number)


def _new_signing_key() -> SigningKey:
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        return SigningKey(seed)


def _new_client(
    number: int,
    authority: SigningKey,
    configuration: EnclaveConfiguration,
    inputs: SyntheticUpdates,
    setting: EnclaveSetting,
) -> Client:
    signing_key = _new_signing_key()
    return Client(
        certificate=issue_certificate(authority, ClientId(number), signing_key.public_key),
        signing_key=signing_key,
        floors=EnclaveFloors(
            suites=frozenset({setting.suite}),
            minimum_cohort=configuration.minimum_cohort,
            maximum_length=sum(segment.length for segment in configuration.layout.segments),
            authority=authority.public_key,
            histograms_accepted=setting.form is ReleaseForm.HISTOGRAM,
            direct_accepted=setting.accumulation is Accumulation.DIRECT,
        ),
        layout=inputs.codec.layout,
        tables=inputs.codec.tables if configuration.index_segments else (),
        capacity=inputs.codec.capacity,
        ledger=SealLedger(_TASK),
        coins=SystemCoins(),
        threads=setting.threads,
    )


def _is_exact(
    inputs: SyntheticUpdates, configuration: EnclaveConfiguration, aggregate: Aggregate, contributors: list[ClientId]
) -> bool:
    """Compare what was released with the sum in the clear, to the last bit of every decoded value."""
    ideal = inputs.codec.decode(inputs.ideal(contributors))
    is_summed = bool(configuration.tables)
    decoded = inputs.codec.decode_summed(aggregate) if is_summed else inputs.codec.decode(aggregate)
    return all(np.array_equal(ideal[name], decoded[name]) for name in ideal)


def _summary(  # noqa: PLR0913 -- everything that is printed
    inputs: SyntheticUpdates,
    configuration: EnclaveConfiguration,
    result: MeasuredBuffer,
    dropped: list[int],
    seconds: float,
    *,
    is_exact: bool,
) -> dict[str, Any]:
    figures, answered = result.figures, max(1, len(result.figures.answered))
    paper = upload_bytes(configuration.layout, Accounting.PAPER)
    return {
        "protocol": "enclave",
        "compression": inputs.setting.compression.value,
        "suite": configuration.suite.value,
        "release": configuration.form.name.lower() if configuration.index_segments else "masks",
        "accumulation": configuration.accumulation.name.lower() if configuration.index_segments else None,
        "clients": inputs.setting.clients,
        "dimension": inputs.values,
        "segments": [_segment(segment) for segment in configuration.layout.segments],
        "minimum cohort": configuration.minimum_cohort,
        "rounds": _rows(figures, dropped),
        "seconds": round(seconds, 3),
        "contributors": result.receipt.contributors,
        "receipt verifies": True,
        "sum is exact": is_exact,
        "bytes sent by a client": round(figures.bytes_up / answered),
        "bytes received by a client": round(figures.bytes_down / answered),
        "bytes of the packed vector": configuration.layout.payload_bytes,
        "bytes by the count of the paper": float(paper),
        "bytes of the same as float32": inputs.float32_bytes,
        "bytes into the enclave for a client": round(figures.bytes_into_enclave / answered),
        "bytes out of the enclave": figures.bytes_out_of_enclave,
        "peak memory MiB": peak_mib(),
    }


def _segment(segment: RingSegment | IndexSegment) -> str:
    match segment:
        case RingSegment():
            return f"{segment.length:,} values of {segment.modulus_bits} bits"
        case IndexSegment():
            return f"{segment.blocks:,} indices into {segment.codewords} codewords"


def _rows(figures: BufferFigures, dropped: list[int]) -> list[dict[str, Any]]:
    answered = len(figures.answered)
    return [
        {
            "round": "1 sealed upload",
            "answered": answered,
            "dropped": dropped,
            "failed": {str(client): reason for client, reason in figures.failed.items()},
            "messages": 2 * answered,
            "bytes up": figures.bytes_up,
            "bytes down": figures.bytes_down,
            "client seconds": round(figures.client_seconds, 4),
            "slowest client seconds": round(figures.slowest_client_seconds, 4),
            "host seconds": round(figures.host_seconds, 4),
            "enclave seconds": round(figures.enclave_seconds, 4),
        },
        {"round": "2 release", "enclave seconds": round(figures.release_seconds, 4)},
    ]


_COLUMNS: Final[Sequence[tuple[str, Callable[[dict[str, Any]], str]]]] = (
    ("answered", lambda row: f"{row['answered']:,}"),
    ("gone", lambda row: f"{len(row['dropped']) + len(row['failed']):,}"),
    ("messages", lambda row: f"{row['messages']:,}"),
    ("up each", lambda row: in_bytes(row["bytes up"] / max(1, row["answered"]))),
    ("up", lambda row: in_bytes(row["bytes up"])),
    ("down each", lambda row: in_bytes(row["bytes down"] / max(1, row["answered"]))),
    ("down", lambda row: in_bytes(row["bytes down"])),
    ("a client", lambda row: in_seconds(row["client seconds"] / max(1, row["answered"]))),
    ("slowest", lambda row: in_seconds(row["slowest client seconds"])),
    ("clients", lambda row: in_seconds(row["client seconds"])),
    ("host", lambda row: in_seconds(row["host seconds"])),
    ("enclave", lambda row: in_seconds(row["enclave seconds"])),
)


def _text(summary: dict[str, Any], setting: EnclaveSetting) -> Iterator[str]:
    """Write the summary for people."""
    yield (
        f"{summary['clients']:,} clients, {summary['dimension']:,} values each; an enclave (simulated: it protects "
        f"nobody from this machine), {summary['suite']}"
    )
    yield f"compression {summary['compression']}: " + "; ".join(summary["segments"])
    if summary["accumulation"]:
        yield f"the enclave counts in {summary['accumulation']} form and releases the {summary['release']}".replace(
            "_", " "
        )
    yield f"nothing is released of fewer than {summary['minimum cohort']}"
    yield ""
    yield f"{'round':<20}" + "".join(f"{name:>11}" for name, _ in _COLUMNS)
    upload, release = summary["rounds"]
    yield f"{upload['round']:<20}" + "".join(f"{cell(upload):>11}" for _, cell in _COLUMNS)
    yield f"{release['round']:<20}" + " " * 11 * (len(_COLUMNS) - 1) + f"{in_seconds(release['enclave seconds']):>11}"
    yield ""
    if upload["dropped"]:
        yield f"dropped out before uploading: client {some(upload['dropped'])}"
    yield from (f"not taken: {client}: {reason}" for client, reason in upload["failed"].items())
    yield f"released: 1 sum, over {summary['contributors']:,} clients; the enclave's receipt verifies"
    yield f"the decoded sum is {'exactly' if summary['sum is exact'] else 'NOT'} the plain sum of their updates"
    sent, float32 = summary["bytes sent by a client"], summary["bytes of the same as float32"]
    yield (
        f"a client sends {in_bytes(sent)}: {8 * sent / summary['dimension']:.3f} bits for each value, "
        f"{float32 / sent:.1f} times less than float32, and {sent - summary['bytes of the packed vector']:,} bytes "
        f"more than its packed values; the paper counts {in_bytes(summary['bytes by the count of the paper'])}"
    )
    yield (
        f"{in_bytes(summary['bytes into the enclave for a client'])} of them enter the enclave, and "
        f"{in_bytes(summary['bytes out of the enclave'])} leave it in all"
    )
    threads = "one thread" if setting.threads == 1 else f"{setting.threads} threads"
    yield (
        f"{summary['seconds']:.1f} s on {threads}, one client after another, encoding included"
        + (f"; {summary['peak memory MiB']} MiB at the peak, everybody included" if summary["peak memory MiB"] else "")
    )
