"""Pairwise masks as a session: four or five stages, the third of which takes the updates."""

from __future__ import annotations

from dataclasses import dataclass

from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.session.roles import Subject

from .configuration import NO_AUTHORITY, noise_of
from .plan import PairwiseSettings
from .server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseHelpers:
    """Resources of a server; it has no helper."""

    coins: Coins
    authority: bytes = NO_AUTHORITY
    """The public key of who certifies clients; for active mode."""
    threads: int = 1


def open_session(
    subject: Subject, settings: PairwiseSettings, invited: frozenset[ClientId] | None, helpers: PairwiseHelpers
) -> Server:
    """Begin a session.

    Raises:
        InvalidParameters: no such session is safe; the message says what to relax.
    """
    population = settings.population if invited is None else len(invited)
    if population is None:
        raise InvalidParameters("settings.population says how many clients are invited, unless they are named")
    plan = settings.plan(subject, population, helpers.authority, helpers.coins)
    noise = noise_of(plan.configuration, settings, settings.corrupted)
    return Server(plan, invited, threads=helpers.threads, noise=noise)
