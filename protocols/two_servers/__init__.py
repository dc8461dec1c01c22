"""Secure indexing with two servers that do not collude; names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from .configuration import SERVERS as SERVERS
    from .configuration import IndexingConfiguration as IndexingConfiguration
    from .offers import simulated_servers as simulated_servers
    from .point_functions.lanes import MODULI as MODULI
    from .point_functions.lanes import RingLanes as RingLanes
    from .point_functions.shape import MAXIMUM_CODEWORDS as MAXIMUM_CODEWORDS
    from .point_functions.shape import PointFunctionShape as PointFunctionShape
    from .point_functions.shape import tree_bits as tree_bits
    from .process import PeerLink as PeerLink
    from .process import serve_standing as serve_standing
    from .server_keys import OperatorKeys as OperatorKeys
    from .server_keys import ServerKeys as ServerKeys
    from .server_keys import trial_server_keys as trial_server_keys
    from .server_messages import exchange_bytes as exchange_bytes
    from .server_pair import SERVERS_FILE as SERVERS_FILE
    from .server_pair import ServerPair as ServerPair
    from .server_pair import load_operator_keys as load_operator_keys
    from .server_pair import load_server_keys as load_server_keys
    from .server_pair import load_server_pair as load_server_pair
    from .server_pair import make_server_keys as make_server_keys
    from .server_pair import make_trial_pair as make_trial_pair
    from .server_pair import public_file as public_file
    from .server_pair import server_file as server_file
    from .server_pair import write_server_pair as write_server_pair
    from .session import TwoServersHelpers as TwoServersHelpers
    from .session import TwoServersMember as TwoServersMember
    from .session import TwoServersOptions as TwoServersOptions
    from .session import configure as configure
    from .session import open_session as open_session
    from .standing_server import OperatorPolicy as OperatorPolicy
    from .standing_server import StandingRounds as StandingRounds
    from .standing_server import StandingServer as StandingServer
    from .standing_server import asking as asking
    from .standing_server import lanes_of as lanes_of
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "configuration": "IndexingConfiguration SERVERS",
            "server_messages": "exchange_bytes",
            "offers": "simulated_servers",
            "point_functions.lanes": "MODULI RingLanes",
            "process": "PeerLink serve_standing",
            "server_keys": "OperatorKeys ServerKeys trial_server_keys",
            "server_pair": (
                "SERVERS_FILE ServerPair load_operator_keys load_server_keys load_server_pair make_server_keys "
                "make_trial_pair public_file server_file write_server_pair"
            ),
            "standing_server": "OperatorPolicy StandingRounds StandingServer asking lanes_of",
            "point_functions.shape": "MAXIMUM_CODEWORDS PointFunctionShape tree_bits",
            "session": ("TwoServersHelpers TwoServersMember TwoServersOptions configure open_session"),
        },
    )
