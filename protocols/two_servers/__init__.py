"""Secure indexing with two servers that do not collude; what platforms need is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .floors import IndexingFloors
    from .ledger import UploadLedger
    from .less_protected import NoJournal, NoRoundFile
    from .message_sizes import exchange_bytes
    from .operators.process import PeerLink
    from .operators.server_keys import OperatorKeys, ServerKeys, trial_server_keys
    from .operators.standing_rules import StandingFloors, StandingRounds
    from .operators.standing_server import StandingServer, asking
    from .session import (
        TwoServersHelpers,
        TwoServersMember,
        TwoServersSettings,
        configure,
        open_session,
        simulated_servers,
    )

_MODULES = {
    "IndexingFloors": "floors",
    "NoJournal": "less_protected",
    "NoRoundFile": "less_protected",
    "OperatorKeys": "operators.server_keys",
    "PeerLink": "operators.process",
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
    "open_session": "session",
    "simulated_servers": "session",
    "trial_server_keys": "operators.server_keys",
}

__all__ = [
    "IndexingFloors",
    "NoJournal",
    "NoRoundFile",
    "OperatorKeys",
    "PeerLink",
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
    "open_session",
    "simulated_servers",
    "trial_server_keys",
]


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
