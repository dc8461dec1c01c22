"""The keys that a protocol needs on a platform, as its operator makes them, and the settings that name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.platforms.keys import make_identities

PROTOCOLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("pairwise", {}, {}),
    ("pairwise", {"mode": "active"}, {}),
    ("enclave", {}, {"allow_simulated_enclave": True, "maximum_weight": 1 << 16}),
    ("two-servers", {"weighting": "uniform"}, {"allow_simulated_second_server": True}),
    ("one-message", {}, {}),
]
"""Each protocol in each of its modes: settings of a server, and floors under which a client takes part."""


def named(folder: Path, protocol: str, settings: Mapping[str, Any], clients: Iterable[int]) -> dict[str, str]:
    """Make the keys that a protocol needs, and return what the settings name of them."""
    if protocol == "pairwise" and "mode" not in settings:
        return {}
    keys, numbers = folder / "keys", list(clients)
    make_identities(keys, map(ClientId, numbers), SystemCoins())
    return {"roster": str(keys / "roster.json")} | (committee(folder, numbers) if protocol == "one-message" else {})


def committee(folder: Path, clients: Iterable[int], number: int = 1) -> dict[str, str]:
    """Sign an epoch whose holders are clients, and return the setting that names its record."""
    keys, record = folder / "keys", str(folder / f"record-{number}")
    signed = ["holder", "record", "--authority", str(keys / "authority.key"), "--number", str(number), "--out", record]
    holders = [part for client in clients for part in ("--client", str(client))]
    # By name: a type checker would follow the commands into training, which these environments are without.
    assert import_module("secagg.cli").main([*signed, "--roster", str(keys / "roster.json"), *holders]) == 0
    return {"epoch": record}
