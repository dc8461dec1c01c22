"""Secure aggregation with pairwise masks: SecAgg and SecAgg+, one code path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.faces import lazy

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import PairwiseMember as PairwiseMember
    from .client_record import Recorder as Recorder
    from .configuration import SessionConfiguration as SessionConfiguration
    from .floors import ClientFloors as ClientFloors
    from .graph import Topology as Topology
    from .plan import PairwiseSettings as PairwiseSettings
    from .plan import SessionPlan as SessionPlan
    from .plan import plan_session as plan_session
    from .recovery import Transcript as Transcript
    from .recovery import revealed_sets as revealed_sets
    from .server import Server as Server
    from .session import PairwiseHelpers as PairwiseHelpers
    from .session import open_session as open_session
    from .thresholds import CURIOUS_PRIVACY_BITS as CURIOUS_PRIVACY_BITS
    from .transitions import ClientState as ClientState
    from .transitions import ServerState as ServerState
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "client": "Client PairwiseMember",
            "client_record": "Recorder",
            "configuration": "SessionConfiguration",
            "floors": "ClientFloors",
            "graph": "Topology",
            "plan": "PairwiseSettings SessionPlan plan_session",
            "recovery": "Transcript revealed_sets",
            "server": "Server",
            "session": "PairwiseHelpers open_session",
            "thresholds": "CURIOUS_PRIVACY_BITS",
            "transitions": "ClientState ServerState",
        },
    )
