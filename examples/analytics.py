"""Federated analytics: a histogram, a mean and the frequent strings, without seeing any client's data.

Run it as `python examples/analytics.py`; it needs `pip install .` in a checkout and nothing else.
"""

import numpy as np

import secagg

HOURS = range(24)


def main() -> None:
    """Ask thirty clients three questions; three of them drop out."""
    draw = np.random.default_rng(1)
    hours = [int(hour) for hour in np.clip(draw.normal(20, 2, 30), 0, 23)]
    words = ["tea"] * 15 + ["coffee"] * 12 + [f"rarity {number}" for number in range(3)]
    minutes = {f"client {number}": np.array([draw.gamma(2.0, 15.0)]) for number in range(30)}

    busy = secagg.histogram(hours, HOURS, drop=3)
    print("when devices charge:", {hour: count for hour, count in busy.items() if count})
    assert sum(busy.values()) == 27

    frequent = secagg.heavy_hitters(words, least=5)
    print("typed by at least five clients:", frequent)
    assert frequent == {"tea": 15, "coffee": 12}

    # Values beyond 120 minutes count as 120; one step is 120 / 32767 minutes.
    result = secagg.aggregate(minutes, clip=120.0, drop=3)
    print(f"mean time: {result.mean[0]:.2f} minutes, of {len(result.counted)} clients, to {result.step:.4f}")
    expected = np.mean([np.minimum(minutes[str(name)], 120.0) for name in result.counted])
    assert abs(result.mean[0] - expected) <= result.step

    # A sum of few, or a rare value, still reveals much about a client: read LIMITATIONS, and add noise if it matters.


if __name__ == "__main__":
    main()
