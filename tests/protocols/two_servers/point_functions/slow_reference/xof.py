"""The two extendable-output functions of the IETF's draft on verifiable distributed aggregation, over bytes."""

from collections.abc import Iterator

from Crypto.Hash import TurboSHAKE128
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

VERSION = 18
BLOCK = 16


def turbo_shake(message: bytes, domain: int, length: int) -> bytes:
    state = TurboSHAKE128.new(domain=domain)
    state.update(message)
    return bytes(state.read(length))


def domain_tag(usage: int, context: bytes) -> bytes:
    """Return the tag of the incremental point function: class 1, algorithm 0."""
    return bytes([VERSION, 1]) + bytes(4) + usage.to_bytes(2, "big") + context


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def by_turbo_shake(seed: bytes, tag: bytes, binder: bytes, length: int) -> bytes:
    framed = len(tag).to_bytes(2, "little") + tag + len(seed).to_bytes(1, "little") + seed + binder
    return turbo_shake(framed, 1, length)


def fixed_key(tag: bytes, binder: bytes) -> bytes:
    return turbo_shake(len(tag).to_bytes(2, "little") + tag + binder, 2, BLOCK)


def hash_block(key: bytes, block: bytes) -> bytes:
    low, high = block[:8], block[8:]
    mixed = high + xor(high, low)
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 -- a permutation of one block
    return xor(encryptor.update(mixed), mixed)


def by_fixed_key(seed: bytes, tag: bytes, binder: bytes, length: int) -> bytes:
    key = fixed_key(tag, binder)
    blocks = [hash_block(key, xor(seed, number.to_bytes(BLOCK, "little"))) for number in range(-(-length // BLOCK))]
    return b"".join(blocks)[:length]


def field_elements(stream: bytes, modulus: int) -> Iterator[int]:
    """Read elements, skipping those that are not below the modulus."""
    size = (modulus.bit_length() + 7) // 8
    mask = (1 << modulus.bit_length()) - 1
    for start in range(0, len(stream) - size + 1, size):
        value = int.from_bytes(stream[start : start + size], "little") & mask
        if value < modulus:
            yield value
