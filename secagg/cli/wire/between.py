"""``secagg tunnel``: mutual TLS between two operators."""

from __future__ import annotations

import argparse
import asyncio
import signal

from secagg.errors import Misuse

from .shared import address, own_credentials, running


def run_tunnel(options: argparse.Namespace) -> int:
    """Carry connections until SIGTERM or SIGINT; SIGHUP has it read renewed files."""
    from secagg.transport.tls import Ends, PinnedTls, open_tunnel, serve_tunnel

    own, text = own_credentials(options), options.listen or options.connect
    if own is None:
        raise Misuse("a tunnel has a certificate of its own")
    host, port = address("--listen" if options.listen else "--connect", text)
    tls = PinnedTls(own, options.peer, is_server=options.listen is not None)
    ends = Ends(tls=tls, socket=options.socket, host=host, port=port)
    carry = serve_tunnel if options.listen else open_tunnel

    async def carried() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, tls.renew)
        await carry(ends, lambda: print("ready", flush=True))

    running(carried)
    return 0
