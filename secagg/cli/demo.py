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

import numpy as np

from secagg.compression.fixed_point import FixedPoint, Floats
from secagg.contract import Aggregate, encode_update, ideal_aggregate
from secagg.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import AttemptContext, ClientId, SessionContext
from secagg.key_agreement import KeyRole, X25519KeyPair, X25519PublicKey
from secagg.key_derivation import expand
from secagg.labels import Label
from secagg.mask_expansion import accumulate
from secagg.parameters import Suite
from secagg.prime_field import random_root
from secagg.ring import Ring, RingVector
from secagg.secret import Secret
from secagg.shamir import Share, reconstruct, split_many

LEAST_CLIENTS = 3
SIDE = 96
CODEC = FixedPoint(length=SIDE * SIDE, clip=4.0, fraction_bits=16, modulus_bits=24)
RING = Ring(CODEC.modulus_bits)
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


def run_demo(*, clients: int, drop: int, out: Path) -> int:
    """Mask, drop, recover and compare; write a report and a picture, and say where they are."""
    threshold = 2 * clients // 3 + 1
    if clients < LEAST_CLIENTS or not 0 <= drop <= clients - threshold:
        raise InvalidParameters(
            f"with {clients} clients, {drop} dropouts do not leave the {threshold} that can recover the sum; take at "
            f"least {LEAST_CLIENTS} clients, and raise --clients or lower --drop"
        )
    started = perf_counter()
    everybody = [_new_client(number, clients) for number in range(1, clients + 1)]
    roster = {client.client_id: _keypair(client.mask_root).public_key for client in everybody}
    shares = {client.client_id: _shares_of(client, threshold, clients) for client in everybody}
    dropped, survivors = everybody[:drop], everybody[drop:]

    uploads = {client.client_id: _masked_input(client, roster) for client in survivors}
    total = RING.sum(uploads.values(), CODEC.length)
    answering = [client.client_id.value for client in survivors]
    _remove_masks(total, roster, shares, {client.client_id for client in dropped}, answering[:threshold])
    seconds = perf_counter() - started

    recovered = CODEC.decode(Aggregate(CODEC.layout, (total,), len(survivors), len(survivors)))
    in_the_clear = ideal_aggregate(CODEC.layout, [encode_update(CODEC, c.update, SystemCoins()) for c in survivors])
    report = {
        "clients": clients,
        "dropped before upload": [str(client.client_id) for client in dropped],
        "threshold": threshold,
        "weights per client": CODEC.length,
        "upload bytes per client": CODEC.layout.payload_bytes,
        "the same as float32": 4 * CODEC.length,
        "sum equals the survivors' sum exactly": bool((total == in_the_clear.values[0]).all()),
        "largest error against floats": float(np.abs(recovered - sum(c.update for c in survivors)).max()),
        "seconds": round(seconds, 3),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    written = [out / "report.json"]
    if picture := _picture(out / "who_sees_what.png", survivors[0].update, uploads[survivors[0].client_id], recovered):
        written.append(picture)
    print(f"One masked sum of {clients} clients, {drop} of which dropped out after sharing their secrets:")
    for name, value in report.items():
        print(f"  {name:<38} {', '.join(value) or 'none' if isinstance(value, list) else value}")
    print("Files: " + ", ".join(str(path) for path in written))
    return 0 if (total == in_the_clear.values[0]).all() else 1


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


def _masked_input(client: DemoClient, roster: Roster) -> RingVector:
    """Add the self mask, and each pairwise mask with the sign that its peer does not use."""
    (masked,) = encode_update(CODEC, client.update, SystemCoins()).values
    added, subtracted = _pairwise_keys(client.mask_root, client.client_id, roster)
    accumulate(masked, RING, add=[_self_mask_key(client.self_mask_seed, client.client_id), *added], subtract=subtracted)
    return masked


def _remove_masks(
    total: RingVector,
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
            accumulate(total, RING, add=added, subtract=subtracted)
        else:
            accumulate(total, RING, add=[], subtract=[_self_mask_key(secret, client_id)])


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


def _picture(path: Path, update: Floats, upload: RingVector, recovered: Floats) -> Path | None:
    """Draw one client's update, its upload and the sum; return None where the ``plot`` extra is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: install secagg[plot] to get one.")
        return None
    mpl.use("Agg")
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = {
        "one client's update\n(never leaves the client)": update,
        "what the server receives from it\n(uniform modulo 2^24)": upload.astype(np.float64),
        "what the server learns\n(the survivors' sum)": recovered,
    }
    for axes, (title, values) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.imshow(values.reshape(SIDE, SIDE), cmap="viridis")
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    figure.savefig(str(path), dpi=120)  # pyright: ignore[reportUnknownMemberType]
    return path
