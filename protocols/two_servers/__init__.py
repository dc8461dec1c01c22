"""Secure indexing with two servers that do not collude; what platforms need is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration import SERVERS, IndexingConfiguration
    from .floors import IndexingFloors
    from .journal import FileJournal, RoundFile
    from .lanes.fields import MODULI
    from .lanes.groups import RingLanes
    from .ledger import UploadLedger
    from .less_protected import NoJournal, NoRoundFile
    from .message_sizes import exchange_bytes
    from .operators.process import PeerLink, serve_standing
    from .operators.server_keys import OperatorKeys, ServerKeys, trial_server_keys
    from .operators.standing_rules import StandingFloors, StandingRounds, lanes_of
    from .operators.standing_server import StandingServer, asking
    from .point_functions.shape import MAXIMUM_CODEWORDS, PointFunctionShape, tree_bits
    from .session import (
        TwoServersHelpers,
        TwoServersMember,
        TwoServersSettings,
        configure,
        open_session,
        simulated_servers,
    )

_MODULES = {
    "FileJournal": "journal",
    "IndexingConfiguration": "configuration",
    "IndexingFloors": "floors",
    "MAXIMUM_CODEWORDS": "point_functions.shape",
    "MODULI": "lanes.fields",
    "NoJournal": "less_protected",
    "NoRoundFile": "less_protected",
    "OperatorKeys": "operators.server_keys",
    "PeerLink": "operators.process",
    "PointFunctionShape": "point_functions.shape",
    "RingLanes": "lanes.groups",
    "RoundFile": "journal",
    "SERVERS": "configuration",
    "ServerKeys": "operators.server_keys",
    "StandingFloors": "operators.standing_rules",
    "StandingRounds": "operators.standing_rules",
    "StandingServer": "operators.standing_server",
    "TwoServersHelpers": "session",
    "TwoServersMember": "session",
    "TwoServersSettings": "session",
    "UploadLedger": "ledger",
    "asking": "operators.standing_server",
    "configure": "session",
    "exchange_bytes": "message_sizes",
    "lanes_of": "operators.standing_rules",
    "open_session": "session",
    "serve_standing": "operators.process",
    "simulated_servers": "session",
    "tree_bits": "point_functions.shape",
    "trial_server_keys": "operators.server_keys",
}

__all__ = [
    "MAXIMUM_CODEWORDS",
    "MODULI",
    "SERVERS",
    "FileJournal",
    "IndexingConfiguration",
    "IndexingFloors",
    "NoJournal",
    "NoRoundFile",
    "OperatorKeys",
    "PeerLink",
    "PointFunctionShape",
    "RingLanes",
    "RoundFile",
    "ServerKeys",
    "StandingFloors",
    "StandingRounds",
    "StandingServer",
    "TwoServersHelpers",
    "TwoServersMember",
    "TwoServersSettings",
    "UploadLedger",
    "asking",
    "configure",
    "exchange_bytes",
    "lanes_of",
    "open_session",
    "serve_standing",
    "simulated_servers",
    "tree_bits",
    "trial_server_keys",
]


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
