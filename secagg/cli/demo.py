"""The pieces of the core put together once: a masked sum that survives dropouts, and a picture of who sees what.

This demonstrates the ground floor and is not a protocol: everybody lives in one process and follows the rules, nothing
is authenticated, and shares do not travel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.compression.fixed_point import FixedPoint, Floats
from secagg.contract import Aggregate, encode_update, ideal_aggregate
from secagg.entropy import SystemCoins
from secagg.errors import InternalError, InvalidParameters
from secagg.identifiers import AttemptContext, ClientId, SessionContext
from secagg.key_agreement import KeyRole, X25519KeyPair, X25519PublicKey
from secagg.key_derivation import expand
from secagg.labels import Label
from secagg.mask_expansion import accumulate
from secagg.parameters import Suite
from secagg.prime_field import random_root
from secagg.ring import MAXIMUM_MODULUS_BITS, Ring, RingVector
from secagg.secret import Secret
from secagg.shamir import Share, reconstruct, split_many

LEAST_CLIENTS, MOST_CLIENTS = 3, 300
SIDE = 96
CLIP, FRACTION_BITS = 4.0, 16
CLIP_BITS = 20
"""The bits of one clipped value."""
ATTEMPT = AttemptContext(b"secagg demo: the attempt digest.")
CONTEXT = SessionContext(b"secagg demo: the session digest.")

Roster = Mapping[ClientId, X25519PublicKey]


@dataclass(frozen=True, kw_only=True)
class DemoClient:
    """One client: its update and the two secrets that hide it, of which a server may learn one."""

    client_id: ClientId
    update: Floats = field(repr=False)
    mask_root: Secret
    self_mask_seed: Secret


def run_demo(*, clients: int, drop: int | None, out: Path) -> int:
    """Mask, drop, recover and compare; write a report and a picture, and say where they are."""
    threshold = 2 * clients // 3 + 1
    drop = min(2, clients - threshold) if drop is None else drop
    _check_cohort(clients, drop, threshold)
    out.mkdir(parents=True, exist_ok=True)
    codec = _codec_for(clients)
    ring = codec.layout.require_rings()[0].ring
    started = perf_counter()

    everybody = [_new_client(number, clients) for number in range(1, clients + 1)]
    roster = {client.client_id: _keypair(client.mask_root).public_key for client in everybody}
    print(f"{clients} clients made their key pairs; each shares its two secrets among all.")
    shares = {client.client_id: _shares_of(client, threshold, clients) for client in everybody}
    dropped, survivors = everybody[:drop], everybody[drop:]
    print(f"{drop} of them drop out; {len(survivors)} mask their updates and upload.")
    uploads = {client.client_id: _masked_input(client, codec, roster) for client in survivors}
    print("The server adds the uploads and recovers the masks that do not cancel.")
    total = ring.sum(uploads.values(), codec.length)
    answering = [client.client_id.value for client in survivors][:threshold]
    _remove_masks(total, ring, roster, shares, {client.client_id for client in dropped}, answering)
    seconds = perf_counter() - started

    recovered = codec.decode(Aggregate(codec.layout, (total,), len(survivors), len(survivors)))
    in_the_clear = ideal_aggregate(codec.layout, [encode_update(codec, c.update, SystemCoins()) for c in survivors])
    is_exact = bool((total == in_the_clear.values[0]).all())
    report = {
        "clients": clients,
        "dropped before upload": [str(client.client_id) for client in dropped],
        "threshold": threshold,
        "weights per client": codec.length,
        "bits per weight": ring.modulus_bits,
        "upload bytes per client": codec.layout.payload_bytes,
        "bytes of the same as float32": 4 * codec.length,
        "sum equals the survivors' sum exactly": is_exact,
        "largest rounding error of the sum": float(f"{np.abs(recovered - sum(c.update for c in survivors)).max():.2g}"),
        "seconds": round(seconds, 3),
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    written = [out / "report.json"]
    panels: dict[str, npt.NDArray[np.number[Any]]] = {
        "one client's update\n(never leaves the client)": survivors[0].update,
        f"what the server receives from it\n(uniform modulo 2^{ring.modulus_bits})": uploads[survivors[0].client_id],
        "what the server learns: the sum\n(the gap is where clients dropped out)": recovered,
    }
    if picture := _picture(out / "who_sees_what.png", panels):
        written.append(picture)
    print()
    for name, value in report.items():
        print(f"  {name:<38} {', '.join(value) or 'none' if isinstance(value, list) else value}")
    print("\nFiles: " + ", ".join(str(path) for path in written))
    return 0 if is_exact else 1


def _check_cohort(clients: int, drop: int, threshold: int) -> None:
    if not LEAST_CLIENTS <= clients <= MOST_CLIENTS:
        raise InvalidParameters(
            f"the demo runs {LEAST_CLIENTS} to {MOST_CLIENTS} clients in one process, and was asked for {clients}; "
            "change --clients"
        )
    if not 0 <= drop <= clients - threshold:
        raise InvalidParameters(
            f"of {clients} clients, 0 to {clients - threshold} may drop out, because {threshold} are needed to recover "
            f"the sum; --drop is {drop}"
        )


def _codec_for(clients: int) -> FixedPoint:
    """Take the narrowest ring that the sum of all clients cannot leave."""
    for modulus_bits in range(CLIP_BITS, MAXIMUM_MODULUS_BITS):
        codec = FixedPoint(length=SIDE * SIDE, clip=CLIP, fraction_bits=FRACTION_BITS, modulus_bits=modulus_bits)
        if codec.capacity >= clients:
            return codec
    raise InternalError(f"no ring holds the sum of {clients} clients")


def _new_client(number: int, clients: int) -> DemoClient:
    """Make a client whose update is one noisy arc of the ring that only the sum shows whole."""
    axis = np.linspace(-1.0, 1.0, SIDE)
    radius, angle = np.hypot(*np.meshgrid(axis, axis)), np.arctan2(*np.meshgrid(axis, axis))
    own_arc = np.cos(angle - 2 * np.pi * number / clients) ** 8 * (np.cos(angle - 2 * np.pi * number / clients) > 0)
    update = np.exp(-(((radius - 0.65) / 0.12) ** 2)) * own_arc + 0.1 * np.sin(9 * radius + number)
    coins = SystemCoins()
    return DemoClient(
        client_id=ClientId(number),
        update=update.reshape(-1),
        mask_root=random_root("mask_root", coins),
        self_mask_seed=random_root("self_mask_seed", coins),
    )


def _shares_of(client: DemoClient, threshold: int, holders: int) -> list[list[Share]]:
    """Share the client's root and self-mask seed; each holder keeps one share of each."""
    secrets = [client.mask_root, client.self_mask_seed]
    return split_many(secrets, threshold=threshold, holders=holders, coins=SystemCoins())


def _masked_input(client: DemoClient, codec: FixedPoint, roster: Roster) -> RingVector:
    """Add the self mask, and each pairwise mask with the sign that its peer does not use."""
    (masked,) = encode_update(codec, client.update, SystemCoins()).values
    added, subtracted = _pairwise_keys(client.mask_root, client.client_id, roster)
    self_mask = _self_mask_key(client.self_mask_seed, client.client_id)
    ring = codec.layout.require_rings()[0].ring
    accumulate(masked, ring, add=[self_mask, *added], subtract=subtracted)
    return masked


def _remove_masks(  # noqa: PLR0913, PLR0917 -- what a server holds at the end of a round
    total: RingVector,
    ring: Ring,
    roster: Roster,
    shares: Mapping[ClientId, Sequence[Sequence[Share]]],
    dropped: set[ClientId],
    answering: Sequence[int],
) -> None:
    """Recover one secret of each client, never both: the root of a dropped one, the self-mask seed of a survivor."""
    threshold = len(answering)
    for client_id, (root_shares, seed_shares) in shares.items():
        recovered_from = root_shares if client_id in dropped else seed_shares
        secret = reconstruct([recovered_from[holder - 1] for holder in answering], threshold=threshold)
        if client_id in dropped:
            survivors = {peer: key for peer, key in roster.items() if peer not in dropped}
            # What the dropped client would have added is missing from the sum, and its peers' counterpart is left over.
            added, subtracted = _pairwise_keys(secret, client_id, survivors)
            accumulate(total, ring, add=added, subtract=subtracted)
        else:
            accumulate(total, ring, add=[], subtract=[_self_mask_key(secret, client_id)])


def _pairwise_keys(root: Secret, own_id: ClientId, peers: Roster) -> tuple[list[Secret], list[Secret]]:
    """Return the keys of the masks that a client adds, and of those that it subtracts."""
    keypair = _keypair(root)
    added, subtracted = list[Secret](), list[Secret]()
    for peer_id, peer_key in peers.items():
        if peer_id == own_id:
            continue
        with keypair.pairwise_seed(own_id, (peer_id, peer_key), CONTEXT) as seed:
            key = _mask_key(seed, Label.PAIRWISE_MASK_KEY, sorted([own_id, peer_id]))
        (added if own_id < peer_id else subtracted).append(key)
    return added, subtracted


def _self_mask_key(seed: Secret, client_id: ClientId) -> Secret:
    return _mask_key(seed, Label.SELF_MASK_KEY, [client_id])


def _mask_key(seed: Secret, label: Label, parties: Iterable[ClientId]) -> Secret:
    names = [party.encode() for party in parties]
    return expand("mask_key", Suite.CLASSIC.mask_key_bytes, seed, label, CONTEXT.digest, *names)


def _keypair(root: Secret) -> X25519KeyPair:
    return X25519KeyPair(root, KeyRole.MASK, ATTEMPT)


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
