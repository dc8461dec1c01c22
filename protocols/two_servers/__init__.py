"""Secure indexing with two servers that do not collude; what platforms need is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration import SERVERS as SERVERS
    from .configuration import IndexingConfiguration as IndexingConfiguration
    from .floors import IndexingFloors as IndexingFloors
    from .journal import FileJournal as FileJournal
    from .journal import RoundFile as RoundFile
    from .lanes.fields import MODULI as MODULI
    from .lanes.groups import RingLanes as RingLanes
    from .ledger import UploadLedger as UploadLedger
    from .less_protected import NoJournal as NoJournal
    from .less_protected import NoRoundFile as NoRoundFile
    from .message_sizes import exchange_bytes as exchange_bytes
    from .operators.process import PeerLink as PeerLink
    from .operators.process import serve_standing as serve_standing
    from .operators.server_keys import OperatorKeys as OperatorKeys
    from .operators.server_keys import ServerKeys as ServerKeys
    from .operators.server_keys import trial_server_keys as trial_server_keys
    from .operators.standing_rules import StandingFloors as StandingFloors
    from .operators.standing_rules import StandingRounds as StandingRounds
    from .operators.standing_rules import lanes_of as lanes_of
    from .operators.standing_server import StandingServer as StandingServer
    from .operators.standing_server import asking as asking
    from .point_functions.shape import MAXIMUM_CODEWORDS as MAXIMUM_CODEWORDS
    from .point_functions.shape import PointFunctionShape as PointFunctionShape
    from .point_functions.shape import tree_bits as tree_bits
    from .session import TwoServersHelpers as TwoServersHelpers
    from .session import TwoServersMember as TwoServersMember
    from .session import TwoServersSettings as TwoServersSettings
    from .session import configure as configure
    from .session import open_session as open_session
    from .session import simulated_servers as simulated_servers

_NAMES = {
    "configuration": "SERVERS IndexingConfiguration",
    "floors": "IndexingFloors",
    "journal": "FileJournal RoundFile",
    "lanes.fields": "MODULI",
    "lanes.groups": "RingLanes",
    "ledger": "UploadLedger",
    "less_protected": "NoJournal NoRoundFile",
    "message_sizes": "exchange_bytes",
    "operators.process": "PeerLink serve_standing",
    "operators.server_keys": "OperatorKeys ServerKeys trial_server_keys",
    "operators.standing_rules": "StandingFloors StandingRounds lanes_of",
    "operators.standing_server": "StandingServer asking",
    "point_functions.shape": "MAXIMUM_CODEWORDS PointFunctionShape tree_bits",
    "session": "TwoServersHelpers TwoServersMember TwoServersSettings configure open_session simulated_servers",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
