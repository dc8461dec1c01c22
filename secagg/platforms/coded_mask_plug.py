"""Coded masks, for clients whose processes live as long as their sessions."""

from __future__ import annotations

from secagg.protocols.coded_mask import CodedMaskHelpers, CodedMaskMember, Floors, open_session
from secagg.session.roles import ServerSession

from .floors import MOST_LENGTH
from .plugs import NodeSide, ServerSide


def opened(side: ServerSide) -> ServerSession:
    """Begin a session."""
    return open_session(side.subject, side.chosen, side.invited, CodedMaskHelpers(coins=side.coins))


def member(side: NodeSide) -> CodedMaskMember:
    """Return a client; what it has uploaded is charged where its update is made."""
    settings = side.settings
    floors = Floors(
        modes=settings.accepted_modes,
        suites=settings.accepted_suites,
        minimum_cohort=settings.minimum_cohort,
        assumed_corrupted=settings.assumed_corrupted,
        minimum_modulus_bits=settings.minimum_modulus_bits,
        maximum_length=MOST_LENGTH,
        maximum_population=settings.maximum_population,
    )
    return CodedMaskMember(side.client, floors=floors, coins=side.coins, charge=lambda _: None)
