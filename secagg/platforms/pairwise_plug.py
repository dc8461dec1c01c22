"""Pairwise masks in Flower: how a run's settings plan a session, and a node's become floors."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from secagg.protocols.pairwise_mask import (
    ClientFloors,
    PairwiseHelpers,
    PairwiseMember,
    PairwiseSettings,
    Server,
    open_session,
)
from secagg.session.latch import FileLatch

from .floors import MOST_LENGTH, NodeSettings
from .plugs import NodeSide, Plug, ServerSide
from .settings import GRAPHS, MODES


def opened(side: ServerSide) -> Server:
    """Begin a session."""
    settings = side.settings
    tolerated = settings.tolerated_dropouts(side.population)
    # In a full graph a client that never advertises is as one that drops out later. A sparse graph is planned for
    # both, half and half.
    late = tolerated if settings.graph == "full" else tolerated // 2
    planned = PairwiseSettings(
        mode=MODES[settings.mode],
        suite=side.suite,
        topology=GRAPHS[settings.graph],
        population=side.population,
        corrupted=settings.corrupted,
        dropped=tolerated - late,
        late=late,
        minimum_cohort=settings.minimum_cohort or None,
        maximum_weight=settings.heaviest,
        privacy_bits=settings.privacy_bits or None,
        noise_multiplier=side.noise.noise_multiplier,
        l2_bounds=side.noise.l2_bounds,
    )
    helpers = PairwiseHelpers(coins=side.coins)
    if side.roster is not None:
        helpers = replace(helpers, authority=side.authority)
    return open_session(side.subject, planned, side.invited, helpers)


def floors_of(settings: NodeSettings) -> ClientFloors:
    """Return the floors that every offer is compared with.

    Raises:
        InvalidParameters: they protect nobody, or name a mode or a suite that there is not.
    """
    return ClientFloors(
        suites=settings.accepted_suites,
        modes=settings.accepted_modes,
        minimum_cohort=settings.minimum_cohort,
        minimum_threshold=settings.minimum_threshold,
        minimum_modulus_bits=settings.minimum_modulus_bits,
        maximum_length=MOST_LENGTH,
        maximum_population=settings.maximum_population,
        assumed_corrupted=settings.assumed_corrupted,
        privacy_bits=settings.privacy_bits,
    )


def member(side: NodeSide) -> PairwiseMember:
    """Return a client; what it has uploaded is charged where its update is made."""
    identity = side.certified
    return PairwiseMember(
        side.client,
        floors=floors_of(side.settings),
        coins=side.coins,
        authority=identity.authority if identity else None,
        signing_key=identity.signing_key if identity else None,
        certificate=identity.certificate if identity else None,
        latch=FileLatch(side.latches),
        noise=side.noise,
        privacy=side.privacy,
    )


PLUG: Final = Plug(open=opened, member=member)
