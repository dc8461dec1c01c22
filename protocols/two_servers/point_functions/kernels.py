"""Distributed point functions of two servers, one level at a time, for all blocks at once.

Implements: [BGI16] Fig. 1, with early termination: a leaf has many lanes.

A tree's node is 128 bits in two words, and the lowest bit of each word is a control bit. Off the path to alpha the
servers hold the same node. On the path they hold independent seeds, and control bits, exactly one of them set in
each word. Let H_0, H_1 be the hashes of the two children, and t the control bits:

    child_c = H_c(s) xor (t times CW_c)        in each word

CW_c holds the difference of the children that leave the path, so that these become equal, and such control bits that
on the path exactly one stays set. At a leaf the same control bits decide, for the lanes of each word, which server adds
the leaf's correction word:

    lanes of server b = (-1)^b (C(s) + t times CW),    CW = (-1)^(t_1) (beta e_lane - C(s_0) + C(s_1))

The control bits of the two words obey the same rule independently of each other; it is what makes "t times CW" one
multiplication of words, without an inner loop over pairs. No bit of a node becomes part of a lane: lanes are hashes.

These are kernels: they name no dtype and neither branch nor index on data, so that the same source runs on machine
words and on solver terms. In-place operators save memory traffic; what a kernel changes, it also returns.
"""

from __future__ import annotations

from typing import Any, Final

from secagg.crypto.ring import low_bits

Words = Any
"""Arrays of words of a node, or solver terms: * wraps at the word, and one factor is always 0, 1 or all ones."""

Pair = tuple[Any, Any]
"""Words for the left child and for the right."""

WORD_BITS: Final = 64


def root_into(uniform: Words, control: int) -> Words:
    """Turn a uniform word into a root's: 63 bits of its seed, and the control bit, which is 0 or 1."""
    uniform &= low_bits(WORD_BITS) - 1
    uniform ^= control
    return uniform


def control_bits(node: Words) -> Words:
    """Return the control bit of each word."""
    return node & 1


def feed_forward_into(permuted: Words, node: Words) -> Words:
    """Complete a hash."""
    permuted ^= node
    return permuted


def grow_into(node: Words, children: Pair, control: Words, shared: Words, difference: Words) -> Pair:
    """Turn the permuted nodes into the children.

    Args:
        node: the parents.
        children: the parents, permuted under the left and under the right child's key; they become the children.
        control: the parents' control bits; overwritten.
        shared: the left child's correction word where a control bit is set, and 0 elsewhere; overwritten.
        difference: what the right child's correction word differs in; 0 or 1 in each word.
    Claim DP-1: off the path the servers' children are equal; on it their control bits differ.
    """
    left, right = children
    # The feed-forward is the same for both children.
    shared ^= node
    left ^= shared
    control &= difference
    shared ^= control
    right ^= shared
    return left, right


def correction_of(children_0: Pair, children_1: Pair, goes_right: Words) -> Pair:
    """Return the left correction word and the difference of the right one.

    Args:
        children_0: server 0's hashes of its node on the path, for the left and the right child.
        children_1: server 1's.
        goes_right: 1 where the path goes to the right, 0 elsewhere.
    """
    left = children_0[0] ^ children_1[0]
    right = children_0[1] ^ children_1[1]
    lost = select(right, left, goes_right)
    seed = lost ^ (lost & 1)
    left_control = (left & 1) ^ goes_right ^ 1
    right_control = (right & 1) ^ goes_right
    return seed ^ left_control, left_control ^ right_control


def kept_child(node: Words, children: Pair, correction: Pair, goes_right: Words) -> Words:
    """Return the child on the path, from a server's node there, its two hashes and the level's correction."""
    chosen = select(children[0], children[1], goes_right)
    return chosen ^ (node & 1) * (correction[0] ^ (correction[1] & goes_right))


def select(zero: Words, one: Words, bit: Words) -> Words:
    """Return ``one`` where the bit is set and ``zero`` elsewhere."""
    return zero ^ ((zero ^ one) & (bit * low_bits(WORD_BITS)))


def masked(control: Words, correction: Words) -> Words:
    """Return the correction word where the control bit is set, and 0 elsewhere."""
    return control * correction


def spread(control: Words) -> Words:
    """Return all ones where the control bit is set, and 0 elsewhere."""
    return control * low_bits(WORD_BITS)
