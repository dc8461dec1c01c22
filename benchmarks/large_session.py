"""Whole sessions of 100, 1,000 and 10,000 clients in one process: time by phase and peak memory.

Short vectors, so that what is measured is everything but the masks: key agreement, sealing, signatures, sharing and
reconstruction. Active mode, sparse graph, one client in twenty corrupted; as many drop out, at every round after the
first. Each size runs in a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import resource
import sys
from pathlib import Path
from time import perf_counter

from figures import machine
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import ServerState
from secagg.simulation.cohort import PLACES, Setting, WindowedInputs, gather, spread_dropouts

SIZES = (100, 1_000, 10_000)
LENGTH = 64
INPUT_BITS = 16


def measure_session(clients: int, suite: Suite, length: int) -> dict[str, object]:
    """Run one session and return what it took."""
    started = perf_counter()
    inputs = WindowedInputs(input_bits=INPUT_BITS, length=length, clients=clients, seed=b"large session")
    # Everybody advertises, so that the graph is the one that the table of parameters names for this population.
    after_advertising = [place for place in PLACES if place is not ServerState.AWAITING_KEY_ADVERTISEMENTS]
    cohort = gather(
        inputs.payload_of,
        clients,
        capacity=inputs.capacity,
        dropouts=spread_dropouts(clients, clients // 20, SecurityMode.ACTIVE, after_advertising),
        setting=Setting(suite=suite, corrupted=clients // 20),
    )
    made = perf_counter()
    shown = Bar(clients)
    result = cohort.run(shown.update)
    shown.end()
    ended = perf_counter()
    (revealed,) = result.server.revealed
    assert inputs.is_sum_of(result.aggregate, revealed), "the sum is not that of the contributors' inputs"
    configuration = result.server.configuration
    return {
        "clients": clients,
        "suite": suite.value,
        "length": length,
        "degree": configuration.degree,
        "threshold": configuration.threshold,
        "committee": configuration.committee_size or clients,
        "quorum": configuration.quorum,
        "contributors": result.aggregate.contributors,
        "exact": True,
        "seconds making clients": round(made - started, 2),
        "rounds": {
            figures.state.value: {
                "dropped": len(figures.dropped),
                "clients' seconds": round(figures.client_seconds, 3),
                "ms per client": round(1000 * figures.client_seconds / max(1, figures.messages_down), 3),
                "server's seconds": round(figures.server_seconds, 3),
                "bytes down": figures.bytes_down,
                "bytes up": figures.bytes_up,
            }
            for figures in result.rounds
        },
        "server's seconds unmasking": round(result.unmask_seconds, 3),
        "seconds": round(ended - made, 2),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


class Bar:
    """Progress on standard error: a line for each phase, and the number of clients in it now and then."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._started = perf_counter()
        self._shown = 0.0
        self._phase = ""

    def update(self, state: ServerState, done: int, count: int) -> None:
        """Show how far a phase has come, at most twice a second on a terminal, and once a minute in a file."""
        now, phase = perf_counter(), "unmasking" if state is ServerState.COMPLETED else state.value
        pause = 0.5 if sys.stderr.isatty() else 60.0
        if phase == self._phase and now - self._shown < pause:
            return
        if phase != self._phase:
            # Thousands of clients that live in one process would be walked through by every collection.
            gc.freeze()
        self._phase, self._shown = phase, now
        end = "\r" if sys.stderr.isatty() else "\n"
        line = f"{self._clients:>6} clients {now - self._started:>7.0f} s  {phase:<32} {done:>7} of {count:<7}"
        print(line, end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        print(file=sys.stderr)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="how many clients (default: %(default)s)")
    parser.add_argument("--length", type=int, default=LENGTH, help="of a client's vector (default: %(default)s)")
    parser.add_argument("--suite", choices=["classic", "hybrid"], default="classic")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    measured = list[dict[str, object]]()
    for clients in options.sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            session = pool.apply(measure_session, (clients, Suite[options.suite.upper()], options.length))
        measured.append(session)
        print(json.dumps(session, indent=2), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine(), "sessions": measured}, indent=2) + "\n")


if __name__ == "__main__":
    _main()
