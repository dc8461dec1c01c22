"""Rounds of semi-honest index sharing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.index_sharing.dealt_batches import Correlations
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

LAYOUT = Layout((RingSegment(20, 6), IndexSegment(8, 5), RingSegment(7, 3), IndexSegment(100, 4)))


@pytest.fixture
def setup() -> IndexingSetup:
    """Return a setup with two index segments, one of which has no power of two of codewords."""
    return IndexingSetup(mode=SharingMode.SEMI_HONEST_INDEX_SHARING, layout=LAYOUT)


@pytest.fixture
def begin(setup: IndexingSetup) -> Callable[..., InsecureIndexingRound]:
    """Return a function that begins a round; nothing is dealt yet."""

    def make(**changes: Any) -> InsecureIndexingRound:
        return InsecureIndexingRound(replace(setup, **changes))

    return make


@pytest.fixture
def dealt(begin: Callable[..., InsecureIndexingRound]) -> InsecureIndexingRound:
    """Begin a round in which everybody was dealt for, in one batch that both servers took."""
    made = begin()
    made.deal()
    return made


def _opener_of(made: InsecureIndexingRound, index: int) -> Any:
    state: Any = vars(made.servers[index])["_state"]
    return state.opener


@pytest.fixture
def opener_of() -> Callable[[InsecureIndexingRound, int], Any]:
    """Return a function that returns what opens uploads and batches at a server."""
    return _opener_of


@pytest.fixture
def correlations_of() -> Callable[[InsecureIndexingRound, int], Correlations]:
    """Return a function that returns what a server was dealt."""

    def find(made: InsecureIndexingRound, index: int) -> Correlations:
        found: Correlations = _opener_of(made, index).correlations
        return found

    return find
