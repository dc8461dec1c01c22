"""Options and output for sums added by workers, and for sums over groups, one session each."""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import hypot
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry

from .figures import Column, in_bytes, in_seconds, table, writable

if TYPE_CHECKING:
    from secagg.scale.spread import Figures, RecordedCoins, State
    from secagg.session.roles import ServerSession
    from secagg.session.run import Metrics, Progress
    from secagg.simulation.rehearsal import Rehearsal, Rehearsed

_LOG: Final = logging.getLogger("secagg")
_PROGRESS_SECONDS: Final = 10.0
ENGINES = ("memory", "processes", "ray")
SPREAD: Final = "one-message"
"""The only protocol whose uploads workers can add."""
_WORKERS: Final = 2
_COLUMNS: Final[Sequence[Column]] = (
    Column("clients", lambda row: f"{row['clients']:,}"),
    Column("counted", lambda row: f"{row['contributors']:,}"),
    Column("up each", lambda row: in_bytes(row["bytes sent by a client"]), rank=1),
    Column("down each", lambda row: in_bytes(row["bytes received by a client"]), rank=2),
    Column("time", lambda row: in_seconds(row["seconds"]), rank=1),
)


def add_options(command: Any) -> None:  # noqa: ANN401 -- argparse names the type of its groups privately
    """Add the options to a command."""
    group = command.add_argument_group("workers that add the uploads, instead of the server")
    group.add_argument("--engine", choices=ENGINES, help="engine of the workers (default: no workers)")
    group.add_argument("--workers", type=int, help="number of workers of processes or ray (default: 2)")
    group.add_argument(
        "--ray-address", default="", metavar="ADDRESS", help="address of the cluster (default: RAY_ADDRESS, or local)"
    )
    group.add_argument("--storage", metavar="URL", help="storage of all workers (default: a temporary folder)")
    group.add_argument("--metrics", type=Path, metavar="FILE", help="file for metrics, as Prometheus reads them")


class Telling:
    """Logs the progress of the workers, which ``/metrics`` shows too."""

    def __init__(self) -> None:
        self._due, self._said = 0.0, ""

    def __call__(self, figures: Figures) -> None:
        said = str(figures)
        if said != self._said and (time.monotonic() >= self._due or not figures.tasks_left):
            self._due, self._said = time.monotonic() + _PROGRESS_SECONDS, said
            _LOG.info("workers: %s", said)


@dataclass(slots=True)
class Spreading:
    """The adder of a sum, and the figures that report its progress."""

    metrics: Metrics
    add_through: Callable[..., None] | None = None
    """``add_through(session, state=None, is_kept=...)`` lets the workers add the uploads; None without workers."""

    def opened(self, session: ServerSession) -> None:
        """If there are workers, let them add a session's uploads; it cannot be resumed after a crash."""
        if self.add_through is not None:
            self.add_through(session)


@contextmanager
def workers_for(
    entry: ProtocolEntry, options: argparse.Namespace, show: Callable[[Figures], None]
) -> Generator[Spreading]:
    """Start the workers that the options request, and stop them at the end."""
    from secagg.session.run import Metrics

    found = Spreading(Metrics())
    _require_sense(entry, options)
    if options.engine is None:
        yield found
        return
    from secagg.crypto.entropy import SystemCoins
    from secagg.protocols.one_message import Server
    from secagg.scale.engines import open_engine
    from secagg.scale.spread import SpreadSum, State
    from secagg.scale.storage import require_usable

    def told(figures: Figures) -> None:
        show(figures)
        figures.tell(found.metrics, **({"task": options.task} if "task" in options else {}))
        if options.metrics is not None:
            # A metrics collector must never read an incomplete file.
            written = options.metrics.with_name(options.metrics.name + ".new")
            written.write_text(found.metrics.text())
            written.replace(options.metrics)

    def add_through(
        session: ServerSession, state: State | None = None, is_kept: Callable[[], bool] = lambda: False
    ) -> None:
        if not isinstance(session, Server):
            raise InvalidParameters(
                "--engine requires standing holders; set --set holders=... to their sockets, or leave out --engine"
            )
        own = state or State(Path(folder) / f"sum-{next(numbers)}", SystemCoins(), lasts=False)
        session.add_through(lambda cut: SpreadSum(cut, engine, own, storage, is_kept=is_kept, progress=told))

    with TemporaryDirectory() as folder:
        storage, numbers = options.storage or f"{folder}/storage", count()
        # Check this before any upload: a sum that cannot finish would waste its updates.
        require_usable(storage)
        if options.metrics is not None:
            writable(options.metrics)
        engine = open_engine(options.engine, options.workers or _WORKERS, options.ray_address)
        found.add_through = add_through
        try:
            yield found
        finally:
            engine.close()


@dataclass(frozen=True, slots=True)
class SpreadInState:
    """A sum whose state is in a folder, from which a restart resumes."""

    folder: Path
    workers: Spreading
    is_kept: Callable[[], bool]

    @property
    def goes_on(self) -> bool:
        from secagg.scale.spread import goes_on

        return goes_on(self.folder)

    def opened(self, about: Callable[[RecordedCoins], ServerSession], *, begins: bool = False) -> ServerSession:
        """Open a session with the recorded coins, if there are any, and let the workers add its uploads.

        Args:
            begins: start a new sum and ignore the recorded one, which ended or was never announced.
        """
        from secagg.crypto.entropy import SystemCoins
        from secagg.scale.spread import RecordedCoins, State

        state = State(self.folder, SystemCoins(), begins=begins)
        try:
            coins = RecordedCoins(state, SystemCoins())
            session = about(coins)
            coins.require_offer(session.invitation)
            if self.workers.add_through is not None:
                self.workers.add_through(session, state, self.is_kept)
        except BaseException:
            state.close()
            raise
        return session


def _require_sense(entry: ProtocolEntry, options: argparse.Namespace) -> None:
    workers = _WORKERS if options.workers is None else options.workers
    if not 1 <= workers <= 1 << 12:
        raise InvalidParameters(f"--workers must be between 1 and 4096; got {workers}")
    if options.engine is None:
        for name in ("storage", "metrics", "ray_address", "workers"):
            if getattr(options, name):
                raise InvalidParameters(f"--{name.replace('_', '-')} only applies with --engine; set --engine too")
        return
    if entry.name != SPREAD:
        raise InvalidParameters(
            f"--engine requires {SPREAD}; only the server adds the uploads of {entry.name}. If one server is too slow, "
            "divide the clients: `secagg serve --group K/N`, then `secagg add`"
        )
    if options.workers and options.engine == "memory":
        raise InvalidParameters("--workers requires --engine processes or ray; memory has no workers")
    if options.ray_address and options.engine != "ray":
        raise InvalidParameters("--ray-address requires --engine ray")
    if options.engine == "ray" and options.storage is None and (options.ray_address or os.environ.get("RAY_ADDRESS")):
        raise InvalidParameters(
            "--ray-address and RAY_ADDRESS need --storage: a folder or URL that all machines of the cluster see"
        )


# --- Groups -----------------------------------------------------------------------------------------------------------


def options_of_groups(options: argparse.Namespace) -> dict[int, argparse.Namespace]:
    """Return the options of each group's session, by its first client; dropouts and cheaters are divided evenly."""
    if options.groups is None:
        return {1: options}
    from secagg.scale.tree import divided

    def dealt(count: int | None, group: int) -> int | None:
        return None if count is None else count // options.groups + (group < count % options.groups)

    return {
        clients.start: argparse.Namespace(
            **vars(options)
            | {"clients": len(clients), "drop": dealt(options.drop, group), "cheat": dealt(options.cheat, group)}
        )
        for group, clients in enumerate(divided(options.clients, options.groups))
    }


def run_all(
    rehearsals: Sequence[Rehearsal], progress: Progress, opened: Callable[[ServerSession], None]
) -> list[Rehearsed]:
    """Run one session after another; check after the first one that the sums can be added."""
    from secagg.scale.tree import require_addable

    results = [rehearsals[0].run(progress, opened)]
    if len(rehearsals) > 1:
        require_addable([results[0].released], rehearsals[0].inputs.layout, rehearsals[0].inputs.tables)
    return results + [rehearsal.run(progress, opened) for rehearsal in rehearsals[1:]]


def total_of(rehearsals: Sequence[Rehearsal], results: Sequence[Rehearsed]) -> Rehearsed:
    """Add the sums of all groups, whose noise is independent."""
    from secagg.scale.tree import joined

    inputs, contributors = rehearsals[0].inputs, frozenset(c for result in results for c in result.contributors)
    deviations = tuple(hypot(*each) for each in zip(*(result.deviations for result in results), strict=True))
    released = joined([result.released for result in results], inputs.layout, inputs.capacity, inputs.tables)
    is_exact = all(result.is_exact for result in results) and inputs.is_sum_of(
        released.aggregate, sorted(contributors), deviations
    )
    return replace(
        results[0],
        released=released,
        contributors=contributors,
        is_exact=is_exact,
        seconds=sum(result.seconds for result in results),
        processor_seconds=sum(result.processor_seconds for result in results),
        deviations=deviations,
    )


def summary_of(rehearsal: Rehearsal, total: Rehearsed, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all groups."""
    same = ("protocol", "dimension", "compression", "segments", "largest norms")
    return {
        **{name: groups[0][name] for name in same},
        "clients": sum(group["clients"] for group in groups),
        "contributors": len(total.released.counted),
        "revealed sets": [len(clients) for clients in total.released.revealed],
        "noise deviations": [round(deviation, 3) for deviation in total.deviations],
        "sum is exact": total.is_exact,
        "rounding error in steps": rounding_error(rehearsal, total),
        "seconds": round(total.seconds, 3),
        "processor seconds": round(total.processor_seconds, 3),
        "groups": list(groups),
    }


def text(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the summary."""
    groups = summary["groups"]
    yield f"{summary['clients']:,} clients in {len(groups)} groups, {summary['dimension']:,} values each; the first:"
    yield from groups[0]["description"]
    yield ""
    yield from table("group", [(str(number), group) for number, group in enumerate(groups, 1)], _COLUMNS)
    yield ""
    for number, group in enumerate(groups, 1):
        yield from (f"group {number}, left out: {client}: {why}" for client, why in group["left out"].items())
        yield from (f"group {number}, fault: {fault}" for fault in group["faults"])
    yield revealed(summary["revealed sets"], summary["contributors"])
    if summary["noise deviations"]:
        yield (
            f"each sum has its own noise, with a deviation of {max(groups[0]['noise deviations']):,.3f} in the first; "
            f"their total has {max(summary['noise deviations']):,.3f}"
        )
    yield verdict(summary)
    yield f"{summary['seconds']:.1f} s, one group after another; {summary['processor seconds']:.1f} s of processor time"


def revealed(sizes: Sequence[int], counted: int) -> str:
    """Describe the sums that the server learned."""
    least, most = min(sizes), max(sizes)
    if least == counted:
        return f"revealed: only the sum of all {counted:,}"
    return f"revealed: {len(sizes)} sums, over {least:,} to {most:,} clients each, not only the sum of all {counted:,}"


# --- Also used for one session ----------------------------------------------------------------------------------------


def rounding_error(rehearsal: Rehearsal, result: Rehearsed) -> float | None:
    """Return the mean error of rounding under masks, in steps; None without rounding."""
    from secagg.simulation.synthetic_updates import SyntheticUpdates

    if not isinstance(rehearsal.inputs, SyntheticUpdates):
        return None
    return rehearsal.inputs.rounding_error(result.released.aggregate, sorted(result.contributors))


def verdict(summary: dict[str, Any]) -> str:
    """Say whether the sum equals the inputs' sum, and how much rounding changed it."""
    error, has_noise = summary["rounding error in steps"], bool(summary["noise deviations"])
    if error is None or has_noise:
        how = "up to its noise" if has_noise else "exactly"
        return f"the sum is {how if summary['sum is exact'] else 'NOT'} the plain sum of their inputs"
    due = (summary["contributors"] / 12) ** 0.5
    within = "within the rounding of each" if summary["sum is exact"] else "NOT within the rounding of each"
    return (
        f"the sum is the plain sum of their inputs {within}: {error:.3f} steps on average, and a uniform dither has "
        f"{due:.3f}"
    )
