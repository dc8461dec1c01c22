"""Derived runs; only their common digest is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from .primitives import digest, ed25519_public, sign
from .session import Session


def digest_of_runs(name: str, vector: Mapping[str, Any]) -> str:
    """Derive each run from the vector's name, compute it, and hash its messages and sums."""
    absorbed = hashlib.shake_128()
    for run in range(vector["accumulated"]["runs"]):
        session = Session(derive(name, run, vector))
        result = session.run()
        values = [value for segment in result["values"] for value in segment]
        numbers = ",".join([*values, result["contributors"]])
        for key, data in sorted({**session.messages, "result": numbers.encode()}.items()):
            for part in (key.encode(), data):
                absorbed.update(len(part).to_bytes(4, "big") + part)
    return absorbed.hexdigest(32)


def derive(name: str, run: int, vector: Mapping[str, Any]) -> dict[str, Any]:
    """Return one run as a separate vector, with coins, identities and inputs."""

    def drawn(size: int, *parts: str) -> bytes:
        return hashlib.shake_256("/".join((vector["protocol"], name, str(run), *parts)).encode()).digest(size)

    parameters: dict[str, Any] = dict(vector["parameters"])
    clients: Sequence[str] = vector["clients"]
    server = drawn(64, "coins", "server")
    is_active = parameters["mode"] == "active"
    identities = {role: drawn(32, "identity", role) for role in ("authority", *clients)} if is_active else {}
    parameters["authority"] = ed25519_public(identities["authority"]).hex() if is_active else bytes(32).hex()
    if is_active:
        unsigned = bytes.fromhex(parameters["standing"])[:-64]
        revoked = (unsigned[at : at + 4] for at in range(44, len(unsigned), 4))
        head = unsigned[:8], unsigned[8:40], *revoked
        authority = bytes.fromhex(parameters["authority"])
        parameters["standing"] = (unsigned + sign(identities["authority"], "standing", authority, *head)).hex()
    parameters["graph_commitment"] = digest("graph-opening", server[:32]).hex()
    parameters["server_nonce"] = server[32:].hex()
    coins = {role: drawn(32 * (1 + 2 * parameters["threshold"]), "coins", role) for role in clients}
    return {
        "parameters": parameters,
        "coins": {"server": server.hex()} | {role: data.hex() for role, data in coins.items()},
        "identities": {role: seed.hex() for role, seed in identities.items()},
        "inputs": {
            role: _input(drawn(8 * sum(length for _, length in parameters["layout"]), "input", role), parameters)
            for role in clients
        },
        "dropouts": vector["dropouts"],
    }


def _input(drawn: bytes, parameters: Mapping[str, Any]) -> list[list[str]]:
    """Read little-endian words of 8 bytes, and keep the lowest bits of each."""
    words = [int.from_bytes(drawn[start : start + 8], "little") for start in range(0, len(drawn), 8)]
    segments, start = list[list[str]](), 0
    for bits, length in parameters["layout"]:
        segments.append([str(word % (1 << bits)) for word in words[start : start + length]])
        start += length
    return segments
