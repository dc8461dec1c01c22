"""``secagg tunnel``: mutual TLS between two operators."""

from __future__ import annotations

import argparse

from secagg.errors import Misuse

from .shared import address, own_credentials, running


def run_tunnel(options: argparse.Namespace) -> int:
    """Carry connections until SIGTERM or SIGINT."""
    from secagg.transport.tunnel import Ends, open_tunnel, serve_tunnel

    own, text = own_credentials(options), options.listen or options.connect
    if own is None:
        raise Misuse("a tunnel has a certificate of its own")
    host, port = address("--listen" if options.listen else "--connect", text)
    ends = Ends(own=own, peer=options.peer, socket=options.socket, host=host, port=port)
    carry = serve_tunnel if options.listen else open_tunnel
    running(lambda: carry(ends, lambda: print("ready", flush=True)))
    return 0
