"""Bytes: headers, the offer, lists and sets of clients, packed vectors, hash trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .primitives import digest

OFFER, ADVERTISEMENT, ADVERTISED, SHARES, DELIVERED, UPLOAD, SURVIVORS, SIGNATURE, REQUEST, ANSWER = range(16, 26)
_LAYOUT = 1
_RING_TAG = 1
_MODES = ("semi_honest", "active")
_SUITES = ("x25519-aes128", "mlkem768x25519-aes256")
_TOPOLOGIES = ("full", "sparse")


def message(kind: int, *parts: bytes) -> bytes:
    """Prefix a message's fields with the header."""
    return b"SAGG" + b"\x01" + number(kind, 2) + b"".join(parts)


def number(value: int, size: int) -> bytes:
    """Write an unsigned integer, most significant byte first."""
    return value.to_bytes(size, "big")


def variable(data: bytes) -> bytes:
    """Prefix bytes with their length."""
    return number(len(data), 4) + data


def client_id(client: int) -> bytes:
    """Write a client id."""
    return number(client, 8)


def encode_offer(parameters: Mapping[str, Any]) -> bytes:
    """Write the configuration of a session, which is the server's offer."""
    segments: Sequence[tuple[int, int]] = parameters["layout"]
    layout = message(
        _LAYOUT,
        number(len(segments), 4),
        *(number(_RING_TAG, 1) + number(bits, 4) + number(length, 8) for bits, length in segments),
        bytes.fromhex(parameters["layout_version"]),
    )
    return message(
        OFFER,
        number(3, 1),
        variable(bytes.fromhex(parameters["task"])),
        bytes.fromhex(parameters["model_digest"]),
        number(int(parameters["round_number"]), 8),
        number(parameters["attempt"], 4),
        number(_MODES.index(parameters["mode"]), 1),
        number(_SUITES.index(parameters["suite"]), 1),
        number(_TOPOLOGIES.index(parameters["topology"]), 1),
        *(number(parameters[name], 4) for name in ("degree", "threshold", "committee_size", "quorum")),
        *(number(parameters[name], 4) for name in ("minimum_cohort", "maximum_population")),
        variable(layout),
        number(parameters["check_words"], 1),
        *(bytes.fromhex(parameters[name]) for name in ("application_digest", "authority", "standing")),
        *(bytes.fromhex(parameters[name]) for name in ("graph_commitment", "server_nonce")),
    )


def encode_list(clients: Iterable[int]) -> bytes:
    """Write an increasing list: the count of numbers between neighbours, 7 bits per byte, lowest first."""
    written, previous = b"", -1
    for client in clients:
        between, previous = client - previous - 1, client
        while between > 127:
            written += bytes([between % 128 + 128])
            between //= 128
        written += bytes([between])
    return written


def encode_set(population: int, positions: Iterable[int]) -> bytes:
    """Write a set, position 0 in the lowest bit of the first byte."""
    return sum(1 << position for position in positions).to_bytes((population + 7) // 8, "little")


def digest_of_set(context: bytes, population: int, positions: Iterable[int]) -> bytes:
    """Return the encoding of a set in a signature."""
    return digest("client-set", context, number(population, 4), encode_set(population, positions))


def pack(elements: Sequence[int], bits: int) -> bytes:
    """Write each element in its number of bits, the first one in the lowest bits of the first byte."""
    joined = sum(element << (bits * place) for place, element in enumerate(elements))
    return joined.to_bytes((len(elements) * bits + 7) // 8, "little")


def unpack(packed: bytes, bits: int, length: int) -> list[int]:
    """Read packed elements back."""
    joined = int.from_bytes(packed, "little")
    return [joined >> (bits * place) & ((1 << bits) - 1) for place in range(length)]


# --- Hash trees -------------------------------------------------------------------------------------------------------


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root of the tree over some leaves."""
    return _levels(leaves)[-1][0]


def prove(leaves: Sequence[bytes], positions: Iterable[int]) -> list[bytes]:
    """Return the nodes, level by level and from left to right, that the known leaves do not determine."""
    proof, known = list[bytes](), set(positions)
    for level in _levels(leaves)[:-1]:
        needed = {place ^ 1 for place in known} - known
        proof += [node for place, node in enumerate(level) if place in needed]
        known = {place // 2 for place in known}
    return proof


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        pairs = [levels[-1][start : start + 2] for start in range(0, len(levels[-1]), 2)]
        levels.append([digest("merkle-node", *pair) if len(pair) > 1 else pair[0] for pair in pairs])
    return levels
