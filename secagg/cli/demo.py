"""``secagg demo``: one session of the pairwise protocol with dropouts, and a picture of who sees what."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.fixed_point import FixedPoint, Floats
from secagg.contract import encode_update, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
from secagg.errors import InternalError, InvalidParameters
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask import PairwiseOptions, Server, Topology
from secagg.session.registry import find
from secagg.session.roles import LazyUpdate, ServerSession, Subject, Update
from secagg.session.run import Measured, run
from secagg.simulation.rehearsal import client_ids, spread_dropouts

from .figures import write_json

LEAST_CLIENTS, MOST_CLIENTS = 3, 100
SIDE: Final = 96
CLIP, FRACTION_BITS = 4.0, 16
CLIP_BITS: Final = 20
"""Bits of one clipped value."""
_MODEL: Final = bytes(32)


def run_demo(options: argparse.Namespace) -> int:
    """Run the session, compare the sum, write a report and a picture, and print where they are."""
    clients, out = int(options.clients), Path(options.out)
    # Recovery needs shares of more than half of the clients, not counting a client's own share.
    most_dropped = clients - clients // 2 - 2
    drop: int = min(2, most_dropped) if options.drop is None else options.drop
    _check_cohort(clients, drop, most_dropped)
    out.mkdir(parents=True, exist_ok=True)
    codec = _codec_for(clients)
    updates = {client: _update_of(client.value, clients) for client in client_ids(clients)}
    payloads = {client: encode_update(codec, update, SystemCoins()) for client, update in updates.items()}
    entry = find("pairwise")
    uploading = next(stage for stage in entry.stages if stage.takes_update)
    gone = spread_dropouts(clients, drop, [uploading])[uploading.name]
    settings = PairwiseOptions(topology=Topology.FULL, population=clients, dropped=drop)
    subject = Subject(task=b"demo", round_number=1, layout=codec.layout, capacity=codec.capacity, model_digest=_MODEL)
    print(
        f"{clients} clients advertise keys and share their secrets with each other; {drop} drop out before they upload."
    )
    started = perf_counter()
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        watched = _Watched(world.open(subject, frozenset(payloads)))
        making = {client: LazyUpdate(partial(Update, payload, _MODEL)) for client, payload in payloads.items()}
        members = (world.member(client).join(subject, update) for client, update in making.items())
        total = run(watched, members, {uploading.name: gone}).aggregate
    seconds, uploads, session = perf_counter() - started, watched.uploads, cast("Server", watched.session)
    print("The others agree on who is left, and reveal to the server only what removes the masks from the sum.")
    ideal = ideal_aggregate(codec.layout, [payloads[client] for client in uploads])
    is_exact = total.contributors == len(uploads) and bool((total.values[0] == ideal.values[0]).all())
    recovered, survivor = codec.decode(total), next(iter(uploads))
    panels: dict[str, npt.NDArray[np.number[Any]]] = {
        "one client's update\n(never leaves the client)": updates[survivor],
        f"what the server receives from it\n(uniform modulo 2^{codec.modulus_bits})": session.masked_vector(
            uploads[survivor]
        ),
        "what the server learns: the sum\n(with few clients, gaps show who dropped out)": recovered,
    }
    report = {
        "clients": clients,
        "dropped before upload": [str(client) for client in sorted(gone)],
        "threshold": session.configuration.threshold,
        "weights per client": codec.length,
        "bits per weight": codec.modulus_bits,
        "upload bytes per client": len(uploads[survivor]),
        "bytes of the same as float32": 4 * codec.length,
        "sum equals the survivors' sum exactly": is_exact,
        "largest rounding error of the sum": float(f"{np.abs(recovered - sum(updates[c] for c in uploads)).max():.2g}"),
        "seconds": round(seconds, 3),
    }
    write_json(out / "report.json", report)
    written = [out / "report.json"]
    if picture := _picture(out / "who_sees_what.png", f"{clients} clients, {drop} dropped out", panels):
        written.append(picture)
    print()
    for name, value in report.items():
        print(f"  {name:<38} {', '.join(value) or 'none' if isinstance(value, list) else value}")
    print("\nFiles: " + ", ".join(str(path) for path in written))
    return 0 if is_exact else 1


def _check_cohort(clients: int, drop: int, most_dropped: int) -> None:
    if not LEAST_CLIENTS <= clients <= MOST_CLIENTS:
        raise InvalidParameters(
            f"--clients must be between {LEAST_CLIENTS} and {MOST_CLIENTS}, because the demo runs in one process; "
            f"got {clients}"
        )
    if not 0 <= drop <= most_dropped:
        raise InvalidParameters(
            f"{clients} clients tolerate at most {most_dropped} dropouts, because the others must recover the sum; "
            f"--drop is {drop}"
        )


def _codec_for(clients: int) -> FixedPoint:
    """Return the codec with the narrowest ring that holds the sum of all clients."""
    for modulus_bits in range(CLIP_BITS, MAXIMUM_MODULUS_BITS):
        codec = FixedPoint(length=SIDE * SIDE, clip=CLIP, fraction_bits=FRACTION_BITS, modulus_bits=modulus_bits)
        if codec.capacity >= clients:
            return codec
    raise InternalError(f"no ring holds the sum of {clients} clients")


def _update_of(number: int, clients: int) -> Floats:
    """Return one noisy arc of a circle; only the sum shows the whole circle."""
    axis = np.linspace(-1.0, 1.0, SIDE)
    radius, angle = np.hypot(*np.meshgrid(axis, axis)), np.arctan2(*np.meshgrid(axis, axis))
    own_arc = np.cos(angle - 2 * np.pi * number / clients) ** 8 * (np.cos(angle - 2 * np.pi * number / clients) > 0)
    update = np.exp(-(((radius - 0.65) / 0.12) ** 2)) * own_arc + 0.1 * np.sin(9 * radius + number)
    return np.asarray(update.reshape(-1), dtype=np.float64)


class _Watched(Measured):
    """Stores the uploads, as a curious server would."""

    def __init__(self, session: ServerSession, between: Callable[[], int] = lambda: 0) -> None:
        super().__init__(session, between)
        self.uploads = dict[ClientId, bytes]()

    def receive(self, sender: ClientId, message: bytes) -> None:
        super().receive(sender, message)
        if self.now.takes_update:
            self.uploads[sender] = message


def _picture(path: Path, title: str, panels: Mapping[str, npt.NDArray[np.number[Any]]]) -> Path | None:
    """Draw each vector as a square; return None if the ``plot`` extra is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: install the extra `plot` (matplotlib) to get one.")
        return None
    figure: Any = Figure(figsize=(10.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"One session of pairwise masks, {title}; each square is a vector of {SIDE * SIDE:,} values")
    for axes, (meaning, values) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.imshow(values.reshape(SIDE, SIDE).astype(np.float64), cmap="viridis")
        axes.set_title(meaning, fontsize=10)
        axes.set_axis_off()
    figure.savefig(path, dpi=120)
    return path
