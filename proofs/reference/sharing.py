"""Secret sharing in the library compared with the reference: Shamir's, packed, and LightSecAgg."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from questions import Question, element, listed, received
from secagg.crypto import prime_field, reconstruction, shamir
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.secret import Secret
from secagg.errors import PeerMisbehaved
from secagg.protocols.light_secagg import field as light_secagg
from secagg.protocols.one_message import decoding
from secagg.protocols.one_message.parameters import Parameters, Values
from secagg.protocols.one_message.session import choose_committee, plan
from secagg.protocols.one_message.sharing import WORD, holder_point, multiply, slot_points, transfer_matrix

DEALINGS: Final = (40, 500)
"""Number of parameter sets, and number of secrets for each."""
DECODINGS: Final = (40, 225)
INVERSES: Final = (200, 10)
PACKED: Final = (170, 4000)
LOCATED: Final = (60, 150)
SUMS: Final = 20
CODED: Final = (32, 4000)
COMMITTEES: Final = ((5, 1, 0), (7, 1, 1), (9, 1, 2), (9, 0, 4))
"""Numbers of holders, of corrupted and of absent ones."""
PRIME: Final = (1 << 256) - 189
FIELD: Final = (1 << 16) - 15
CODED_FIELD: Final = (1 << 31) - 1
"""The moduli, written out again: a library with other moduli differs."""


class SpelledCoins:
    """Coins that encode given numbers."""

    def __init__(self, numbers: list[int]) -> None:
        self._bytes = b"".join(number.to_bytes(ELEMENT_BYTES, "big") for number in numbers)

    def draw(self, count: int) -> bytearray:
        """Return the next bytes."""
        drawn, self._bytes = self._bytes[:count], self._bytes[count:]
        return bytearray(drawn)


# --- Shamir's ---------------------------------------------------------------------------------------------------------


def dealt_secrets(chance: random.Random) -> Iterator[Question]:
    """Deal secrets: the input is the coefficients of binomial(x, k), the output a share for each holder."""
    ways, secrets = DEALINGS
    for _ in range(ways):
        holders = chance.randint(1, 9)
        threshold = chance.randint(1, min(6, holders))
        polynomials = [[element(chance, PRIME) for _ in range(threshold)] for _ in range(secrets)]
        coins = SpelledCoins([number for polynomial in polynomials for number in polynomial[1:]])
        held = [Secret("secret", prime_field.encode(polynomial[0])) for polynomial in polynomials]
        dealt = shamir.split_many(held, threshold=threshold, holders=holders, coins=coins)
        due = [listed(prime_field.decode(share.value.expose()) for share in shares) for shares in dealt]
        header = f"deal {PRIME:x} {holders} {secrets}"
        yield Question("secrets dealt", [header, *map(listed, polynomials)], due)


def decoded_secrets(chance: random.Random) -> Iterator[Question]:
    """Reconstruct and correct from shares, with any number of errors."""
    ways, words = DECODINGS
    for _ in range(ways):
        threshold = chance.randint(1, 4)
        points = chance.sample(range(1, chance.choice((10, shamir.MAX_HOLDERS))), chance.randint(threshold, 8))
        radius = (len(points) - threshold) // 2
        values = [received(chance, points, threshold, PRIME) for _ in range(words)]
        for what, reach in (("shares reconstructed", 0), ("shares corrected", radius)):
            header = [f"decode {PRIME:x} {threshold} {reach} {words}", listed(points), "0"]
            due = [_decoded(points, word, threshold, corrects=what == "shares corrected") for word in values]
            yield Question(what, [*header, *map(listed, values)], due)


def _decoded(points: list[int], values: list[int], threshold: int, *, corrects: bool) -> str:
    shares = [
        shamir.Share(point, Secret("share", prime_field.encode(value)))
        for point, value in zip(points, values, strict=True)
    ]
    try:
        if corrects:
            corrected = reconstruction.correct(shares, threshold=threshold)
            secret, wrong = corrected.secret, corrected.wrong_points
        else:
            secret, wrong = reconstruction.reconstruct(shares, threshold=threshold), frozenset[int]()
    except PeerMisbehaved:
        return "-"
    return f"{_marks(point in wrong for point in points)} {prime_field.decode(secret.expose()):x}"


def inverses(chance: random.Random) -> Iterator[Question]:
    """Invert elements together."""
    ways, together = INVERSES
    rows = [[1 + element(chance, PRIME - 1) for _ in range(together)] for _ in range(ways)]
    due = [listed(prime_field.invert_all(row)) for row in rows]
    yield Question("rows inverted", [f"invert {PRIME:x} {ways}", *map(listed, rows)], due)


# --- Packed -----------------------------------------------------------------------------------------------------------


def packed_shares(chance: random.Random) -> Iterator[Question]:
    """Deal columns of packed secrets: from values at slots and at holders with seeds to those at the others."""
    ways, columns = PACKED
    for _ in range(ways):
        packing, seeds, others = chance.randint(1, 3), chance.randint(0, 4), chance.randint(1, 5)
        sources = slot_points(packing) + tuple(map(holder_point, range(seeds)))
        targets = tuple(map(holder_point, range(seeds, seeds + others)))
        values = _columns(chance, len(sources), columns)
        shares = multiply(transfer_matrix(sources, targets), values)
        header = [f"interpolate {FIELD:x} {columns}", listed(sources), listed(targets)]
        yield Question("packed columns dealt", [*header, *_rows(values)], _rows(shares))


def located_errors(chance: random.Random) -> Iterator[Question]:
    """Locate wrong answers in a column, any number of them."""
    ways, words = LOCATED
    for _ in range(ways):
        threshold, most = chance.randint(1, 4), chance.randint(1, 2)
        count = threshold + 2 * most + chance.randint(0, 1)
        points = [holder_point(position) for position in sorted(chance.sample(range(24), count))]
        values = [received(chance, points, threshold, FIELD) for _ in range(words)]
        header = [f"decode {FIELD:x} {threshold} {most} {words}", listed(points), "0"]
        due = list[str]()
        for word in values:
            wrong = decoding._wrong_positions(points, word, threshold, most)  # noqa: SLF001 -- the decoder of a column
            due.append(_marks(place in wrong for place in range(count)) if wrong else "-")
        yield Question("wrong answers located", [*header, *map(listed, values)], due, _only_marks)


def recovered_sums(chance: random.Random) -> Iterator[Question]:
    """Recover sums of secrets from answers, with the maximum number of correctable liars, in some of the columns."""
    for holders, corrupted, absent in COMMITTEES:
        committee = choose_committee(holders, corrupted, absent)
        parameters = plan([Values(64, 16, (-128, 127))], 100, committee, degrees=(1024,))
        for _ in range(SUMS):
            yield _recovered(chance, parameters)


def _recovered(chance: random.Random, parameters: Parameters) -> Question:
    threshold, columns, holders = parameters.threshold, parameters.secret_columns, parameters.holders
    present = sorted(chance.sample(range(holders), chance.choice((holders, chance.randint(threshold, holders)))))
    radius = (len(present) - threshold) // 2
    points = [holder_point(position) for position in present]
    polynomials = _columns(chance, threshold, columns)
    words = np.array([values_at_columns(polynomials, point) for point in points])
    liars = chance.sample(range(len(present)), chance.choice((radius, chance.randint(0, radius))))
    for liar in liars:
        altered = sorted(chance.sample(range(columns), chance.choice((1, 7, columns))))
        words[liar, altered] = (words[liar, altered] + chance.randint(1, FIELD - 1)) % FIELD
    answers = {position: row.astype(WORD).tobytes() for position, row in zip(present, words, strict=True)}
    recovered = next(decoding.recovered(parameters, answers, 0, SystemCoins()))
    if recovered.suspects != {present[liar] for liar in liars}:
        raise AssertionError(f"suspects are {sorted(recovered.suspects)}, but other holders lied")
    secrets = recovered.sum_secret.astype(np.int64).reshape(parameters.packing, columns) % FIELD
    targets = slot_points(parameters.packing)
    header = [f"decode {FIELD:x} {threshold} {radius} {columns}", listed(points), listed(targets)]
    return Question("columns of sums recovered", [*header, *_rows(words)], _rows(secrets), _without_marks)


# --- LightSecAgg ------------------------------------------------------------------------------------------------------


def light_secagg_masks(chance: random.Random) -> Iterator[Question]:
    """Cut masks into pieces, and reconstruct them from any U pieces."""
    ways, length = CODED
    modulus = CODED_FIELD
    for _ in range(ways):
        target = chance.randint(2, 6)
        clients, kept = target + chance.randint(0, 3), chance.randint(1, target)
        rows = [[element(chance, modulus) for _ in range(length)] for _ in range(target)]
        parts = np.array(rows, np.int64)
        pieces = light_secagg.pieces_of(parts, clients)
        slots = [-slot % modulus for slot in range(1, target + 1)]
        header = [f"interpolate {modulus:x} {length}", listed(slots), listed(range(1, clients + 1))]
        yield Question("columns of masks cut", [*header, *_rows(parts)], _rows(pieces))
        positions = chance.sample(range(clients), target)
        found = light_secagg.mask_from(pieces[positions], positions, kept)
        header[1:] = [listed(position + 1 for position in positions), listed(slots[:kept])]
        yield Question("columns of masks put together", [*header, *_rows(pieces[positions])], _rows(found))


# --- Encoding of lines ------------------------------------------------------------------------------------------------


def values_at_columns(polynomials: npt.NDArray[np.int64], point: int) -> npt.NDArray[np.int64]:
    """Evaluate polynomials that are given in columns."""
    value = np.zeros(polynomials.shape[1], np.int64)
    for row in polynomials[::-1]:
        value = (value * point + row) % FIELD
    return value


def _columns(chance: random.Random, rows: int, columns: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(chance.getrandbits(64)).integers(0, FIELD, (rows, columns), np.int64)


def _rows(columns: npt.NDArray[np.int64]) -> list[str]:
    return [listed(column) for column in columns.T.tolist()]


def _marks(wrong: Iterator[bool]) -> str:
    return "".join("1" if is_wrong else "0" for is_wrong in wrong)


def _only_marks(line: str) -> str:
    marks = line.split(" ", 1)[0]
    return marks if "1" in marks else "-"


def _without_marks(line: str) -> str:
    return line.partition(" ")[2]
