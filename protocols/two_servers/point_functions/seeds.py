"""What the seeds of a client's keys expand into, each bound to everything that the key is for.

A stream's key and its IV are derived together from the seed, the context, the client, the nonce, the shape and the
server. Whoever guesses seeds must therefore guess for one client and round at a time; a bare key at IV 0 would be
compared with the streams of all of them at once.
"""

from __future__ import annotations

import hashlib
from typing import Final

from secagg.crypto.key_derivation import derive
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, require_secret
from secagg.errors import CapacityExceeded, InvalidParameters, Reason
from secagg.protocols.two_servers.lanes.groups import LaneGroup
from secagg.protocols.two_servers.lanes.streams import STREAM_KEY_BYTES

from .shape import PointFunctionShape
from .tree_hash import KeyBinding

SEED_BYTES: Final = 16
DIGEST_BYTES: Final = 32


def roots_key(shape: PointFunctionShape, blocks: int, binding: KeyBinding, server_index: int, seed: Secret) -> Secret:
    """Return the key of the stream of a server's roots."""
    parts = _parts(shape, blocks, binding, server_index)
    return _derived("point function roots key", STREAM_KEY_BYTES, seed, binding, Label.POINT_FUNCTION_ROOTS, parts)


def lanes_key(shape: PointFunctionShape, blocks: int, binding: KeyBinding, seed: Secret) -> Secret:
    """Return the key of the stream that is server 0's share at depth 0."""
    parts = _parts(shape, blocks, binding, 0)
    return _derived("point function lanes key", STREAM_KEY_BYTES, seed, binding, Label.POINT_FUNCTION_LANES, parts)


def share_digest(  # noqa: PLR0913, PLR0917 -- what a share is made from
    shape: PointFunctionShape,
    blocks: int,
    binding: KeyBinding,
    server_index: int,
    seed: Secret | None,
    sent: bytes,
) -> bytes:
    """Return the digest of everything that a share is made from: equal digests, equal shares.

    Args:
        seed: the server's seed, if it has one.
        sent: the digest of what else it was sent; empty if it was sent nothing.

    Security: it depends on the seed, and at depth 0 on a share that determines the assignments together with the other
        one; keep it from the other server unless something that it does not know blinds it.
    """
    parts = _parts(shape, blocks, binding, server_index)
    if seed is None:
        return hashlib.sha256(bind(Label.POINT_FUNCTION_SHARE_DIGEST, *parts, b"", sent)).digest()
    with _derived("seed digest", DIGEST_BYTES, seed, binding, Label.POINT_FUNCTION_SEED_DIGEST, parts) as derived:
        return hashlib.sha256(bind(Label.POINT_FUNCTION_SHARE_DIGEST, *parts, bytes(derived.expose()), sent)).digest()


def require_weight(weight: int, group: LaneGroup) -> None:
    """Refuse a weight that the group does not hold."""
    if type(weight) is not int or not 0 <= weight < group.order:
        raise CapacityExceeded(
            f"a weight is an integer in 0..{group.order - 1}; got {weight!r}", reason=Reason.INPUT_OUT_OF_RANGE
        )


def _parts(shape: PointFunctionShape, blocks: int, binding: KeyBinding, server_index: int) -> tuple[bytes, ...]:
    return (*binding.encode(), *shape.encode(), blocks.to_bytes(8, "big"), bytes([server_index]))


def _derived(  # noqa: PLR0913, PLR0917 -- one derivation
    kind: str, size: int, seed: Secret, binding: KeyBinding, label: Label, parts: tuple[bytes, ...]
) -> Secret:
    require_secret(seed)
    if len(seed) != SEED_BYTES:
        raise InvalidParameters(f"a seed has {SEED_BYTES} bytes; got {seed!r}")
    # Extraction, because a seed of 16 bytes is shorter than what may be expanded as it is.
    return derive(kind, size, seed, binding.context, label, *parts)
