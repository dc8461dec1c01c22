"""The steps of the two-server point function and the arithmetic of its lanes, run on terms.

The hashes of a child are any words: nothing is assumed about the cipher. By induction, the statements about one level
hold for every depth, as in ``proofs/coq/dpf.v``; they also state, beyond correctness, that the seeds on the path differ
by the hashes of both children. Lanes of a ring have every width; lanes of a field have 7, 13 and 17 bits.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

from obligations import Obligation
from secagg.crypto import ring
from secagg.protocols.two_servers.point_functions import lanes as lane_field
from secagg.protocols.two_servers.point_functions import shares as point_function
from terms import Answer, Question, Term, Word, conjunction, z3

Kernels = Mapping[str, Callable[..., Any]]
BITS: Final = point_function.WORD_BITS
FIELD_BITS: Final = tuple(modulus.bit_length() for modulus in lane_field.MODULI)
MODULES: Final = (ring, lane_field, point_function)
MUTATED_WIDTH: Final = 13

MUTANTS: Final = (
    (point_function, "left_control = (left & 1) ^ goes_right ^ 1", "left_control = (left & 1) ^ goes_right"),
    (point_function, "right_control = (right & 1) ^ goes_right", "right_control = (right & 1)"),
    (point_function, "lost = select(right, left, goes_right)", "lost = select(left, right, goes_right)"),
    (point_function, "control &= difference", "control |= difference"),
    (point_function, "right ^= shared", "right ^= control"),
    (point_function, "return zero ^ ((zero ^ one) & (bit", "return zero ^ ((zero | one) & (bit"),
    (point_function, "uniform &= low_bits(WORD_BITS) - 1", "uniform &= low_bits(WORD_BITS)"),
    (lane_field, "((difference ^ negative) - negative)", "((difference ^ negative) + negative)"),
    (lane_field, "target - lanes_0 + lanes_1", "target + lanes_0 - lanes_1"),
    (lane_field, "difference ^ (negative & low_bits(bits))", "difference ^ negative"),
    (lane_field, "return (words + 1) >> bits", "return words >> bits"),
    (lane_field, "(words & low_bits(shift)) + (words >> shift)", "(words & low_bits(shift)) ^ (words >> shift)"),
    (lane_field, "return reduce_once(left + (low_bits(bits) - right), bits)", "return left + (low_bits(bits) - right)"),
)
"""Tokens of the source, original and altered; each altered module must fail one of its statements."""


def obligations() -> Iterator[Obligation]:
    """Every statement, and every mutant."""
    kernels = library()
    for family, name, ask in statements():
        yield Obligation(family, name, partial(ask, kernels))
    for module, original, altered in MUTANTS:
        family = "point function" if module is point_function else "lanes"
        name = f"`{altered}` for `{original}`"
        yield Obligation(family, name, partial(_ask_mutant, family, module, original, altered), Answer.REFUTED)


def statements(widths: range | None = None) -> Iterator[tuple[str, str, Callable[[Kernels], Question]]]:
    """Yield each statement with its family and name."""
    for statement in (
        selection_selects,
        roots_have_their_control_bit,
        off_the_path_nothing_differs,
        the_lost_children_are_equal,
        on_the_path_control_bits_differ,
        generation_follows_evaluation,
        seeds_on_the_path_differ_by_both_hashes,
        multiples_are_masks,
    ):
        yield "point function", statement.__name__.replace("_", " "), statement
    for width in widths or range(1, ring.MAXIMUM_MODULUS_BITS + 1):
        yield "lanes", f"ring correction, p = {width}", partial(ring_correction_is_signed, width=width)
    for bits in FIELD_BITS:
        yield "lanes", f"field correction, p = {bits}", partial(field_correction_is_signed, bits=bits)
        yield "lanes", f"field addition, p = {bits}", partial(field_addition, bits=bits)
        yield "lanes", f"field subtraction, p = {bits}", partial(field_subtraction, bits=bits)
        modulus = (1 << bits) - 1
        for greatest in (2 * modulus, modulus**2, (1 << 2 * bits) - 1):
            name = f"field reduction up to {greatest}, p = {bits}"
            yield "lanes", name, partial(reduction_is_the_remainder, bits=bits, greatest=greatest)


# --- The point function -----------------------------------------------------------------------------------------------


class Level:
    """One level: both servers' nodes, the hashes of their children, and the direction of the path."""

    def __init__(self, kernels: Kernels, *, on_path: bool) -> None:
        self.kernels = kernels
        self.nodes = [Word.named(f"s{server}", BITS) for server in (0, 1)]
        permuted = [[Word.named(f"{side}{server}", BITS) for side in "lr"] for server in (0, 1)]
        self.goes_right = Word.named("right", BITS)
        self.premises = [z3.ULE(self.goes_right.term, 1)]
        if on_path:
            self.premises.append(z3.Extract(0, 0, self.nodes[0].term) != z3.Extract(0, 0, self.nodes[1].term))
        else:
            self.nodes[1], permuted[1] = self.nodes[0], permuted[0]
        self.hashes = [
            tuple(kernels["feed_forward_into"](word, node) for word in words)
            for words, node in zip(permuted, self.nodes, strict=True)
        ]
        self.correction = kernels["correction_of"](*self.hashes, self.goes_right)
        if not on_path:
            # Off the path the correction word is arbitrary: it was made for two other nodes.
            self.correction = Word.named("cw", BITS), Word.named("difference", BITS)
            self.premises.append(z3.ULE(self.correction[1].term, 1))
        self.children = [self._grown(node, words) for node, words in zip(self.nodes, permuted, strict=True)]

    def _grown(self, node: Word, permuted: list[Word]) -> tuple[Word, Word]:
        control = self.kernels["control_bits"](node)
        shared = self.kernels["masked"](control, self.correction[0])
        left, right = self.kernels["grow_into"](node, tuple(permuted), control, shared, self.correction[1])
        return left, right

    def kept(self, pair: tuple[Word, Word]) -> Term:
        """Return the word of the child on the path, selected by the solver instead of the library."""
        return z3.If(self.goes_right.term == 1, pair[1].term, pair[0].term)

    def lost(self, pair: tuple[Word, Word]) -> Term:
        """Return the word of the other child."""
        return z3.If(self.goes_right.term == 1, pair[0].term, pair[1].term)


def selection_selects(kernels: Kernels) -> Question:
    """State that select returns one or the other."""
    zero, one, bit = (Word.named(name, BITS) for name in ("zero", "one", "bit"))
    chosen = kernels["select"](zero, one, bit).term
    return Question(chosen == z3.If(bit.term == 1, one.term, zero.term), [z3.ULE(bit.term, 1)])


def roots_have_their_control_bit(kernels: Kernels) -> Question:
    """State that a root keeps 63 uniform bits and has the given control bit."""
    uniform = Word.named("uniform", BITS)
    roots = [kernels["root_into"](uniform, control).term for control in (0, 1)]
    kept = conjunction(*(z3.Extract(BITS - 1, 1, root) == z3.Extract(BITS - 1, 1, uniform.term) for root in roots))
    return Question(conjunction(kept, *(z3.Extract(0, 0, root) == bit for bit, root in enumerate(roots))))


def off_the_path_nothing_differs(kernels: Kernels) -> Question:
    """State that equal nodes have equal children, for any correction word."""
    level = Level(kernels, on_path=False)
    return Question(_equal(level.children[0], level.children[1]), level.premises)


def the_lost_children_are_equal(kernels: Kernels) -> Question:
    """State that the children off the path are the same at both servers."""
    level = Level(kernels, on_path=True)
    return Question(level.lost(level.children[0]) == level.lost(level.children[1]), level.premises)


def on_the_path_control_bits_differ(kernels: Kernels) -> Question:
    """State that of the two children on the path exactly one has its control bit set."""
    level = Level(kernels, on_path=True)
    kept = [z3.Extract(0, 0, level.kept(children)) for children in level.children]
    return Question(kept[0] != kept[1], level.premises)


def generation_follows_evaluation(kernels: Kernels) -> Question:
    """State that the client keeps, for each server, exactly the child that the server computes."""
    level = Level(kernels, on_path=True)
    kept = [
        kernels["kept_child"](node, hashes, level.correction, level.goes_right).term == level.kept(children)
        for node, hashes, children in zip(level.nodes, level.hashes, level.children, strict=True)
    ]
    return Question(conjunction(*kept), level.premises)


def seeds_on_the_path_differ_by_both_hashes(kernels: Kernels) -> Question:
    """State that the difference of the kept seeds is the sum of the differences of the kept and of the lost hashes.

    Without it, a wrong choice of the lost child leaves the function correct, but both children nearly equal.
    """
    level = Level(kernels, on_path=True)
    kept = level.kept(level.children[0]) ^ level.kept(level.children[1])
    hashes = [level.kept(pair) ^ level.lost(pair) for pair in level.hashes]
    same = z3.Extract(BITS - 1, 1, kept) == z3.Extract(BITS - 1, 1, hashes[0] ^ hashes[1])
    return Question(same, level.premises)


def multiples_are_masks(kernels: Kernels) -> Question:
    """State that a control bit times a word is the word or zero, and that its spread is all ones or zero."""
    control, word = Word.named("control", BITS), Word.named("word", BITS)
    is_set = control.term == 1
    zero, ones = z3.BitVecVal(0, BITS), z3.BitVecVal((1 << BITS) - 1, BITS)
    masked = kernels["masked"](control, word).term == z3.If(is_set, word.term, zero)
    return Question(
        conjunction(masked, kernels["spread"](control).term == z3.If(is_set, ones, zero)), [z3.ULE(control.term, 1)]
    )


# --- Lanes ------------------------------------------------------------------------------------------------------------


def ring_correction_is_signed(kernels: Kernels, width: int) -> Question:
    """State that the correction is the missing difference modulo 2^p, with the sign of the server that adds it."""
    bits = ring.Ring(width).word_bits
    difference, own, other = (Word.named(name, bits) for name in ("difference", "own", "other"))
    # Every target is the sum of the missing part and the present part.
    target, missing = difference + own - other, z3.Extract(width - 1, 0, difference.term)
    # Case by case, because a solver decides sums quickly and sums of conditional sums slowly.
    cases = list[Term]()
    for negative, signed in ((0, missing), ((1 << bits) - 1, -missing)):
        corrected = kernels["ring_correction"](target, own, other, Word(z3.BitVecVal(negative, bits)), width).term
        cases.append(corrected == (signed if width == bits else z3.ZeroExt(bits - width, signed)))
    return Question(conjunction(*cases))


def field_correction_is_signed(kernels: Kernels, bits: int) -> Question:
    """State the same modulo q, for lanes below q, given the sum and difference of lanes, which are stated separately.

    The function runs with two replacements of these, which check their arguments and return any lanes.
    """
    size, modulus = ring.Ring(bits).word_bits, (1 << bits) - 1
    target, own, other, first, missing = (Word.named(name, size) for name in ("target", "own", "other", "d", "missing"))
    correct = kernels["field_correction"]

    def subtract(left: Word, right: Word, _: int) -> Word:
        if left is not target or right is not own:
            raise LookupError("the correction must start with target - lanes_0")
        return first

    def add(left: Word, right: Word, _: int) -> Word:
        if left is not first or right is not other:
            raise LookupError("the correction must continue with + lanes_1")
        return missing

    cases = list[Term]()
    with mock.patch.dict(correct.__globals__, {"subtract": subtract, "add": add}):
        for negative in (0, (1 << size) - 1):
            corrected = correct(target, own, other, Word(z3.BitVecVal(negative, size)), bits).term
            opposite = z3.If(missing.term == 0, missing.term, modulus - missing.term)
            cases.append(corrected == (opposite if negative else missing.term))
    return Question(conjunction(*cases), [z3.ULT(missing.term, modulus)])


def field_addition(kernels: Kernels, bits: int) -> Question:
    """State that add is addition modulo q."""
    left, right, modulus, premises = _two_lanes(bits)
    total = z3.ZeroExt(8, kernels["add"](left, right, bits).term)
    return Question(total == _remainder(z3.ZeroExt(8, left.term) + z3.ZeroExt(8, right.term), modulus), premises)


def field_subtraction(kernels: Kernels, bits: int) -> Question:
    """State that subtract is subtraction modulo q."""
    left, right, modulus, premises = _two_lanes(bits)
    rest = z3.ZeroExt(8, kernels["subtract"](left, right, bits).term)
    wide = z3.ZeroExt(8, left.term) + modulus - z3.ZeroExt(8, right.term)
    return Question(rest == _remainder(wide, modulus), premises)


def reduction_is_the_remainder(kernels: Kernels, bits: int, greatest: int) -> Question:
    """State that reduce(k q + r) is r, for every r below q and every k within the bound."""
    times, rest, modulus = Word.named("times", BITS), Word.named("rest", BITS), (1 << bits) - 1
    word = Word((times.term << bits) - times.term + rest.term)
    premises = [z3.ULT(rest.term, modulus), z3.ULE(times.term, greatest // modulus), z3.ULE(word.term, greatest)]
    return Question(kernels["reduce"](word, bits, greatest).term == rest.term, premises)


def _remainder(term: Term, modulus: int) -> Term:
    """Subtract the modulus once if possible."""
    return z3.If(z3.UGE(term, modulus), term - modulus, term)


def _two_lanes(bits: int) -> tuple[Word, Word, int, list[Term]]:
    left, right = (Word.named(name, ring.Ring(bits).word_bits) for name in ("left", "right"))
    modulus = (1 << bits) - 1
    return left, right, modulus, [z3.ULT(left.term, modulus), z3.ULT(right.term, modulus)]


def _equal(one: tuple[Word, Word], other: tuple[Word, Word]) -> Term:
    return conjunction(*(left.term == right.term for left, right in zip(one, other, strict=True)))


# --- The library's kernels, original and altered ---------------------------------------------------------------------


def library() -> Kernels:
    """Return the functions of the library."""
    names = (
        [
            "root_into",
            "control_bits",
            "feed_forward_into",
            "grow_into",
            "correction_of",
            "kept_child",
            "select",
            "masked",
            "spread",
        ],
        ["reduce_once", "add", "subtract", "reduce", "field_correction", "ring_correction"],
    )
    modules = (point_function, lane_field)
    return {name: getattr(module, name) for module, chosen in zip(modules, names, strict=True) for name in chosen}


def altered_kernels(module: ModuleType, original: str, altered: str) -> Kernels:
    """Return the kernels, with tokens of one module replaced."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    tree = ast.parse(source)
    kernels = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    text = "\n\n".join(str(ast.get_source_segment(source, node)) for node in kernels)
    if text.count(original) == 0:
        raise LookupError(f"`{original}` is not in the kernels of {module.__name__}; update MUTANTS")
    names: dict[str, Any] = {**vars(module)}
    program = "from __future__ import annotations\n" + text.replace(original, altered)
    exec(program, names)  # noqa: S102 -- the library's own source
    return {**library(), **{node.name: names[node.name] for node in kernels}}


def _ask_mutant(family: str, module: ModuleType, original: str, altered: str) -> Question:
    """Return the conjunction of the family's statements for altered kernels, at some widths."""
    kernels = altered_kernels(module, original, altered)
    widths = range(MUTATED_WIDTH, MUTATED_WIDTH + 1)
    questions = [ask(kernels) for named, _, ask in statements(widths) if named == family and _is_small(ask)]
    return Question(
        conjunction(*(z3.Implies(conjunction(*question.premises), question.goal) for question in questions))
    )


def _is_small(ask: Callable[[Kernels], Question]) -> bool:
    named = ask.keywords if isinstance(ask, partial) else {}
    return named.get("bits", FIELD_BITS[0]) == FIELD_BITS[0]
