"""Pairwise masks: how a run's settings plan a session, and a node's become floors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from secagg.protocols.pairwise_mask import (
    ClientFloors,
    PairwiseHelpers,
    PairwiseMember,
    Recorder,
    Server,
    charged_elsewhere,
    open_session,
)
from secagg.session.sealed_state import FileLatch

from .floors import MOST_LENGTH, NodeSettings
from .plugs import NodeSide, ServerSide


def opened(side: ServerSide) -> Server:
    """Begin a session."""
    helpers = PairwiseHelpers(coins=side.coins)
    if side.roster is not None:
        helpers = replace(helpers, authority=side.authority)
    return open_session(side.subject, side.chosen, side.invited, helpers)


def floors_of(settings: NodeSettings) -> ClientFloors:
    """Return the floors that every offer is compared with, or refuse those that protect nobody."""
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
        charge=charged_elsewhere,
        recording=partial(Recorder, FileLatch(side.states.beside("latches"))),
        noise=side.noise,
        privacy=side.privacy,
    )
