"""The vendors' root certificates, by the SHA-256 of their DER.

The certificates themselves are not shipped: a chain that ends in a root carries it, and the fingerprint decides. AWS
publishes its root, with this fingerprint, beside the documentation of Nitro Enclaves, and every document carries it;
AMD's come from its key distribution service with the intermediate certificate; Intel's ends the chain in every quote.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Who may vouch for hardware: the fingerprints of each vendor's root certificates."""

    nitro: frozenset[bytes]
    amd: frozenset[bytes]
    intel: frozenset[bytes]


def sha256(data: bytes) -> bytes:
    """Return the digest by which certificates are pinned and evidence is identified."""
    return hashlib.sha256(data).digest()


def _fingerprint(*halves: str) -> bytes:
    return bytes.fromhex("".join(halves))


PINNED_ROOTS: Final = Roots(
    nitro=frozenset({_fingerprint("641a0321a3e244efe456463195d60631", "7ed7cdcc3c1756e09893f3c68f79bb5b")}),
    amd=frozenset(
        {
            _fingerprint("69d063b45344d26a2e94e1f4210de49e", "f555308287d4c174445c95639a540bcd"),
            _fingerprint("4c6598d19c18719c5dfd4a7d335f674e", "5bfe1d8f800cea2cf270c10d103db2f1"),
        }
    ),
    intel=frozenset({_fingerprint("44a0196b2b99f889b8e149e95b807a35", "0e7424964399e885a7cbb8ccfab674d3")}),
)
"""The roots of AWS Nitro Enclaves, of AMD EPYC Milan and then Genoa, and of Intel SGX, which is that of TDX too."""
