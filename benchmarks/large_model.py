"""Sums of 10, 42 and 100 million values, the sizes of adapters: seconds, memory and bytes of each party.

Eight clients send 8 bits a value of bfloat16 tensors. Each protocol, a platform's client and NVFlare's homomorphic
encryption (CKKS, 8192 slots by default) each run in a separate process. A client's upload and its floor take
turns, and the shortest time of each counts; the floor is one pass of quantizing, the client's masks, and packing.
Memory is a step's peak beyond its input, including the upload; for CKKS it is resident memory.

Run it with `make bench-large`, which installs NVFlare and TenSEAL into a separate environment.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np

CLIENTS, BITS, LAYERS, RANK, CLIP = 8, 8, 32, 8, 0.02
MILLION: Final = 1_000_000
WORDS: Final = 8
"""Check words of a vector of 11 bits."""
CASES: Final = ("pairwise", "pairwise semi_honest", "enclave", "one-message", "platform", "platform defaults", "ckks")
MOST_CKKS: Final = 10 * MILLION
"""Beyond this, a client's figures for CKKS are extrapolated from here, since they are proportional to the values."""
MEGABYTE: Final = 1e6


@dataclass(slots=True)
class Row:
    """Figures of one case; seconds and megabytes are of one client or of the server."""

    case: str
    values: int
    upload_s: float = 0.0
    """The shortest step from the model to the upload."""
    floor_s: float = 0.0
    client_s: float = 0.0
    """All steps of the fastest client."""
    server_s: float = 0.0
    all_s: float = 0.0
    """All parties, one after the other."""
    sent_mb: float = 0.0
    client_mb: float = 0.0
    """Memory of a client's step."""
    server_mb: float = 0.0
    """Memory of the server's largest step, beyond what it keeps between steps."""
    note: str = ""
    parts: dict[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        ratio = f"{self.upload_s / self.floor_s:.2f}" if self.floor_s else ""
        figures = (self.upload_s, ratio, self.client_s, self.server_s, self.all_s)
        sizes = (self.sent_mb, self.client_mb, self.client_mb * MEGABYTE / self.values, self.server_mb)
        cells = [f"{figure:.2f}" if isinstance(figure, float) and figure else figure or "" for figure in figures]
        return f"| {self.case} | {' | '.join(map(str, cells))} | {' | '.join(f'{size:.1f}' for size in sizes)} |"


HEAD: Final = (
    "| | upload, s | / floor | client, s | server, s | all, s | sent, MB | client's memory, MB | bytes a value "
    "| server's memory, MB |\n|---|---|---|---|---|---|---|---|---|---|"
)


class Memory:
    """Peak memory of a step: as Python counts it, or resident memory for a C++ library."""

    def __init__(self, *, is_resident: bool = False) -> None:
        """Start without measurements."""
        self.highest, self._is_resident = 0.0, is_resident

    @contextmanager
    def measured(self) -> Generator[None]:
        """Measure a step relative to the memory held before it."""
        if self._is_resident:
            # This resets the system's peak to the memory that is resident now.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            before = self._megabytes("VmRSS")
            yield
            self.highest = max(self.highest, self._megabytes("VmHWM") - before)
            return
        tracemalloc.start()
        yield
        self.highest = max(self.highest, tracemalloc.get_traced_memory()[1] / MEGABYTE)
        tracemalloc.stop()

    @staticmethod
    def _megabytes(name: str) -> float:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / MEGABYTE


_CLOCK: list[Callable[[], float]] = [perf_counter]
"""The clock of all measurements, which ``--busy`` replaces."""


def seconds_of(step: Callable[[], Any]) -> tuple[Any, float]:
    """Return a step's result and its seconds."""
    began = _CLOCK[0]()
    result = step()
    return result, _CLOCK[0]() - began


def adapter(values: int) -> dict[str, Any]:
    """Return tensors of bfloat16 by the names that PEFT gives them; a few of 100,000 values are beyond the clip."""
    import torch  # noqa: PLC0415 -- only where a case needs it

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    side = values // (2 * LAYERS * RANK)
    return {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight": (
            torch.randn(RANK, side, generator=generator) * CLIP / 4
        ).to(torch.bfloat16)
        for layer in range(LAYERS)
        for part in "AB"
    }


# --- Protocols --------------------------------------------------------------------------------------------------------


def protocol_row(case: str, values: int) -> Row:
    """Run a whole session; the first client's upload is also measured in memory."""
    import secagg  # noqa: PLC0415 -- not in the process of CKKS
    from secagg.crypto.entropy import SystemCoins  # noqa: PLC0415
    from secagg.identifiers import ClientId  # noqa: PLC0415
    from secagg.parameters import SecurityMode  # noqa: PLC0415
    from secagg.protocols.pairwise_mask import PairwiseOptions  # noqa: PLC0415

    protocol, _, mode = case.partition(" ")
    chosen: Any = PairwiseOptions(mode=SecurityMode.SEMI_HONEST) if mode else protocol
    model, coins, row = adapter(values), SystemCoins(), Row(case, values)
    plan = secagg.Session.for_model(model, clients=CLIENTS, clip=CLIP, bits=BITS, protocol=chosen)
    subject = plan.subject(task=b"adapter", round_number=1, model=model)
    clients = [ClientId(number) for number in range(1, CLIENTS + 1)]
    spent, client_memory, server_memory = dict.fromkeys(clients, 0.0), Memory(), Memory()
    uploads, phases = list[float](), phases_of(plan, model, protocol)
    with closing(plan.simulate(coins=coins, clock=lambda: datetime.now(UTC))) as world:
        server, row.server_s = seconds_of(lambda: world.open(subject, frozenset(clients)))
        members = {
            who: world.member(who).join(subject, plan.update(model, subject=subject, coins=coins)) for who in clients
        }
        while (stage := server.stage) is not None:
            for who, member in members.items():
                message, took = seconds_of(lambda who=who: server.message_to(who))  # type: ignore[misc]
                row.server_s += took
                if message is None:
                    continue
                with client_memory.measured() if who == clients[0] else nullcontext():
                    answer, took = seconds_of(lambda: member.answer(message))  # noqa: B023 -- called at once
                spent[who] += took
                if stage.takes_update:
                    uploads.append(took)
                    row.sent_mb = len(answer) / MEGABYTE
                    if len(uploads) <= max(2, CLIENTS * 10 * MILLION // values):
                        for name, phase in phases.items():
                            row.parts[name] = min(row.parts.get(name, inf), seconds_of(phase)[1])
                with server_memory.measured() if who == clients[0] else nullcontext():
                    row.server_s += seconds_of(lambda: server.receive(who, answer))[1]  # noqa: B023 -- likewise
                del answer, message
            with server_memory.measured():
                row.server_s += seconds_of(server.close_stage)[1]
        with server_memory.measured():
            mean, took = seconds_of(lambda: plan.mean(server.release()))
        row.server_s += took
    worst = max(float((mean[name] - tensor.float().clip(-CLIP, CLIP)).abs().max()) for name, tensor in model.items())
    assert worst < plan.step, "a mean is off by more than a step"
    row.upload_s, row.client_s = min(uploads), min(spent.values())
    row.floor_s = sum(row.parts.get(name, 0.0) for name in ("quantizing", "masks", "packing"))
    row.all_s = row.server_s + sum(spent.values())
    row.client_mb, row.server_mb = client_memory.highest, server_memory.highest
    return row


def phases_of(plan: Any, model: Any, protocol: str) -> dict[str, Callable[[], object]]:  # noqa: ANN401 -- of any model
    """Return a client's phases separately; the first three are the floor of its upload."""
    from secagg.crypto.check_words import check_words  # noqa: PLC0415 -- as above
    from secagg.crypto.entropy import SystemCoins  # noqa: PLC0415
    from secagg.crypto.mask_expansion import accumulate  # noqa: PLC0415
    from secagg.crypto.ring import Ring  # noqa: PLC0415
    from secagg.crypto.secret import Secret  # noqa: PLC0415

    if protocol == "one-message":
        return {}
    coins, codec = SystemCoins(), plan.codec
    ring, is_pairwise = Ring(codec.modulus_bits), protocol == "pairwise"
    keys = [Secret.random("mask_key", 16, coins) for _ in range(CLIENTS if is_pairwise else 1)]
    length = int(plan.shapes.length)
    vector = np.random.default_rng(1).normal(0, CLIP / 4, length).astype(np.float32)
    (codes,) = codec.encode(vector, coins).values
    packed = ring.pack(codes)
    words = {"check words": partial(check_words, ring, codes, WORDS, keys[0])} if is_pairwise else {}
    return {
        "quantizing": partial(codec.encode, vector, coins),
        "masks": partial(accumulate, codes, ring, add=keys[::2], subtract=keys[1::2]),
        "packing": partial(ring.pack_view, codes),
        "bfloat16 to float32": partial(plan.shapes.vector, model),
        "SHA-256": lambda: hashlib.sha256(packed),
        **words,
    }


# --- A platform's client ----------------------------------------------------------------------------------------------


def platform_row(case: str, values: int) -> Row:
    """Encode a trained model like a platform's client: with its defaults, or with 8 bits and uniform weights."""
    from secagg.compression.model_update import decode_parameters  # noqa: PLC0415 -- as above
    from secagg.contract import ideal_aggregate  # noqa: PLC0415
    from secagg.platforms.client_round import Trained, Training  # noqa: PLC0415
    from secagg.platforms.round_task import Rounds  # noqa: PLC0415
    from secagg.platforms.settings import SecAggSettings  # noqa: PLC0415
    from secagg.platforms.terms import Terms  # noqa: PLC0415

    class Uncharged:
        def charge(self, *_: object) -> None: ...

        def word_for(self, *_: object) -> int:
            return 1

    row, is_coded, memory = Row(case, values), case == "platform", Memory()
    sent = {name: tensor.float().numpy() for name, tensor in adapter(values).items()}
    after = {name: tensor * np.float32(1.5) for name, tensor in sent.items()}
    coded: dict[str, Any] = {"weighting": "uniform", "clip": 2.0**-5, "fraction_bits": 22, "compression": "scalar-8"}
    rounds = Rounds(SecAggSettings(**(coded if is_coded else {})))
    for number in (1, 2) if is_coded else (1,):
        task = rounds.begun(sent, clients=CLIENTS, task="t", number=number, weighted_by="n")
        terms = Terms.parsed(task.terms.record)
        assert terms is not None
        charges: Any = Uncharged()
        training = Training(
            terms, decode_parameters(terms.parameters), charges, task.sent, lambda: Trained([after], lambda _: 1)
        )
        update, row.upload_s = seconds_of(training.made)
        memory = Memory()
        with memory.measured():
            training.made()
        if number == 1 and is_coded:
            # The first round sends fixed-point numbers; the next round's scales follow from them.
            aggregate = ideal_aggregate(task.update.layout, [update.payload] * CLIENTS)
            rounds.model(task, task.means(aggregate))
        row.sent_mb = task.update.layout.payload_bytes / MEGABYTE
    row.client_mb = memory.highest
    return row


# --- Homomorphic encryption -------------------------------------------------------------------------------------------


def ckks_row(case: str, values: int) -> Row:
    """Encrypt, add and decrypt with NVFlare's code: its filters, aggregator, serialization and parameters."""
    load: Callable[[str], Any] = importlib.import_module
    logging.disable(logging.INFO)
    row, measured = Row(case, values), min(values, MOST_CKKS)
    builder = load("nvflare.lighter.impl.he").HEBuilder()
    builder.initialize(None, None)
    context = load("tenseal").context_from(builder.get_serialized_context(is_client=True))
    local: Any = load("nvflare.apis.fl_context").FLContext()
    encryptor = load("nvflare.app_opt.he.model_encryptor").HEModelEncryptor(weigh_by_local_iter=False)
    decryptor = load("nvflare.app_opt.he.model_decryptor").HEModelDecryptor()
    encryptor.tenseal_context = decryptor.tenseal_context = context
    encryptor.encrypt_layers = [True]
    helper = load("nvflare.app_common.aggregators.weighted_aggregation_helper").WeightedAggregationHelper(
        weigh_by_local_iter=False
    )
    fobs = load("nvflare.fuel.utils.fobs")
    drawn = np.random.default_rng(1).uniform(-0.01, 0.01, measured // (2 * LAYERS)).astype(np.float32)
    client_memory, server_memory, clients = Memory(is_resident=True), Memory(is_resident=True), list[float]()
    dictionary = dict[str, bool]()
    for number in range(CLIENTS if measured <= MILLION else 2):
        params = {f"layer {layer}": drawn for layer in range(2 * LAYERS)}

        def upload(params: dict[str, Any] = params) -> bytes:
            encrypted, encrypted_layers = encryptor.encryption(params, local)
            dictionary.update(encrypted_layers)
            sent: bytes = fobs.dumps(encrypted)
            return sent

        with client_memory.measured():
            sent, took = seconds_of(upload)
        clients.append(took)
        del params
        row.sent_mb = len(sent) / MEGABYTE

        def receive(sent: bytes = sent, number: int = number) -> None:
            helper.add(fobs.loads(sent), 1.0, f"client {number}", 0)

        with server_memory.measured():
            row.server_s = seconds_of(receive)[1] * CLIENTS
        del sent
    result, took = seconds_of(helper.get_result)
    row.server_s += took
    received = {name: vector.serialize() for name, vector in result.items()}
    with client_memory.measured():
        mean, row.parts["decrypting"] = seconds_of(lambda: decryptor.decryption(received, dictionary, local))
    assert max(float(np.abs(np.array(vector) - drawn).max()) for vector in mean.values()) < 1e-6
    row.upload_s = min(clients)
    row.client_s = row.upload_s + row.parts["decrypting"]
    row.all_s = row.server_s + CLIENTS * row.client_s
    row.client_mb, row.server_mb = client_memory.highest, server_memory.highest
    if measured < values:
        by = values / measured
        for name in ("upload_s", "client_s", "server_s", "all_s", "sent_mb", "client_mb", "server_mb"):
            setattr(row, name, getattr(row, name) * by)
        row.note = f"extrapolated from {measured:,} values"
    return row


def row_of(case: str, values: int) -> Row:
    """Measure one case in this process."""
    if case == "ckks":
        return ckks_row(case, values)
    return platform_row(case, values) if case.startswith("platform") else protocol_row(case, values)


def main() -> None:
    """Measure each case in a separate process, print a table, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("millions", type=float, nargs="?", default=10, help="millions of values (default: 10)")
    parser.add_argument("cases", nargs="*", help=f"any of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--ckks", default=sys.executable, help="a Python with nvflare and tenseal")
    parser.add_argument("--json", type=Path, help="file for the rows; rows of other sizes and cases are kept")
    parser.add_argument("--busy", action="store_true", help="measure processor time, for a busy machine")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    values = int(options.millions * MILLION) // (2 * LAYERS * RANK) * (2 * LAYERS * RANK)
    if options.busy:
        _CLOCK[0] = process_time
    if options.one:
        print(json.dumps(asdict(row_of(options.cases[0], values))))
        return
    from figures import machine  # noqa: PLC0415 -- not in the process of CKKS

    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    print(f"{values:,} values, {CLIENTS} clients, {BITS} bits\n{HEAD}")
    rows = list[Row]()
    for case in options.cases or CASES:
        python = options.ckks if case == "ckks" else sys.executable
        command = [python, __file__, str(options.millions), case, "--one", *(["--busy"] if options.busy else [])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 -- this program
        rows.append(Row(**json.loads(done.stdout.splitlines()[-1])))
        print(f"{rows[-1]} {rows[-1].note}".rstrip(), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        before: list[dict[str, Any]] = []
        if options.json.exists():
            before = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
        made = {(row.case, row.values) for row in rows}
        kept = [row for row in before if (row["case"], row["values"]) not in made]
        found = sorted(kept + [asdict(row) for row in rows], key=lambda row: (row["values"], CASES.index(row["case"])))
        options.json.write_text(json.dumps({"machine": machine(), "rows": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
