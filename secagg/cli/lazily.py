"""Commands that are imported when they run, so that reading arguments loads no protocol."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Literal, assert_never

Command = Callable[[argparse.Namespace], int]
Name = Literal[
    "demo", "sizes", "plan", "enclave serve", "keys", "serve", "add", "contribute", "tunnel",
    "holder keys", "holder record", "holder serve", "two-servers serve", "two-servers keys", "two-servers show",
    "nvflare site",
]  # fmt: skip


def when_run(name: Name) -> Command:
    """Return what imports a command, and runs it with its options."""
    return partial(_run, name)


def _run(name: Name, options: argparse.Namespace) -> int:  # noqa: C901, PLR0912 -- a table
    match name:
        case "demo":
            from .demo import run_demo as command
        case "sizes":
            from .sizes import run_sizes as command
        case "plan":
            from .plan import run_plan as command
        case "enclave serve":
            from .serving import serve_enclave as command
        case "keys":
            from .keys import make_all_keys as command
        case "serve":
            from .wire.server import run_serve as command
        case "add":
            from .wire.groups import run_add as command
        case "contribute":
            from .wire.client import run_contribute as command
        case "tunnel":
            from .wire.between import run_tunnel as command
        case "holder keys":
            from .holder import make_key as command
        case "holder record":
            from .holder import sign_record as command
        case "holder serve":
            from .holder import serve_holder as command
        case "two-servers serve":
            from .two_servers import serve as command
        case "two-servers keys":
            from .two_servers import make_keys as command
        case "two-servers show":
            from .two_servers import show as command
        case "nvflare site":
            from secagg.nvflare.site_files import write_site as command
        case _:
            assert_never(name)
    return command(options)
