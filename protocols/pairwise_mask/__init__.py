"""Secure aggregation with pairwise masks: SecAgg and SecAgg+, one code path."""

from __future__ import annotations

from secagg.protocols.pairwise_mask.client import Client
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.graph import Topology
from secagg.protocols.pairwise_mask.member import ClientInput, SessionTerms
from secagg.protocols.pairwise_mask.plan import SessionPlan, plan_session
from secagg.protocols.pairwise_mask.revealed_sets import Transcript, revealed_sets
from secagg.protocols.pairwise_mask.server import Outgoing, Server
from secagg.protocols.pairwise_mask.transitions import ClientState, ServerState

__all__ = [
    "Client",
    "ClientInput",
    "ClientState",
    "Outgoing",
    "Server",
    "ServerState",
    "SessionConfiguration",
    "SessionPlan",
    "SessionTerms",
    "Topology",
    "Transcript",
    "plan_session",
    "revealed_sets",
]
