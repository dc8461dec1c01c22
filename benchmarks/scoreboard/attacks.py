"""The attacks of the scoreboard, and the reports of their outcomes.

It imports only the standard library, because every library's script runs in a separate environment.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import NamedTuple

ATTACKS = {
    "inconsistent dropouts": "The server reports one client as both present and dropped, to learn both of its secrets.",
    "cohort of one": "The server runs the protocol with one client, so the sum is its update.",
    "sum below a floor": "The server keeps few of many clients, so the sum reveals much about each.",
    "the round again": "The server repeats the round without one client and subtracts the sums.",
    "replayed messages": "The server replays messages of a finished round to get a second answer.",
    "key in the middle": "The server sends its own keys in place of other clients'.",
    "malformed upload": "One client sends data that does not decode, and the round fails for all.",
    "silent overflow": "Honest values within their range have a sum that wraps without an error.",
    "predictable masks": "Part of a mask is known, and the rest is computed from it.",
}


class Outcome(NamedTuple):
    """Outcome of an attack, and one line with the evidence."""

    verdict: str
    why: str


def succeeded(why: str) -> Outcome:
    """Report that the script reached the attack's goal."""
    return Outcome("succeeded", why)


def refused(why: str) -> Outcome:
    """Report that the library stopped the attack, or that its result is useless."""
    return Outcome("refused", why)


def not_applicable(why: str) -> Outcome:
    """Report that the library has no target for the attack."""
    return Outcome("not applicable", why)


def not_shown(why: str) -> Outcome:
    """Report that a defence is missing or weak, and that no attack was run."""
    return Outcome("not shown", why)


def report(package: str, what: str, honest: Callable[[], None], attacks: Mapping[str, Callable[[], Outcome]]) -> None:
    """Run an honest round, then every attack, and print the outcomes as JSON; a failed check ends the script."""
    honest()
    assert attacks.keys() == ATTACKS.keys(), attacks.keys() ^ ATTACKS.keys()
    rows = {name: attacks[name]()._asdict() for name in ATTACKS}
    head = {"package": package, "version": version(package), "what": what, "python": platform.python_version()}
    print("\n" + json.dumps({**head, "attacks": rows}))
