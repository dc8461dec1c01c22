"""Estimated seconds, against sessions that run; and what the network adds."""

from __future__ import annotations

import pytest

from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.parameters import Suite
from secagg.planning.costs import Option, PlanRequest, Scheme, compare, shapes_of_blocks
from secagg.planning.seconds import Network, Rates, rates, run_session, seconds_of
from secagg.session.registry import find, names
from secagg.session.simulated import Work

FACTOR = 4
"""What ``secagg plan`` promises."""
BLOCKS, CLIENTS = 1 << 11, 20


def option_of(protocol: str, scheme: Scheme) -> Option:
    request = PlanRequest(shapes=shapes_of_blocks(BLOCKS, 8), block_size=8, codewords=16, clients=CLIENTS)
    options = (option for option in compare(request).options if option.costs.is_checked)
    return next(option for option in options if (option.protocol, option.scheme) == (protocol, scheme))


def kinds() -> list[tuple[str, Scheme]]:
    indexed = [(name, Scheme.PRODUCT) for name in names() if IndexSegment in find(name).segments]
    return [*((name, Scheme.SCALAR) for name in names()), *indexed]


@pytest.mark.parametrize(("protocol", "scheme"), kinds())
def test_a_session_takes_what_was_estimated_within_the_factor_that_is_promised(protocol: str, scheme: Scheme) -> None:
    """Other work on this machine disturbs either side, so the best of five attempts counts."""
    option = option_of(protocol, scheme)
    ratios = list[tuple[float, float]]()
    for _ in range(5):
        rates.cache_clear()
        estimate = seconds_of(option, Suite.CLASSIC, Network())
        taken = run_session(option.entry, option.layout, CLIENTS)
        ratios.append((CLIENTS * estimate.client / taken.client_seconds, estimate.server / taken.server_seconds))
        if all(1 / FACTOR < ratio < FACTOR for ratio in ratios[-1]):
            return
    pytest.fail(f"estimates over measured seconds of client and server: {ratios}")


def test_rates_give_both_sessions_back() -> None:
    short, long = Work(word_operations=10, steps=4), Work(word_operations=1010, steps=4)
    found = Rates.between((short, 0.5), (long, 1.5))
    assert (found.of(short), found.of(long)) == pytest.approx((0.5, 1.5))
    # A disturbed measurement makes no rate negative.
    assert Rates.between((short, 0.5), (long, 0.4)) == Rates(0.125, 0.0)


def test_a_round_waits_for_every_exchange_and_for_its_bytes() -> None:
    option = option_of("pairwise", Scheme.SCALAR)
    seconds = seconds_of(option, Suite.CLASSIC, Network(megabits=8.0, latency=2.0))
    sending = (option.costs.up_bytes + option.down_bytes) / 1e6
    assert seconds.round == pytest.approx(5 * 2.0 + sending + seconds.client + seconds.server)


@pytest.mark.parametrize("network", [(0.0, 0.1), (-1.0, 0.1), (float("nan"), 0.1), (20.0, -0.1), (20.0, float("inf"))])
def test_a_network_that_is_none_is_refused(network: tuple[float, float]) -> None:
    with pytest.raises(InvalidParameters, match="--megabits is above 0 and --latency at least 0"):
        Network(*network)


def test_the_work_of_a_session_grows_with_its_layout_and_with_its_clients() -> None:
    for entry in map(find, names()):
        assert entry.costs is not None
        small, wide, many = (
            min(entry.costs(Layout((RingSegment(20, length),)), clients, Suite.CLASSIC), key=lambda form: form.up_bytes)
            for length, clients in ((1000, 20), (100_000, 20), (1000, 100))
        )
        assert wide.client.words > 9 * small.client.words
        assert wide.server.words > 9 * small.server.words
        assert many.server.steps >= 5 * small.server.steps
