"""The options of keys and of helpers that stand; a protocol is imported when one of its commands runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def when_run(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Return a command that imports its function, and calls it with its options."""

    def run(options: argparse.Namespace) -> int:
        command: Callable[[argparse.Namespace], int] = getattr(import_module(module), name)
        return command(options)

    return run


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg enclave``, ``keys``, ``two-servers`` and ``holder``."""
    _add_enclave(commands.add_parser("enclave", help="the trusted part of the enclave protocol"))
    _add_every_key(commands)
    _add_every_key(commands.add_parser("flower", help="keys, by an older name").add_subparsers(required=True))
    _add_two_servers(
        commands.add_parser("two-servers", help="of two servers: an operator's keys, and the standing server 1")
    )
    _add_holder(commands)
    _add_site(commands.add_parser("nvflare", help="a site of NVFlare").add_subparsers(required=True, metavar="COMMAND"))


def _add_site(kinds: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    site = kinds.add_parser("site", help="make a site answer secure sums alone, whatever a job wants; show it first")
    site.add_argument("kit", type=Path, help="the folder of the site, with local and startup")
    site.add_argument(
        "--floors", nargs="+", default=[], metavar="KEY=VALUE", help="for every job, such as minimum-cohort=10"
    )
    site.add_argument("--analytics", action="store_true", help="let events that scripts log leave the site")
    site.add_argument("--closed", action="store_true", help="run no code of a job, which stops hostile jobs too")
    site.add_argument(
        "--script", type=Path, action="append", default=[], metavar="FILE", help="with --closed: jobs may run it"
    )
    site.add_argument("--allow", action="append", default=[], metavar="CLASS", help="with --closed: jobs may use it")
    site.add_argument("--write", action="store_true", help="change the files; without it they are only shown")
    site.set_defaults(run=when_run("secagg.nvflare.site_files", "write_site"))


def _add_holder(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    holder = commands.add_parser("holder", help="a standing holder of the protocol with one message a client")
    kinds = holder.add_subparsers(required=True, metavar="COMMAND")
    keys = kinds.add_parser("keys", help="make an identity, of a holder or of the authority, and print its public key")
    keys.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the private key goes")
    keys.set_defaults(run=when_run("secagg.cli.holder", "make_key"))
    record = kinds.add_parser(
        "record",
        help="as the authority: sign who holds in an epoch",
        description="Sign an epoch's holders, in their order. List operators that do not work together: what any "
        "--corrupted of them know tells nothing, and no more than that is promised.",
    )
    record.add_argument(
        "--authority",
        type=Path,
        required=True,
        metavar="FILE",
        help="the authority's private key, of `secagg holder keys` or `secagg keys`",
    )
    listed = record.add_mutually_exclusive_group(required=True)
    listed.add_argument("--holder", action="append", metavar="HEX", help="a holder's public key; once for each")
    listed.add_argument(
        "--client", action="append", type=int, metavar="ID", help="a client that holds; once for each, with --roster"
    )
    record.add_argument("--roster", type=Path, metavar="FILE", help="of `secagg keys`, with --client")
    record.add_argument("--number", type=int, required=True, metavar="N", help="of the epoch; above every earlier one")
    record.add_argument("--corrupted", type=int, default=1, help="how many may work with the server (default: 1)")
    record.add_argument("--absent", type=int, default=0, help="how many others may be away (default: 0)")
    record.add_argument(
        "--rule", choices=("one_answer", "certified"), help="default: one_answer where it suits the holders"
    )
    record.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="default: classic")
    record.add_argument("--hours", type=float, default=24.0, help="how long the epoch lasts (default: 24)")
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the record goes")
    record.set_defaults(run=when_run("secagg.cli.holder", "sign_record"))
    serve = kinds.add_parser(
        "serve",
        help="hold in one epoch, until SIGTERM or SIGINT",
        description="Hold in one epoch. Started again with the same arguments it resumes from its journal; started "
        "from a backup, or after a reboot, it refuses, because it cannot know what it has answered.",
    )
    serve.add_argument("--record", type=Path, required=True, metavar="FILE", help="as `secagg holder record` makes it")
    serve.add_argument("--key", type=Path, required=True, metavar="FILE", help="this holder's private key")
    serve.add_argument(
        "--authority",
        required=True,
        metavar="HEX",
        help="the public key of the authority it believes, or the file of a roster that the operator trusts",
    )
    serve.add_argument("--journal", type=Path, required=True, metavar="DIR", help="a folder that no backup copies")
    serve.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where the server connects")
    serve.add_argument("--minimum-cohort", type=int, default=3, metavar="N", help="no sum is over fewer (default: 3)")
    serve.add_argument("--corrupted", type=int, default=1, metavar="N", help="least bound of the epoch (default: 1)")
    serve.add_argument("--minimum-holders", type=int, default=4, metavar="N", help="least of the epoch (default: 4)")
    serve.set_defaults(run=when_run("secagg.cli.holder", "serve_holder"))


def _add_two_servers(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(
        commands.add_parser(
            "serve",
            help="server 1, for all rounds that server 0 offers and these floors admit",
            description="Run server 1 until SIGTERM or SIGINT, for a server 0 that offers it a configuration for each "
            "round, as a Flower app's does. Started again it knows which rounds it began; the one that ran is over.",
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
    show.set_defaults(run=when_run("secagg.cli.two_servers", "show"))


def _add_keys(command: argparse.ArgumentParser) -> None:
    command.add_argument("--role", type=int, choices=(0, 1), help="which of the two servers is this operator's")
    command.add_argument("--out", type=Path, default=Path("keys"), metavar="DIR", help="(default: %(default)s)")
    command.add_argument("--peer", type=Path, metavar="FILE", help="the other operator's public file")
    command.add_argument("--roster", type=Path, metavar="FILE", help="of the clients (default: DIR/roster.json)")
    command.add_argument("--trial", action="store_true", help="both operators' keys in one folder: protects nobody")
    command.set_defaults(run=when_run("secagg.cli.two_servers", "make_keys"))


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
    command.set_defaults(run=when_run("secagg.cli.two_servers", "serve"))


def _add_enclave(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    served = commands.add_parser(
        "serve",
        help="run the trusted part in a process of its own, behind a Unix socket",
        description="Run the trusted part in a process of its own, until SIGTERM or SIGINT. Its evidence is simulated: "
        "without hardware it protects nobody from the owner of this machine.",
    )
    served.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where its host connects")
    served.add_argument("--threads", type=int, default=1, help="how many threads expand masks (default: %(default)s)")
    served.add_argument("--memory", type=int, metavar="MIB", help="how much an epoch may need (default: 4096)")
    served.set_defaults(run=when_run("secagg.cli.serving", "serve_enclave"))


def _add_every_key(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    keys = commands.add_parser(
        "keys",
        help="an authority's key, a key for each client, and a roster",
        description="Write an authority's key, a key file for each client, and the roster that the server is given. "
        "Run it again with another --first for more clients; keys that exist stay as they are.",
    )
    keys.add_argument("--clients", type=int, required=True, help="how many keys to make")
    keys.add_argument("--first", type=int, default=0, help="the id of the first of them (default: %(default)s)")
    keys.add_argument("--out", type=Path, default=Path("keys"), help="the folder (default: %(default)s)")
    keys.add_argument(
        "--trial-servers", action="store_true", help="for a trial, the keys of both of two servers as well"
    )
    keys.set_defaults(run=when_run("secagg.cli.keys", "make_all_keys"))
