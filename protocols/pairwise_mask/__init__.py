"""Secure aggregation with pairwise masks: SecAgg and SecAgg+, one code path."""

from __future__ import annotations

from .client import Client
from .configuration import SessionConfiguration
from .floors import ClientFloors
from .graph import Topology
from .member import ClientInput, LateInput, SessionTerms
from .plan import SessionPlan, plan_session
from .revealed_sets import Transcript, revealed_sets
from .server import Outgoing, Server
from .session import PairwiseHelpers, PairwiseMember, PairwiseServerSession, open_session
from .settings import PairwiseSettings
from .thresholds import CURIOUS_PRIVACY_BITS
from .transitions import ClientState, ServerState

__all__ = [
    "CURIOUS_PRIVACY_BITS",
    "Client",
    "ClientFloors",
    "ClientInput",
    "ClientState",
    "LateInput",
    "Outgoing",
    "PairwiseHelpers",
    "PairwiseMember",
    "PairwiseServerSession",
    "PairwiseSettings",
    "Server",
    "ServerState",
    "SessionConfiguration",
    "SessionPlan",
    "SessionTerms",
    "Topology",
    "Transcript",
    "open_session",
    "plan_session",
    "revealed_sets",
]
