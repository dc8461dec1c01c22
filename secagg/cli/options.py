"""The options of keys, of helpers that stand and of sums over HTTP; each command is imported when it runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.registry import names, require_name
from secagg.wire import FORMS

from . import spreading

_SETTING: Final = re.compile(r"(?<![\w./-])(the server's )?secagg-([a-z]+(?:-[a-z]+)*)(?!\.?[\w/-])")
"""A setting, as platforms name it and as they say it in errors; no file of such a name."""
_OF_SERVER: Final = "clip"
"""Setting that has an option of its own at a server, and that a client's log may name."""
_ADDRESS: Final = "unix:PATH, tcp:HOST:PORT or vsock:CONTEXT:PORT"
PROTOCOLS: Final = f"aggregation protocol: {', '.join(names())} (default: %(default)s)"


def protocol_name(text: str) -> str:
    """Return a protocol's name; an error says which one may be meant."""
    try:
        return require_name(text)
    except InvalidParameters as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def in_own_words(text: str, options: argparse.Namespace) -> str:
    """Return a text that names the settings of platforms with the options of a command that has ``--set``."""
    if not hasattr(options, "set"):
        return text

    def option(found: re.Match[str]) -> str:
        if found[2] == _OF_SERVER and found[2] not in options:
            return f"the server's --{found[2]}"
        return f"{found[1] or ''}--{'' if found[2] in options else 'set '}{found[2]}"

    return _SETTING.sub(option, text)


def when_run(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Return a command that imports its function, and calls it with its options."""

    def run(options: argparse.Namespace) -> int:
        command: Callable[[argparse.Namespace], int] = getattr(import_module(module), name)
        return command(options)

    return run


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add the commands of keys, helpers and NVFlare, and those of sums over HTTP."""
    _add_enclave(commands.add_parser("enclave", help="the trusted part of the enclave protocol"))
    _add_every_key(commands)
    _add_server(commands.add_parser("server", help="the second of two servers, and the keys of either operator"))
    _add_holder(commands)
    _add_node(commands.add_parser("node", help="a client's node: its state, and a site of NVFlare"))
    _add_wire(commands)


def _add_node(node: argparse.ArgumentParser) -> None:
    commands = node.add_subparsers(required=True, metavar="COMMAND")
    trust = commands.add_parser(
        "trust", help="take a client's state for the newest after chmod -R, chown -R or a move to another machine"
    )
    trust.add_argument("folder", type=Path, nargs="?", help="with its state.db (default: SECAGG_LEDGER_DIRECTORY)")
    trust.set_defaults(run=when_run("secagg.cli.state", "run_trust"))
    site = commands.add_parser(
        "nvflare", help="make a site of NVFlare answer secure sums only, whatever a job wants; show it first"
    )
    site.add_argument("kit", type=Path, help="the folder of the site, with local and startup")
    site.add_argument(
        "--policy", nargs="+", default=[], metavar="KEY=VALUE", help="for every job, such as minimum-cohort=10"
    )
    site.add_argument("--tracking", action="store_true", help="let events that scripts log leave the site")
    site.add_argument("--closed", action="store_true", help="run no code of a job, which stops hostile jobs too")
    site.add_argument(
        "--script", type=Path, action="append", default=[], metavar="FILE", help="with --closed: jobs may run it"
    )
    site.add_argument(
        "--interpreter",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --closed: program that may run these scripts in processes of their own, such as python",
    )
    site.add_argument("--allow", action="append", default=[], metavar="CLASS", help="with --closed: jobs may use it")
    site.add_argument("--write", action="store_true", help="change the files; without it they are only shown")
    site.set_defaults(run=when_run("secagg.nvflare.site_files", "write_site"))


def _add_holder(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    holder = commands.add_parser("holder", help="a standing holder of the protocol with one message a client")
    kinds = holder.add_subparsers(required=True, metavar="COMMAND")
    keys = kinds.add_parser("keys", help="make an identity, of a holder or of the authority, and print its public key")
    keys.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the private key goes")
    keys.set_defaults(run=when_run("secagg.cli.operators", "make_key"))
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
    record.add_argument(
        "--holder", action="append", required=True, metavar="HEX", help="a holder's public key; once for each"
    )
    record.add_argument("--number", type=int, required=True, metavar="N", help="of the epoch; above every earlier one")
    record.add_argument("--corrupted", type=int, default=1, help="how many may work with the server (default: 1)")
    record.add_argument("--absent", type=int, default=0, help="how many others may be away (default: 0)")
    record.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="default: classic")
    record.add_argument("--hours", type=float, default=24.0, help="how long the epoch lasts (default: 24)")
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the record goes")
    record.set_defaults(run=when_run("secagg.cli.operators", "sign_record"))
    serve = kinds.add_parser(
        "serve",
        help="hold in one epoch, until SIGTERM or SIGINT",
        description="Hold in one epoch. The holder's keys exist only in memory and are replaced every --key-hours. "
        "After a restart it takes part in the sums that begin later. Never clone or restore its machine.",
    )
    serve.add_argument("--record", type=Path, required=True, metavar="FILE", help="as `secagg holder record` makes it")
    serve.add_argument("--key", type=Path, required=True, metavar="FILE", help="this holder's private key")
    serve.add_argument(
        "--authority",
        required=True,
        metavar="HEX",
        help="the public key of the authority it believes, or the file of a roster that the operator trusts",
    )
    serve.add_argument("--listen", required=True, metavar="ADDRESS", help=f"where the server connects: {_ADDRESS}")
    serve.add_argument("--server", metavar="HEX", help="of tcp and vsock: the server's public key; nobody else may ask")
    more = serve.add_argument_group("limits")
    more.add_argument("--minimum-cohort", type=int, default=3, metavar="N", help="no sum is over fewer (default: 3)")
    more.add_argument("--corrupted", type=int, default=1, metavar="N", help="least bound of the epoch (default: 1)")
    more.add_argument("--minimum-holders", type=int, default=4, metavar="N", help="least of the epoch (default: 4)")
    more.add_argument(
        "--task", action="append", default=[], metavar="NAME", help="hold for this task only; once for each"
    )
    more.add_argument("--memory", type=int, default=1024, metavar="MIB", help="memory for shares (default: 1024)")
    more.add_argument(
        "--key-hours", type=float, default=12.0, metavar="H", help="lifetime of its keys, at most 24 (default: 12)"
    )
    serve.set_defaults(run=when_run("secagg.cli.operators", "serve_holder"))


def _add_server(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(
        commands.add_parser(
            "serve",
            help="server 1, for all rounds that server 0 offers and this policy admits",
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
    show.set_defaults(run=when_run("secagg.cli.operators", "show_file"))


def _add_keys(command: argparse.ArgumentParser) -> None:
    command.add_argument("--role", type=int, choices=(0, 1), help="which of the two servers is this operator's")
    command.add_argument("--out", type=Path, default=Path("keys"), metavar="DIR", help="(default: %(default)s)")
    command.add_argument("--peer", type=Path, metavar="FILE", help="the other operator's public file")
    command.add_argument("--roster", type=Path, metavar="FILE", help="of the clients (default: DIR/roster.txt)")
    command.add_argument("--trial", action="store_true", help="both operators' keys in one folder: protects nobody")
    command.set_defaults(run=when_run("secagg.cli.operators", "make_operator_keys"))


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--listen", required=True, metavar="ADDRESS", help=f"where server 0 connects: {_ADDRESS}")
    command.add_argument("--keys", type=Path, required=True, metavar="FILE", help="server 1's own key file")
    command.add_argument("--servers", type=Path, required=True, metavar="FILE", help="as `keys --peer` writes it")
    command.add_argument("--journal", type=Path, required=True, metavar="DIR", help="kept for as long as the keys")
    command.add_argument("--minimum-cohort", type=int, required=True, metavar="N", help="no sum is over fewer clients")
    more = command.add_argument_group("limits")
    more.add_argument("--maximum-cohort", type=int, default=10_000, metavar="N", help="(default: %(default)s)")
    more.add_argument(
        "--maximum-lanes",
        type=int,
        default=1 << 27,
        metavar="N",
        help="the most counters and ring elements of a round (default: %(default)s)",
    )
    more.add_argument(
        "--maximum-hours", type=int, default=24, metavar="N", help="how long a round may be (default: %(default)s)"
    )
    more.add_argument("--task", default="", metavar="PREFIX", help="what every task begins with (default: any)")
    more.add_argument("--suites", default="classic,hybrid", help="that are accepted (default: %(default)s)")
    more.add_argument("--threads", type=int, default=1, help="how many threads evaluate (default: %(default)s)")
    command.set_defaults(run=when_run("secagg.cli.operators", "serve_second_server"))


def _add_service(command: argparse.ArgumentParser, usual: str | None) -> None:
    """Add what an enclave's service is started with, here or in its machine."""
    listen = "unix:PATH, vsock:PORT or virtio:NAME" + (" (default: %(default)s)" if usual else "")
    command.add_argument("--listen", default=usual, required=not usual, metavar="ADDRESS", help=listen)
    sources = ("nsm", "tsm", "gramine", "simulated")
    command.add_argument("--evidence", required=True, choices=sources, help="who vouches for its keys; no other does")
    command.add_argument("--threads", type=int, default=1, help="how many threads expand masks (default: %(default)s)")
    memory = "limit of an epoch (default: %(default)s)"
    command.add_argument("--memory", type=int, metavar="MIB", default=256 if usual else 4096, help=memory)


def _add_enclave(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    served = commands.add_parser(
        "serve",
        help="run the trusted part in a process of its own",
        description="Run the trusted part in a process of its own, until SIGTERM or SIGINT. With simulated evidence "
        "it protects nobody from the owner of this machine.",
    )
    _add_service(served, None)
    served.set_defaults(run=when_run("secagg.cli.shared", "serve_enclave"))
    image = commands.add_parser("image", help="build the machine that an enclave runs in, the same bytes everywhere")
    for name, metavar, about in (
        ("--lock", "FILE", "SHA-256 and name of each package, with the wheel of secagg"),
        ("--inputs", "FOLDER", "where these packages are"),
        ("--out", "FOLDER", "where kernel, initramfs, command line and contents.json go"),
    ):
        image.add_argument(name, type=Path, required=True, metavar=metavar, help=about)
    _add_service(image, "virtio:secagg")
    image.add_argument("--heartbeat", action="store_true", help="tell a Nitro parent instance that it has booted")
    image.add_argument("--acpi", action="store_true", help="keep the tables of ACPI, which TDX needs and measures")
    image.set_defaults(run=when_run("secagg.cli.images", "build"))
    kinds = commands.add_parser(
        "measure", help="print the policy file that pins an image: computed here, before it runs anywhere"
    ).add_subparsers(required=True, metavar="HARDWARE")
    nitro = kinds.add_parser("nitro", help="AWS Nitro: writes image.eif as well")
    snp = kinds.add_parser("snp", help="AMD SEV-SNP, booted directly by QEMU with kernel-hashes=on")
    for each, run in ((nitro, "measure_nitro"), (snp, "measure_snp")):
        each.add_argument("image", type=Path, help="folder with vmlinuz, initramfs and cmdline")
        each.set_defaults(run=when_run("secagg.cli.images", run))
    snp.add_argument("--firmware", type=Path, required=True, metavar="FILE", help="a build of OvmfPkg/AmdSev")
    snp.add_argument("--processor", default="EPYC-Milan", help="QEMU's processor model (default: %(default)s)")
    snp.add_argument("--processors", type=int, default=1, help="number of processors (default: %(default)s)")
    endorse = commands.add_parser("endorse", help="sign a policy file as of now, for clients that pin the key")
    endorse.add_argument("policy", type=Path, help="file that pins measurements, and the least versions of hardware")
    endorse.add_argument("--key", type=Path, required=True, metavar="FILE", help="private, of `keys authority`")
    endorse.add_argument("--days", type=int, default=7, help="how long it holds, at most 90 (default: %(default)s)")
    endorse.add_argument("--out", type=Path, required=True, metavar="FILE", help="in the folder of collateral")
    endorse.set_defaults(run=when_run("secagg.cli.images", "endorse_policy"))


def _add_every_key(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    keys = commands.add_parser(
        "keys",
        help="keys of clients, and the authority's roster of them",
        description="A client makes its key with `keys new` and the authority signs its request with `keys sign`. "
        "For a trial, --clients makes the authority, all keys and the roster in one folder; run it again with another "
        "--first for more clients.",
    )
    keys.add_argument("--clients", type=int, help="for a trial: number of keys to make")
    keys.add_argument("--first", type=int, default=0, help="the id of the first of them (default: %(default)s)")
    keys.add_argument("--out", type=Path, default=Path("keys"), help="the folder (default: %(default)s)")
    keys.add_argument(
        "--trial-servers", action="store_true", help="for a trial, the keys of both of two servers as well"
    )
    keys.set_defaults(run=when_run("secagg.cli.keys", "make_all"))
    kinds = keys.add_subparsers(metavar="COMMAND")
    new = kinds.add_parser("new", help="a client: make its key, and a request to certify it")
    new.add_argument("--client", type=int, metavar="N", help="the client's number; no other client has it")
    new.add_argument("--authority", metavar="KEY", help="public key of the authority, or a roster's file")
    new.add_argument(
        "--replaces", type=Path, metavar="FILE", help="the key that this one replaces; it signs the request"
    )
    new.add_argument(
        "--kit",
        type=Path,
        metavar="PATH",
        help="folder of an NVFlare site or private key of a SuperNode, to vouch for it",
    )
    new.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the private key goes: NAME.key")
    new.set_defaults(run=when_run("secagg.cli.keys", "make_own"))
    signs = kinds.add_parser("sign", help="the authority: certify the keys of requests")
    signs.add_argument("requests", type=Path, nargs="+", metavar="REQUEST", help="request, or folder of *.request")
    signs.add_argument(
        "--replace", type=int, metavar="N", help="take a new key of client N without a proof by the key it has or had"
    )
    signs.add_argument("--days", type=int, default=365, help="until the certificates expire (default: %(default)s)")
    signs.add_argument(
        "--sites", type=Path, metavar="FILE", help="NUMBER NAME a line: kits of these sites must vouch for all requests"
    )
    signs.add_argument("--root", type=Path, metavar="FILE", help="with --sites: rootCA.pem of an NVFlare project")
    revokes = kinds.add_parser("revoke", help="the authority: revoke the keys of clients")
    revokes.add_argument("clients", type=int, nargs="+", metavar="N", help="number of a client")
    renews = kinds.add_parser("renew", help="the authority: sign the roster as of now, daily")
    rotates = kinds.add_parser("rotate", help="the authority: sign by another key from now on")
    rotates.add_argument("--new", type=Path, required=True, metavar="FILE", help="the new key; made if it is not there")
    jobs = ((signs, "sign"), (revokes, "take_back"), (renews, "sign_again"), (rotates, "rotate_key"))
    for each, run in jobs:
        each.add_argument(
            "--key", type=Path, default=Path("authority.key"), metavar="FILE", help="(default: %(default)s)"
        )
        each.add_argument(
            "--roster", type=Path, default=Path("roster.txt"), metavar="FILE", help="(default: %(default)s)"
        )
        each.set_defaults(run=when_run("secagg.cli.keys", run))
    follows = kinds.add_parser("follow", help="a client: trust its authority's next key")
    follows.add_argument("own", type=Path, metavar="KEY", help="the client's key")
    follows.add_argument("roster", type=Path, metavar="ROSTER", help="the authority's newest roster")
    follows.set_defaults(run=when_run("secagg.cli.keys", "follow_authority"))
    begins = kinds.add_parser("authority", help="make an authority's key, and print its public key")
    begins.add_argument(
        "--out", type=Path, default=Path("authority.key"), metavar="FILE", help="(default: %(default)s)"
    )
    begins.set_defaults(run=when_run("secagg.cli.keys", "begin"))


# --- Sums over HTTP ---------------------------------------------------------------------------------------------------


def _add_wire(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    serve = commands.add_parser(
        "serve",
        help="hold one sum over HTTP, for clients that run `secagg contribute`",
        usage="secagg serve (--values N --clip C | --model FILE) --clients N --out FILE [option ...]",
        description="Hold one sum and write the mean of its updates; or one for each task of a file.",
        epilog="Started again with the same arguments after a crash it resumes, where the protocol can. SIGTERM stops "
        "it, and keeps what it resumes from; SIGHUP has it read renewed files of TLS.",
    )
    serve.add_argument("--protocol", type=protocol_name, default="pairwise", help=PROTOCOLS)
    serve.add_argument("--values", type=int, help="how many an update has")
    serve.add_argument(
        "--model", type=Path, metavar="FILE", help="sum changes of its tensors, .npz or .safetensors; no --values"
    )
    serve.add_argument("--clip", type=float, help="values beyond it are clipped (default: 4.0 of --model)")
    serve.add_argument(
        "--statistics", type=Path, metavar="FILE", help="sum what this declaration asks for; no --values"
    )
    serve.add_argument("--clients", type=int, help="how many are invited, 0 and up; with a roster, all of it")
    serve.add_argument("--task", default="sum", help="its name; clients name the same (default: %(default)s)")
    serve.add_argument(
        "--tasks", type=Path, metavar="FILE", help="several tasks at once: TOML with a table [NAME] of options for each"
    )
    serve.add_argument("--listen", default="127.0.0.1:8750", metavar="HOST:PORT", help="(default: %(default)s)")
    serve.add_argument("--state", type=Path, metavar="DIR", help="folder of the session, to resume it after a crash")
    serve.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the mean goes, as .npy; the next model; or the statistics, as JSON",
    )
    more = serve.add_argument_group("further options")
    more.add_argument("--bits", type=int, help="of one value (default: 16; not of --model)")
    more.add_argument(
        "--group",
        metavar="K/N",
        help="invite the K-th of N groups of them, and write its sum to --out; `secagg add` adds those of all groups",
    )
    more.add_argument("--round", type=int, help="goes up within a task (default: the time in seconds)")
    more.add_argument(
        "--form",
        type=int,
        default=FORMS[0],
        metavar="N",
        help="form of messages; clients that do not speak it are excluded (default: %(default)s)",
    )
    more.add_argument("--behind-proxy", action="store_true", help="TLS ends at a proxy before this server")
    more.add_argument(
        "--metrics-token",
        type=Path,
        metavar="FILE",
        help="token that /status and /metrics ask for; without it they answer this machine only",
    )
    more.add_argument(
        "--memory",
        type=int,
        default=1024,
        metavar="MIB",
        help="memory for all answers that are being read, with their copies (default: %(default)s)",
    )
    more.add_argument("--client-certs", type=Path, metavar="FILE", help="mutual TLS: whose certificates are let in")
    more.add_argument("--exchange-seconds", type=float, default=60.0, help="for a stage (default: %(default)s)")
    more.add_argument("--training-seconds", type=float, default=600.0, help="for the updates (default: %(default)s)")
    more.add_argument(
        "--patience",
        type=float,
        metavar="SHARE",
        help="once enough have answered, wait this multiple of the time so far (default: for all)",
    )
    more.add_argument(
        "--page",
        action="store_true",
        help="serve a page on which visitors draw and see the sum, one session after another; needs no other option",
    )
    more.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of https://HOST ask, by exact name",
    )
    spreading.add_options(serve)
    _add_common(more, "a setting of the server, as an app of Flower has it without `secagg-`: roster=keys/roster.txt")
    serve.set_defaults(run=when_run("secagg.cli.serve", "run_serve"), usual=serve.get_default, parsed=serve.parse_args)
    add = commands.add_parser(
        "add",
        help="add what the servers of all groups released, and write the mean",
        description="Add the sums of groups of clients, each written by `secagg serve --group K/N`, and write the mean "
        "of all updates. Sums of other plans or rounds are refused, and clients who are in two.",
    )
    add.add_argument("sums", type=Path, nargs="+", metavar="FILE", help="the sum of one group")
    add.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the mean goes, as .npy")
    add.set_defaults(run=when_run("secagg.cli.groups", "run_add"))
    _add_contribute(commands.add_parser("contribute", help="add one update to the sum that a server holds"))


def _add_contribute(contribute: argparse.ArgumentParser) -> None:
    contribute.usage = (
        "secagg contribute URL (--update | --model | --statistics) FILE (--identity FILE | --client N) [...]"
    )
    contribute.add_argument("url", metavar="URL", help="of the server")
    what = contribute.add_mutually_exclusive_group(required=True)
    what.add_argument("--update", type=Path, metavar="FILE", help="values, as .npy")
    what.add_argument("--model", type=Path, metavar="FILE", help="trained model, as .npz or .safetensors")
    what.add_argument("--statistics", type=Path, metavar="FILE", help="the declaration that this site answers")
    contribute.add_argument("--base", type=Path, metavar="FILE", help="of --model: the model before training")
    contribute.add_argument("--examples", type=int, metavar="N", help="of --model: number of examples trained on")
    contribute.add_argument("--data", metavar="FILE", help="of --statistics: a .csv, or site.py:FUNCTIONS")
    contribute.add_argument("--data-version", default="1", help="its owner's name for the data (default: %(default)s)")
    contribute.add_argument("--protocol", type=protocol_name, default="pairwise", help=f"the only accepted {PROTOCOLS}")
    who = contribute.add_mutually_exclusive_group(required=True)
    who.add_argument("--identity", type=Path, metavar="FILE", help="this client's key file, of `secagg keys`")
    who.add_argument("--client", type=int, metavar="N", help="this client's number, where clients have no keys")
    contribute.add_argument("--task", default="sum", help="no other is answered (default: %(default)s)")
    more = contribute.add_argument_group("further options")
    more.add_argument("--server-cert", type=Path, metavar="FILE", help="the server's, or of its issuer")
    more.add_argument("--state", type=Path, metavar="DIR", help="where progress is sealed (default: in memory)")
    more.add_argument("--patience", type=float, default=120.0, help="seconds without a server (default: 120)")
    _add_common(more, "a floor of this client: minimum_cohort=10, servers=servers.json")
    contribute.set_defaults(run=when_run("secagg.cli.contribute", "run_contribute"))


def _add_common(command: argparse._ActionsContainer, what: str) -> None:  # pyright: ignore[reportPrivateUsage]
    _add_credentials(command)
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    levels = ("debug", "info", "warning", "error")
    command.add_argument("--log-level", choices=levels, default="info", help="(default: %(default)s)")


def _add_credentials(command: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    command.add_argument("--cert", type=Path, metavar="FILE", help="own certificate, PEM")
    command.add_argument("--key", type=Path, metavar="FILE", help="its private key, PEM")
