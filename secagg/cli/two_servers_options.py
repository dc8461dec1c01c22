"""The options of ``secagg two-servers``; the protocol is imported when one of its commands runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from .lazily import when_run


def add_two_servers_options(command: argparse.ArgumentParser) -> None:
    """Declare the options of ``secagg two-servers``."""
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(
        commands.add_parser(
            "serve",
            help="server 1, for all rounds that server 0 offers and these floors admit",
            description="Run server 1 until SIGTERM or SIGINT, for a server 0 that offers it a configuration for each "
            "round, as a Flower app's does. Started again with the same files it goes on with the round that ran.",
        )
    )
    _add_keys(
        commands.add_parser(
            "keys",
            help="the keys of one operator; with the other one's public keys, the file that names both servers",
            description="Make one operator's keys: a private file, and a public one for the other operator. With "
            "--peer, write servers.json from both public files; it comes out alike at both operators, who compare "
            "its fingerprint over another channel.",
        )
    )
    show = commands.add_parser("show", help="say what a file holds: keys (their public part), servers, a journal, ...")
    show.add_argument("file", type=Path)
    show.set_defaults(run=when_run("two-servers show"))
    erase = commands.add_parser(
        "erase",
        help="overwrite and remove the journal of a round that is given up",
        description="Overwrite and remove the journal of the round that ran when server 1 ended. No server goes on "
        "with that round afterwards. A round that was released has erased its journal by itself.",
    )
    erase.add_argument("--journal", type=Path, required=True, metavar="DIR", help="as for serve")
    erase.set_defaults(run=when_run("two-servers erase"))


def _add_keys(command: argparse.ArgumentParser) -> None:
    command.add_argument("--role", type=int, choices=(0, 1), help="which of the two servers is this operator's")
    command.add_argument("--out", type=Path, default=Path("keys"), metavar="DIR", help="(default: %(default)s)")
    command.add_argument("--peer", type=Path, metavar="FILE", help="the other operator's public file")
    command.add_argument("--roster", type=Path, metavar="FILE", help="of the clients (default: DIR/roster.json)")
    command.add_argument("--trial", action="store_true", help="both operators' keys in one folder: protects nobody")
    command.set_defaults(run=when_run("two-servers keys"))


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where server 0 connects")
    command.add_argument("--keys", type=Path, required=True, metavar="FILE", help="server 1's own key file")
    command.add_argument("--servers", type=Path, required=True, metavar="FILE", help="as `keys --peer` writes it")
    command.add_argument("--journal", type=Path, required=True, metavar="DIR", help="kept for as long as the keys")
    command.add_argument("--minimum-cohort", type=int, required=True, metavar="N", help="no sum is over fewer clients")
    command.add_argument("--maximum-cohort", type=int, default=10_000, metavar="N", help="(default: %(default)s)")
    command.add_argument(
        "--maximum-lanes",
        type=int,
        default=1 << 27,
        metavar="N",
        help="the most counters and ring elements of a round (default: %(default)s)",
    )
    command.add_argument(
        "--maximum-hours", type=int, default=24, metavar="N", help="how long a round may be (default: %(default)s)"
    )
    command.add_argument("--task", default="", metavar="PREFIX", help="what every task begins with (default: any)")
    command.add_argument("--suites", default="classic,hybrid", help="that are accepted (default: %(default)s)")
    command.add_argument("--threads", type=int, default=1, help="how many threads evaluate (default: %(default)s)")
    command.set_defaults(run=when_run("two-servers serve"))
