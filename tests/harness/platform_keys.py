"""A protocol's keys on a platform, made as its operator does, and the settings with their paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.protocols.one_message import Holder, HolderIdentity, plan_epoch
from secagg.session.certificates import IDENTITY_KEY_BYTES, SigningKey
from secagg.session.client_policy import ClientPolicy
from secagg.session.identities import AUTHORITY_FILE, load_authority, make_identities
from secagg.session.sockets import Service

PROTOCOLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("pairwise", {}, {}),
    ("pairwise", {"mode": "active"}, {}),
    ("enclave", {}, {"allow_simulated_enclave": True}),
    ("two-servers", {"weighting": "uniform"}, {"allow_simulated_second_server": True}),
    ("one-message", {}, {}),
]
"""Each protocol in each of its modes: settings of a server, and a client policy that accepts them."""


def named(folder: Path, protocol: str, settings: Mapping[str, Any], clients: Iterable[int]) -> dict[str, str]:
    """Make the keys that a protocol needs, and return the settings that refer to them."""
    if protocol == "pairwise" and "mode" not in settings:
        return {}
    keys, numbers = folder / "keys", list(clients)
    make_identities(keys, map(ClientId, numbers), SystemCoins())
    return {"roster": str(keys / "roster.txt")} | (holding(folder) if protocol == "one-message" else {})


HOLDERS: Final = 4


def holding(folder: Path, number: int = 1) -> dict[str, str]:
    """Sign an epoch, start its holders in threads of this process, and return the settings for both."""
    authority = load_authority(folder / "keys" / AUTHORITY_FILE)
    seeds = (Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) for _ in range(HOLDERS))
    keys = [SigningKey(seed) for seed in seeds]
    identities = [HolderIdentity(number=at, public_key=key.public_key) for at, key in enumerate(keys)]
    expiry = int((datetime.now(UTC) + timedelta(hours=1)).timestamp())
    planned = plan_epoch(identities, number=number, expiry=expiry, corrupted=1, authority=authority.public_key)
    record, path = planned.signed(authority), folder / f"record-{number}"
    path.write_bytes(record.encode())
    sockets = [folder / f"{number}-{position}.socket" for position in range(HOLDERS)]
    for position, (key, socket) in enumerate(zip(keys, sockets, strict=True)):
        holder = Holder(
            record,
            position,
            coins=SystemCoins(),
            policy=ClientPolicy(authority=authority.public_key),
            clock=lambda: datetime.now(UTC),
            signing_key=key,
        )
        ready = Event()
        Thread(target=Service(holder).serve, args=(socket,), kwargs={"ready": ready.set}, daemon=True).start()
        assert ready.wait(10)
    return {"epoch": str(path), "holders": ",".join(map(str, sockets))}
