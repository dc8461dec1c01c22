"""Secure aggregation with pairwise masks: SecAgg and SecAgg+ in one implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from secagg.choices import Topology as Topology

    from .client import Client as Client
    from .client import PairwiseMember as PairwiseMember
    from .client_record import Recorder as Recorder
    from .configuration import SessionConfiguration as SessionConfiguration
    from .graph import CURIOUS_PRIVACY_BITS as CURIOUS_PRIVACY_BITS
    from .member import ClientState as ClientState
    from .plan import LARGEST_WHOLE_COMMITTEE as LARGEST_WHOLE_COMMITTEE
    from .plan import PairwiseOptions as PairwiseOptions
    from .plan import SessionPlan as SessionPlan
    from .plan import plan_session as plan_session
    from .recovery import Transcript as Transcript
    from .recovery import revealed_sets as revealed_sets
    from .session import PairwiseHelpers as PairwiseHelpers
    from .session import Server as Server
    from .session import ServerState as ServerState
    from .session import open_session as open_session
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "client": "Client PairwiseMember",
            "client_record": "Recorder",
            "configuration": "SessionConfiguration",
            "graph": "CURIOUS_PRIVACY_BITS Topology",
            "member": "ClientState",
            "plan": "LARGEST_WHOLE_COMMITTEE PairwiseOptions SessionPlan plan_session",
            "recovery": "Transcript revealed_sets",
            "session": "PairwiseHelpers Server ServerState open_session",
        },
    )
