"""What a server learns that shows lists as it likes: exhaustive linear algebra from the definition of the shares.

The unknowns are the coefficients of the honest clients' polynomials. A server sees, for every honest holder, the sum of
its shares over the list that it was shown, and the corrupted holders' shares of every client. What it learns about the
secrets is the part of their span that lies in the span of its view. Allowed is the sum over a list that at least
T + 1 - c - rho honest holders were shown.
"""

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from secagg.protocols.one_message.parameters import least_threshold
from secagg.protocols.one_message.sharing import holder_point

PRIME = 13
Rows = npt.NDArray[np.int64]


def rank(rows: Rows) -> int:
    """Return the rank over the integers modulo 13."""
    reduced, found = rows % PRIME, 0
    for column in range(reduced.shape[1]):
        candidates = np.flatnonzero(reduced[found:, column])
        if not candidates.size:
            continue
        reduced[[found, found + candidates[0]]] = reduced[[found + candidates[0], found]]
        reduced[found] = reduced[found] * pow(int(reduced[found, column]), -1, PRIME) % PRIME
        others = reduced[:, column].copy()
        others[found] = 0
        reduced = (reduced - others[:, None] * reduced[found]) % PRIME
        found += 1
        if found == len(reduced):
            break
    return found


def powers(point: int, threshold: int) -> list[int]:
    return [pow(point, exponent, PRIME) for exponent in range(threshold)]


def view_of(lists: tuple[int, ...], corrupted: int, threshold: int, clients: int) -> Rows:
    """Return what is seen; the first ``corrupted`` holders are, the others were shown these lists as sets of bits."""
    rows = list[list[int]]()
    for position, shown in enumerate(lists, start=corrupted):
        if shown:
            at = powers(holder_point(position), threshold)
            rows.append([power if shown >> client & 1 else 0 for client in range(clients) for power in at])
    for client, position in product(range(clients), range(corrupted)):
        at = powers(holder_point(position), threshold)
        rows.append([power if of == client else 0 for of in range(clients) for power in at])
    return np.array(rows, np.int64).reshape(-1, clients * threshold)


def sums_over(members: list[int], packing: int, threshold: int, clients: int) -> Rows:
    """Return, for each list of clients, the sum of their secrets in each slot."""
    rows = [
        [power if shown >> client & 1 else 0 for client in range(clients) for power in powers(-slot, threshold)]
        for shown in members
        for slot in range(packing)
    ]
    return np.array(rows, np.int64).reshape(-1, clients * threshold)


def dimension_learned(view: Rows, secrets: Rows) -> int:
    """Return the dimension of what the spans have in common."""
    return rank(secrets) + rank(view) - rank(np.concatenate([view, secrets]))


def learns_too_much(lists: tuple[int, ...], corrupted: int, packing: int, threshold: int, clients: int) -> bool:
    approved = [
        shown for shown in range(1, 1 << clients) if lists.count(shown) >= max(1, threshold + 1 - corrupted - packing)
    ]
    view = view_of(lists, corrupted, threshold, clients)
    alone = sums_over([1 << client for client in range(clients)], packing, threshold, clients)
    allowed = sums_over(approved, packing, threshold, clients)
    return dimension_learned(view, alone) > dimension_learned(view, allowed)


def splits(holders: int, corrupted: int, packing: int, threshold: int, clients: int) -> bool:
    return any(
        learns_too_much(lists, corrupted, packing, threshold, clients)
        for lists in product(range(1 << clients), repeat=holders - corrupted)
    )


@pytest.mark.parametrize(
    ("holders", "corrupted", "packing", "clients"),
    [(3, 1, 1, 3), (4, 1, 2, 2), (5, 2, 1, 3), (6, 2, 2, 2), (7, 2, 2, 2)],
)
def test_one_certified_list_is_safe_from_the_threshold_on_and_not_below(
    holders: int, corrupted: int, packing: int, clients: int
) -> None:
    due = least_threshold(corrupted, packing)

    def fails(threshold: int) -> bool:
        """Whether some list, shown to some honest holders and to nobody else, tells more than its sum."""
        for shown, silent in product(range(1, 1 << clients), product([0, 1], repeat=holders - corrupted)):
            lists = tuple(0 if quiet else shown for quiet in silent)
            view = view_of(lists, corrupted, threshold, clients)
            alone = sums_over([1 << client for client in range(clients)], packing, threshold, clients)
            whole = sums_over([shown], packing, threshold, clients)
            if dimension_learned(view, alone) > dimension_learned(view, whole):
                return True
        return False

    assert not any(fails(threshold) for threshold in range(due, holders + 1))
    assert fails(due - 1)
