"""The options of ``secagg serve``, ``secagg add``, ``secagg contribute`` and ``secagg tunnel``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from secagg.cli import spreading
from secagg.cli.helper_options import when_run
from secagg.session.registry import names


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add the four commands."""
    serve = commands.add_parser(
        "serve",
        help="hold one sum over HTTP, for clients that run `secagg contribute`",
        description="Hold one sum and write the mean of its updates. Started again with the same arguments after a "
        "crash it resumes, where the protocol can. SIGTERM stops it, and keeps what it resumes from; SIGHUP has it "
        "read renewed files of TLS.",
    )
    serve.add_argument("--protocol", choices=names(), default="pairwise", help="who adds up (default: %(default)s)")
    serve.add_argument("--values", type=int, help="how many an update has")
    serve.add_argument("--clip", type=float, help="values beyond it are clipped")
    serve.add_argument("--bits", type=int, default=16, help="of one value (default: %(default)s)")
    serve.add_argument(
        "--statistics", type=Path, metavar="FILE", help="sum what this declaration asks for; no --values"
    )
    serve.add_argument("--clients", type=int, help="how many are invited, 0 and up; with a roster, all of it")
    serve.add_argument(
        "--group",
        metavar="K/N",
        help="invite the K-th of N groups of them, and write its sum to --out; `secagg add` adds those of all groups",
    )
    serve.add_argument("--task", default="sum", help="its name; clients name the same (default: %(default)s)")
    serve.add_argument("--round", type=int, help="goes up within a task (default: the time in seconds)")
    serve.add_argument("--listen", default="127.0.0.1:8750", metavar="HOST:PORT", help="(default: %(default)s)")
    serve.add_argument("--behind-proxy", action="store_true", help="TLS ends at a proxy before this server")
    serve.add_argument(
        "--metrics-token",
        type=Path,
        metavar="FILE",
        help="token that /status and /metrics ask for; without it /status is for this machine alone",
    )
    serve.add_argument("--client-certs", type=Path, metavar="FILE", help="mutual TLS: whose certificates are let in")
    serve.add_argument("--state", type=Path, metavar="DIR", help="folder of the session, to resume it after a crash")
    serve.add_argument("--exchange-seconds", type=float, default=60.0, help="for a stage (default: %(default)s)")
    serve.add_argument("--training-seconds", type=float, default=600.0, help="for the updates (default: %(default)s)")
    serve.add_argument(
        "--patience",
        type=float,
        metavar="SHARE",
        help="with enough answers, wait so much of the time until then (default: for all)",
    )
    serve.add_argument(
        "--out", type=Path, metavar="FILE", help="where the mean goes, as .npy; or the statistics, as JSON"
    )
    serve.add_argument(
        "--page",
        action="store_true",
        help="serve a page on which visitors draw and see the sum, one session after another; needs no other option",
    )
    serve.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of https://HOST ask, by exact name",
    )
    spreading.add_options(serve)
    _add_common(serve, "a setting of the server, as an app of Flower has it without `secagg-`: roster=keys/roster.json")
    serve.set_defaults(run=when_run("secagg.cli.wire.server", "run_serve"))
    add = commands.add_parser(
        "add",
        help="add what the servers of all groups released, and write the mean",
        description="Add the sums of groups of clients, each written by `secagg serve --group K/N`, and write the mean "
        "of all updates. Sums of other plans or rounds are refused, and clients who are in two.",
    )
    add.add_argument("sums", type=Path, nargs="+", metavar="FILE", help="the sum of one group")
    add.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the mean goes, as .npy")
    add.set_defaults(run=when_run("secagg.cli.wire.groups", "run_add"))
    _add_contribute(commands.add_parser("contribute", help="add one update to the sum that a server holds"))
    tunnel = commands.add_parser(
        "tunnel",
        help="mutual TLS between operators: a Unix socket here stands for one there",
        description="Carry connections until SIGTERM or SIGINT; SIGHUP has it read renewed files of TLS.",
    )
    side = tunnel.add_mutually_exclusive_group(required=True)
    side.add_argument("--listen", metavar="HOST:PORT", help="for the other operator; a helper listens at --socket")
    side.add_argument("--connect", metavar="HOST:PORT", help="to the other operator; --socket is made here")
    tunnel.add_argument("--socket", type=Path, required=True, metavar="PATH", help="the Unix socket on this side")
    tunnel.add_argument("--peer", type=Path, required=True, metavar="FILE", help="the other operator's certificate")
    _add_credentials(tunnel, is_required=True)
    tunnel.set_defaults(run=when_run("secagg.cli.wire.shared", "run_tunnel"))


def _add_contribute(contribute: argparse.ArgumentParser) -> None:
    contribute.add_argument("url", metavar="URL", help="of the server")
    what = contribute.add_mutually_exclusive_group(required=True)
    what.add_argument("--update", type=Path, metavar="FILE", help="values, as .npy")
    what.add_argument("--statistics", type=Path, metavar="FILE", help="the declaration that this site answers")
    contribute.add_argument("--data", metavar="FILE", help="of --statistics: a .csv, or site.py:FUNCTIONS")
    contribute.add_argument("--data-version", default="1", help="its owner's name for the data (default: %(default)s)")
    contribute.add_argument("--protocol", choices=names(), default="pairwise", help="no other (default: %(default)s)")
    who = contribute.add_mutually_exclusive_group(required=True)
    who.add_argument("--identity", type=Path, metavar="FILE", help="this client's key file, of `secagg keys`")
    who.add_argument("--client", type=int, metavar="N", help="this client's number, where clients have no keys")
    contribute.add_argument("--task", default="sum", help="no other is answered (default: %(default)s)")
    contribute.add_argument("--server-cert", type=Path, metavar="FILE", help="the server's, or of its issuer")
    contribute.add_argument("--state", type=Path, metavar="DIR", help="where progress is sealed (default: in memory)")
    contribute.add_argument("--patience", type=float, default=120.0, help="seconds without a server (default: 120)")
    _add_common(contribute, "a floor of this client: minimum_cohort=10, servers=servers.json")
    contribute.set_defaults(run=when_run("secagg.cli.wire.client", "run_contribute"))


def _add_common(command: argparse.ArgumentParser, what: str) -> None:
    _add_credentials(command, is_required=False)
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=what)


def _add_credentials(command: argparse.ArgumentParser, *, is_required: bool) -> None:
    command.add_argument("--cert", type=Path, required=is_required, metavar="FILE", help="own certificate, PEM")
    command.add_argument("--key", type=Path, required=is_required, metavar="FILE", help="its private key, PEM")
