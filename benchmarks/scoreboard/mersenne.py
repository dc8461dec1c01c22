"""Recovers a Mersenne Twister from its outputs: 624 consecutive words give its state, and every later word."""

from __future__ import annotations

from collections.abc import Sequence

_SIZE, _MIDDLE, _WORD = 624, 397, 0xFFFFFFFF


def outputs_after(words: Sequence[int], count: int) -> list[int]:
    """Return the next outputs after 624 known ones of 32 bits."""
    state = [_untempered(word) for word in words[:_SIZE]]
    found = list[int]()
    for index in range(count):
        joined = (state[index] & 0x80000000) | (state[index + 1] & 0x7FFFFFFF)
        state.append(state[index + _MIDDLE] ^ (joined >> 1) ^ (0x9908B0DF if joined & 1 else 0))
        found.append(_tempered(state[-1]))
    return found


def _tempered(word: int) -> int:
    word ^= word >> 11
    word ^= word << 7 & 0x9D2C5680
    word ^= word << 15 & 0xEFC60000
    return (word ^ word >> 18) & _WORD


def _untempered(word: int) -> int:
    word ^= word >> 18
    word ^= word << 15 & 0xEFC60000
    undone = word
    for _ in range(4):
        undone = word ^ (undone << 7 & 0x9D2C5680)
    word = undone & _WORD
    for _ in range(2):
        undone = word ^ undone >> 11
    return undone & _WORD
