"""The incremental point function of the IETF's draft, for its public vectors: the tree is the one that we grow.

Implements: [BBC+21] §4, as the draft writes it down. Its nodes have one control bit, which is the lowest bit of the
first byte, and it hashes every node once more, into the next seed and the level's values.
"""

from collections.abc import Sequence
from itertools import islice

from .xof import BLOCK, by_fixed_key, by_turbo_shake, domain_tag, field_elements, xor

INNER_MODULUS = (1 << 32) * 4294967295 + 1
LEAF_MODULUS = (1 << 255) - 19
SPARE_ELEMENTS = 4

Level = tuple[bytes, tuple[int, int], list[int]]


class IncrementalPointFunction:
    """Point functions over strings of ``bits`` bits, with a vector of values at every prefix of alpha."""

    def __init__(self, bits: int, value_length: int, context: bytes, nonce: bytes) -> None:
        self.bits = bits
        self.value_length = value_length
        self.context = context
        self.nonce = nonce

    def modulus(self, level: int) -> int:
        return LEAF_MODULUS if level == self.bits - 1 else INNER_MODULUS

    def expand(self, level: int, seed: bytes, usage: int, length: int) -> bytes:
        xof = by_turbo_shake if level == self.bits - 1 else by_fixed_key
        return xof(seed, domain_tag(usage, self.context), self.nonce, length)

    def children(self, level: int, seed: bytes) -> tuple[list[bytes], list[int]]:
        made = self.expand(level, seed, 0, 2 * BLOCK)
        halves = [made[:BLOCK], made[BLOCK:]]
        return [bytes([half[0] & 0xFE]) + half[1:] for half in halves], [half[0] & 1 for half in halves]

    def convert(self, level: int, seed: bytes) -> tuple[bytes, list[int]]:
        modulus = self.modulus(level)
        size = (modulus.bit_length() + 7) // 8
        made = self.expand(level, seed, 1, BLOCK + size * (self.value_length + SPARE_ELEMENTS))
        values = list(islice(field_elements(made[BLOCK:], modulus), self.value_length))
        return made[:BLOCK], values

    def generate(self, alpha: Sequence[bool], betas: Sequence[Sequence[int]], keys: Sequence[bytes]) -> list[Level]:
        seeds, controls = list(keys), [0, 1]
        levels = list[Level]()
        for level, (bit, beta) in enumerate(zip(alpha, betas, strict=True)):
            keep, lose = int(bit), 1 - int(bit)
            grown = [self.children(level, seed) for seed in seeds]
            correction = xor(grown[0][0][lose], grown[1][0][lose])
            control_corrections = (grown[0][1][0] ^ grown[1][1][0] ^ keep ^ 1, grown[0][1][1] ^ grown[1][1][1] ^ keep)
            values = list[list[int]]()
            for server in (0, 1):
                seed, control = grown[server][0][keep], grown[server][1][keep]
                if controls[server]:
                    seed, control = xor(seed, correction), control ^ control_corrections[keep]
                seeds[server], made = self.convert(level, seed)
                controls[server] = control
                values.append(made)
            sign = -1 if controls[1] else 1
            modulus = self.modulus(level)
            value = [sign * (b - x + y) % modulus for b, x, y in zip(beta, *values, strict=True)]
            levels.append((correction, control_corrections, value))
        return levels

    def evaluate(self, server: int, levels: Sequence[Level], key: bytes, prefix: Sequence[bool]) -> list[int]:
        seed, control, values = key, server, list[int]()
        for level, bit in enumerate(prefix):
            correction, control_corrections, value = levels[level]
            grown, controls = self.children(level, seed)
            seed, next_control = grown[int(bit)], controls[int(bit)]
            if control:
                seed, next_control = xor(seed, correction), next_control ^ control_corrections[int(bit)]
            control = next_control
            seed, values = self.convert(level, seed)
            values = [x + control * y for x, y in zip(values, value, strict=True)]
        sign = -1 if server else 1
        return [sign * value % self.modulus(len(prefix) - 1) for value in values]

    def encode(self, levels: Sequence[Level]) -> bytes:
        controls = [bit for _, pair, _ in levels for bit in pair]
        packed = sum(bit << position for position, bit in enumerate(controls))
        encoded = packed.to_bytes((len(controls) + 7) // 8, "little") + b"".join(seed for seed, _, _ in levels)
        for level, (_, _, values) in enumerate(levels):
            size = (self.modulus(level).bit_length() + 7) // 8
            encoded += b"".join(value.to_bytes(size, "little") for value in values)
        return encoded
