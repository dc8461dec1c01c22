"""One session of the pairwise protocol, with dropouts, and a picture of who sees what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.fixed_point import FixedPoint, Floats
from secagg.contract import encode_update, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, RingVector
from secagg.errors import InternalError, InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import Server, ServerState, Topology
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput
from secagg.simulation.cohort import Setting, client_ids, gather, spread_dropouts
from secagg.simulation.measurement import MeasuredRun

LEAST_CLIENTS, MOST_CLIENTS = 3, 100
SIDE: Final = 96
CLIP, FRACTION_BITS = 4.0, 16
CLIP_BITS: Final = 20
"""The bits of one clipped value."""


def run_demo(*, clients: int, drop: int | None, out: Path) -> int:
    """Mask, drop, recover and compare; write a report and a picture, and say where they are."""
    # In a full graph more than half of the clients must be there to recover anything, and one does not count: oneself.
    most_dropped = clients - clients // 2 - 2
    drop = min(2, most_dropped) if drop is None else drop
    _check_cohort(clients, drop, most_dropped)
    out.mkdir(parents=True, exist_ok=True)
    codec = _codec_for(clients)
    updates = {client: _update_of(client.value, clients) for client in client_ids(clients)}
    payloads = {client: encode_update(codec, update, SystemCoins()) for client, update in updates.items()}
    dropouts = spread_dropouts(clients, drop, SecurityMode.ACTIVE, [ServerState.AWAITING_MASKED_INPUTS])
    gone = sorted(dropouts[ServerState.AWAITING_MASKED_INPUTS])
    cohort = gather(
        lambda number: payloads[ClientId(number)],
        clients,
        capacity=codec.capacity,
        dropouts=dropouts,
        setting=Setting(mode=SecurityMode.ACTIVE, topology=Topology.FULL),
    )
    print(
        f"{clients} clients advertise keys and share their secrets with each other; {drop} drop out before they upload."
    )
    uploads = dict[ClientId, bytes]()

    def keep_uploads(state: ServerState, client: ClientId, _: bytes, answer: bytes) -> None:
        if state is ServerState.AWAITING_MASKED_INPUTS:
            uploads[client] = answer

    result = cohort.run(sent=keep_uploads)
    print("The others agree on who is left, and show the server what removes the masks from the sum, and no more.")
    recovered = codec.decode(result.aggregate)
    in_the_clear = ideal_aggregate(codec.layout, [payloads[client] for client in uploads])
    is_exact = bool((result.aggregate.values[0] == in_the_clear.values[0]).all())
    survivor = next(iter(uploads))
    panels: dict[str, npt.NDArray[np.number[Any]]] = {
        "one client's update\n(never leaves the client)": updates[survivor],
        f"what the server receives from it\n(uniform modulo 2^{codec.modulus_bits})": _received(
            result.server, uploads[survivor]
        ),
        "what the server learns: the sum\n(a gap is where somebody dropped out)": recovered,
    }
    report = {
        "clients": clients,
        "dropped before upload": [str(client) for client in gone],
        "threshold": result.server.configuration.threshold,
        "weights per client": codec.length,
        "bits per weight": codec.modulus_bits,
        "upload bytes per client": len(uploads[survivor]),
        "bytes of the same as float32": 4 * codec.length,
        "sum equals the survivors' sum exactly": is_exact,
        "largest rounding error of the sum": float(f"{np.abs(recovered - sum(updates[c] for c in uploads)).max():.2g}"),
        "seconds": round(_seconds(result), 3),
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    written = [out / "report.json"]
    if picture := _picture(out / "who_sees_what.png", panels):
        written.append(picture)
    print()
    for name, value in report.items():
        print(f"  {name:<38} {', '.join(value) or 'none' if isinstance(value, list) else value}")
    print("\nFiles: " + ", ".join(str(path) for path in written))
    return 0 if is_exact else 1


def _check_cohort(clients: int, drop: int, most_dropped: int) -> None:
    if not LEAST_CLIENTS <= clients <= MOST_CLIENTS:
        raise InvalidParameters(
            f"the demo runs {LEAST_CLIENTS} to {MOST_CLIENTS} clients in one process, and was asked for {clients}; "
            "change --clients"
        )
    if not 0 <= drop <= most_dropped:
        raise InvalidParameters(
            f"of {clients} clients, 0 to {most_dropped} may drop out, because the rest is needed to recover the sum; "
            f"--drop is {drop}"
        )


def _codec_for(clients: int) -> FixedPoint:
    """Take the narrowest ring that the sum of all clients cannot leave."""
    for modulus_bits in range(CLIP_BITS, MAXIMUM_MODULUS_BITS):
        codec = FixedPoint(length=SIDE * SIDE, clip=CLIP, fraction_bits=FRACTION_BITS, modulus_bits=modulus_bits)
        if codec.capacity >= clients:
            return codec
    raise InternalError(f"no ring holds the sum of {clients} clients")


def _update_of(number: int, clients: int) -> Floats:
    """Draw one noisy arc of the ring that only the sum shows whole."""
    axis = np.linspace(-1.0, 1.0, SIDE)
    radius, angle = np.hypot(*np.meshgrid(axis, axis)), np.arctan2(*np.meshgrid(axis, axis))
    own_arc = np.cos(angle - 2 * np.pi * number / clients) ** 8 * (np.cos(angle - 2 * np.pi * number / clients) > 0)
    update = np.exp(-(((radius - 0.65) / 0.12) ** 2)) * own_arc + 0.1 * np.sin(9 * radius + number)
    return np.asarray(update.reshape(-1), dtype=np.float64)


def _received(server: Server, upload: bytes) -> RingVector:
    """Take the masked values out of an upload, as anybody could."""
    (segment,) = server.configuration.layout.require_rings()
    length = segment.length + server.configuration.check_words_of(segment)
    packed = MaskedInput.decode(upload, server.roster).packed[0][: segment.ring.packed_bytes(length)]
    return segment.ring.unpack(packed, length)[: segment.length]


def _seconds(result: MeasuredRun) -> float:
    """Return what clients and server took together."""
    rounds = sum(figures.client_seconds + figures.server_seconds for figures in result.rounds)
    return rounds + result.unmask_seconds


def _picture(path: Path, panels: Mapping[str, npt.NDArray[np.number[Any]]]) -> Path | None:
    """Draw each vector as a square; return None where the ``plot`` extra is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: install the extra `plot` (matplotlib) to get one.")
        return None
    figure = Figure(figsize=(10.5, 4.2))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.86, wspace=0.04)
    for axes, (title, values) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.imshow(values.reshape(SIDE, SIDE).astype(np.float64), cmap="viridis")
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    figure.savefig(str(path), dpi=120)  # pyright: ignore[reportUnknownMemberType]
    return path
