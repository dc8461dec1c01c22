"""Options of the commands for keys, helpers and sums over HTTP. A command's module is only imported when it runs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.client_policy import DEFAULTS, RULES
from secagg.session.registry import names, require_name
from secagg.wire import FORMS

from . import spreading

_SETTING: Final = re.compile(r"(?<![\w./-])(the server's )?secagg-([a-z]+(?:-[a-z]+)*)(?!\.?[\w/-])")
"""A platform's setting in an error message, but not a file name of that form."""
_OF_SERVER: Final = "clip"
"""Server option that a client's log may mention."""
_ADDRESS: Final = "unix:PATH, tcp:HOST:PORT or vsock:CONTEXT:PORT"
PROTOCOLS: Final = f"aggregation protocol: {', '.join(names())} (default: %(default)s)"


def _add_limit(add: Callable[..., argparse.Action], name: str, *, is_required: bool = False) -> None:
    """Add the option for a limit of the policy."""
    rule, usual = RULES[name], DEFAULTS[name]
    text = rule.purpose if is_required else f"{rule.purpose} (default: {usual})"
    option = "--" + name.replace("_", "-")
    add(option, type=int, default=usual, required=is_required, metavar="N", help=text)


def task(text: str) -> str:
    """Return a task's name; argparse turns the error of one that is not UTF-8 into a sentence."""
    text.encode()
    return text


def protocol_name(text: str) -> str:
    """Return a protocol's name; an error suggests a similar one."""
    try:
        return require_name(text)
    except InvalidParameters as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def in_own_words(text: str, options: argparse.Namespace) -> str:
    """Return a text without control characters, and with platform settings spelled as options of ``--set``."""
    text = "".join(each if each.isprintable() or each == "\n" else " " for each in text)  # A peer may have chosen it.
    if not hasattr(options, "set"):
        return text

    def option(found: re.Match[str]) -> str:
        if found[2] == _OF_SERVER and found[2] not in options:
            return f"the server's --{found[2]}"
        return f"{found[1] or ''}--{'' if found[2] in options else 'set '}{found[2]}"

    return _SETTING.sub(option, text)


def when_run(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Return a command that imports its function and calls it with the options."""

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
        "trust", help="accept a client's state as the newest after chmod -R, chown -R or a move to another machine"
    )
    trust.add_argument("folder", type=Path, nargs="?", help="folder of state.db (default: SECAGG_LEDGER_DIRECTORY)")
    trust.set_defaults(run=when_run("secagg.cli.state", "run_trust"))
    site = commands.add_parser(
        "nvflare", help="restrict an NVFlare site to secure sums, whatever a job requests; shows the changes first"
    )
    site.add_argument("kit", type=Path, help="folder of the site, with local and startup")
    site.add_argument(
        "--policy", nargs="+", default=[], metavar="KEY=VALUE", help="policy for every job, such as minimum-cohort=10"
    )
    site.add_argument("--tracking", action="store_true", help="allow events that scripts log to leave the site")
    site.add_argument("--closed", action="store_true", help="run no code from jobs, which also stops hostile jobs")
    site.add_argument(
        "--script", type=Path, action="append", default=[], metavar="FILE", help="with --closed: script for jobs"
    )
    site.add_argument(
        "--interpreter",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --closed: program that may run these scripts in separate processes, such as python",
    )
    site.add_argument("--allow", action="append", default=[], metavar="CLASS", help="with --closed: class for jobs")
    site.add_argument("--write", action="store_true", help="write the changes (default: only show them)")
    site.set_defaults(run=when_run("secagg.nvflare.site_files", "write_site"))


def _add_holder(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    holder = commands.add_parser("holder", help="a holder of the one-message protocol")
    kinds = holder.add_subparsers(required=True, metavar="COMMAND")
    keys = kinds.add_parser("keys", help="make the key of a holder or of the authority, and print the public key")
    keys.add_argument("--out", type=Path, required=True, metavar="FILE", help="file for the private key")
    keys.set_defaults(run=when_run("secagg.cli.operators", "make_key"))
    record = kinds.add_parser(
        "record",
        help="the authority: sign the record of an epoch's holders",
        description="Sign the record of an epoch's holders, in their order. Choose operators that do not collude: the "
        "protocol is secure only while at most --corrupted of them collude with the server.",
    )
    record.add_argument(
        "--authority",
        type=Path,
        required=True,
        metavar="FILE",
        help="the authority's private key, from `secagg holder keys` or `secagg keys`",
    )
    record.add_argument(
        "--holder", action="append", required=True, metavar="HEX", help="a holder's public key; repeat for each holder"
    )
    record.add_argument("--number", type=int, required=True, metavar="N", help="epoch number, above all earlier ones")
    record.add_argument("--corrupted", type=int, default=1, help="holders that collude with the server (default: 1)")
    record.add_argument("--absent", type=int, default=0, help="other holders that may be absent (default: 0)")
    record.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="(default: classic)")
    record.add_argument("--hours", type=float, default=24.0, help="lifetime of the epoch (default: 24)")
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="file for the record")
    record.set_defaults(run=when_run("secagg.cli.operators", "sign_record"))
    serve = kinds.add_parser(
        "serve",
        help="serve as a holder in one epoch, until SIGTERM or SIGINT",
        description="Serve as a holder in one epoch. Its keys exist only in memory and are replaced every --key-hours. "
        "After a restart it takes part in sums that begin later. Never clone or restore its machine.",
    )
    serve.add_argument("--record", type=Path, required=True, metavar="FILE", help="record of `secagg holder record`")
    serve.add_argument("--key", type=Path, required=True, metavar="FILE", help="this holder's private key")
    serve.add_argument(
        "--authority",
        required=True,
        metavar="HEX",
        help="the authority's public key, or a roster file that the operator trusts",
    )
    serve.add_argument("--listen", required=True, metavar="ADDRESS", help=f"address for the server: {_ADDRESS}")
    serve.add_argument("--server", metavar="HEX", help="for tcp and vsock: public key of the only server that may ask")
    more = serve.add_argument_group("limits")
    _add_limit(more.add_argument, "minimum_cohort")
    more.add_argument("--corrupted", type=int, default=1, metavar="N", help="minimum of the epoch's (default: 1)")
    _add_limit(more.add_argument, "minimum_holders")
    only = "the only task; repeat for several (default: any)"
    more.add_argument("--task", type=task, action="append", default=[], metavar="NAME", help=only)
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
            help="run server 1, for all rounds that server 0 offers and its policy accepts",
            description="Run server 1 until SIGTERM or SIGINT. Server 0, such as that of a Flower app, offers a "
            "configuration for each round. A restarted server remembers past rounds, but ends the current one.",
        )
    )
    _add_keys(
        commands.add_parser(
            "keys",
            help="make one operator's keys or, with --peer, the file that names both servers",
            description="Make one operator's keys: a private file, and a public one for the other operator. With "
            "--peer, write servers.json from both public files; it is identical at both operators, who compare "
            "its fingerprint over another channel.",
        )
    )
    show = commands.add_parser("show", help="describe a file: keys (their public part), servers, a journal, ...")
    show.add_argument("file", type=Path)
    show.set_defaults(run=when_run("secagg.cli.operators", "show_file"))


def _add_keys(command: argparse.ArgumentParser) -> None:
    command.add_argument("--role", type=int, choices=(0, 1), help="number of this operator's server")
    command.add_argument("--out", type=Path, default=Path("keys"), metavar="DIR", help="(default: %(default)s)")
    command.add_argument("--peer", type=Path, metavar="FILE", help="the other operator's public file")
    command.add_argument("--roster", type=Path, metavar="FILE", help="the clients' roster (default: DIR/roster.txt)")
    command.add_argument("--trial", action="store_true", help="make both operators' keys, which protects nobody")
    command.set_defaults(run=when_run("secagg.cli.operators", "make_operator_keys"))


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--listen", required=True, metavar="ADDRESS", help=f"address for server 0: {_ADDRESS}")
    command.add_argument("--keys", type=Path, required=True, metavar="FILE", help="server 1's key file")
    command.add_argument("--servers", type=Path, required=True, metavar="FILE", help="file of `keys --peer`")
    command.add_argument("--journal", type=Path, required=True, metavar="DIR", help="journal; keep it with the keys")
    _add_limit(command.add_argument, "minimum_cohort", is_required=True)
    more = command.add_argument_group("limits")
    more.add_argument("--maximum-cohort", type=int, default=10_000, metavar="N", help="(default: %(default)s)")
    more.add_argument(
        "--maximum-lanes",
        type=int,
        default=1 << 27,
        metavar="N",
        help="maximum number of counters and ring elements in a round (default: %(default)s)",
    )
    more.add_argument(
        "--maximum-hours", type=int, default=24, metavar="N", help="maximum length of a round (default: %(default)s)"
    )
    more.add_argument("--task", type=task, default="", metavar="PREFIX", help="prefix of accepted tasks (default: any)")
    more.add_argument("--suites", default="classic,hybrid", help="accepted suites (default: %(default)s)")
    more.add_argument("--threads", type=int, default=1, help="number of threads (default: %(default)s)")
    command.set_defaults(run=when_run("secagg.cli.operators", "serve_second_server"))


def _add_service(command: argparse.ArgumentParser, usual: str | None) -> None:
    """Add the options of an enclave's service, here or in its machine."""
    listen = "unix:PATH, vsock:PORT or virtio:NAME" + (" (default: %(default)s)" if usual else "")
    command.add_argument("--listen", default=usual, required=not usual, metavar="ADDRESS", help=listen)
    sources = ("nsm", "tsm", "gramine", "simulated")
    command.add_argument("--evidence", required=True, choices=sources, help="source of evidence; there is no fallback")
    command.add_argument("--threads", type=int, default=1, help="number of threads for masks (default: %(default)s)")
    memory = "memory limit of an epoch (default: %(default)s)"
    command.add_argument("--memory", type=int, metavar="MIB", default=256 if usual else 4096, help=memory)


def _add_enclave(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    served = commands.add_parser(
        "serve",
        help="run the trusted part in a separate process",
        description="Run the trusted part in a separate process, until SIGTERM or SIGINT. With simulated evidence "
        "it protects nobody from the owner of this machine.",
    )
    _add_service(served, None)
    served.set_defaults(run=when_run("secagg.cli.shared", "serve_enclave"))
    image = commands.add_parser("image", help="build the machine image of an enclave, reproducibly")
    for name, metavar, about in (
        ("--lock", "FILE", "SHA-256 and name of each package, including the wheel of secagg"),
        ("--inputs", "FOLDER", "folder of these packages"),
        ("--out", "FOLDER", "folder for kernel, initramfs, command line and contents.json"),
    ):
        image.add_argument(name, type=Path, required=True, metavar=metavar, help=about)
    _add_service(image, "virtio:secagg")
    image.add_argument("--heartbeat", action="store_true", help="report the boot to the Nitro parent instance")
    image.add_argument("--acpi", action="store_true", help="keep ACPI tables, which TDX needs and measures")
    image.set_defaults(run=when_run("secagg.cli.images", "build"))
    kinds = commands.add_parser(
        "measure", help="compute and print the policy file that pins an image, without running it"
    ).add_subparsers(required=True, metavar="HARDWARE")
    nitro = kinds.add_parser("nitro", help="AWS Nitro; also writes image.eif")
    snp = kinds.add_parser("snp", help="AMD SEV-SNP, booted directly by QEMU with kernel-hashes=on")
    for each, run in ((nitro, "measure_nitro"), (snp, "measure_snp")):
        each.add_argument("image", type=Path, help="folder with vmlinuz, initramfs and cmdline")
        each.set_defaults(run=when_run("secagg.cli.images", run))
    snp.add_argument("--firmware", type=Path, required=True, metavar="FILE", help="a build of OvmfPkg/AmdSev")
    snp.add_argument("--processor", default="EPYC-Milan", help="QEMU's processor model (default: %(default)s)")
    snp.add_argument("--processors", type=int, default=1, help="number of processors (default: %(default)s)")
    endorse = commands.add_parser("endorse", help="sign a policy file, dated now, for clients that pin the key")
    endorse.add_argument("policy", type=Path, help="policy file with measurements and minimum versions of hardware")
    endorse.add_argument("--key", type=Path, required=True, metavar="FILE", help="private key of `keys authority`")
    endorse.add_argument("--days", type=int, default=7, help="days of validity, at most 90 (default: %(default)s)")
    endorse.add_argument("--out", type=Path, required=True, metavar="FILE", help="file in the collateral folder")
    endorse.set_defaults(run=when_run("secagg.cli.images", "endorse_policy"))


def _add_every_key(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    keys = commands.add_parser(
        "keys",
        help="keys of clients, and the authority's roster of them",
        description="A client makes its key with `keys new`, and the authority signs it with `keys sign`. For a trial, "
        "--clients makes the authority, all keys and the roster in one folder; for more clients, run it again "
        "with another --first.",
    )
    keys.add_argument("--clients", type=int, help="for a trial: number of keys to make")
    keys.add_argument("--first", type=int, default=0, help="id of the first client (default: %(default)s)")
    keys.add_argument("--out", type=Path, default=Path("keys"), help="folder (default: %(default)s)")
    keys.add_argument(
        "--trial-servers", action="store_true", help="for a trial: also make the keys of both of two servers"
    )
    keys.set_defaults(run=when_run("secagg.cli.keys", "make_all"))
    kinds = keys.add_subparsers(metavar="COMMAND")
    new = kinds.add_parser("new", help="a client: make its key, and a request to certify it")
    new.add_argument("--client", type=int, metavar="N", help="the client's unique number")
    new.add_argument("--authority", metavar="KEY", help="public key of the authority, or a roster's file")
    new.add_argument("--replaces", type=Path, metavar="FILE", help="the client's old key, which signs the request")
    new.add_argument(
        "--kit",
        type=Path,
        metavar="PATH",
        help="folder of an NVFlare site or private key of a SuperNode, to vouch for it",
    )
    new.add_argument("--out", type=Path, required=True, metavar="FILE", help="file for the private key: NAME.key")
    new.set_defaults(run=when_run("secagg.cli.keys", "make_own"))
    signs = kinds.add_parser("sign", help="the authority: certify the keys of requests")
    signs.add_argument("requests", type=Path, nargs="+", metavar="REQUEST", help="request, or folder of *.request")
    signs.add_argument(
        "--replace", type=int, metavar="N", help="accept a file with a key of client N that its old key did not sign"
    )
    signs.add_argument("--days", type=int, default=365, help="validity of certificates (default: %(default)s)")
    signs.add_argument(
        "--sites", type=Path, metavar="FILE", help="NUMBER NAME a line: kits of these sites must vouch for all requests"
    )
    signs.add_argument("--root", type=Path, metavar="FILE", help="with --sites: rootCA.pem of an NVFlare project")
    revokes = kinds.add_parser("revoke", help="the authority: revoke the keys of clients")
    revokes.add_argument("clients", type=int, nargs="+", metavar="N", help="number of a client")
    renews = kinds.add_parser("renew", help="the authority: sign the roster again, daily")
    rotates = kinds.add_parser("rotate", help="the authority: change to another key")
    rotates.add_argument("--new", type=Path, required=True, metavar="FILE", help="the new key; created if missing")
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
        allow_abbrev=False,  # A file of tasks must not abbreviate options that apply to all tasks.
        help="serve one sum over HTTP, for clients that run `secagg contribute`",
        usage="secagg serve (--values N --clip C | --model FILE) --clients N --out FILE [option ...]",
        description="Serve one sum, or one for each task of a file, and write the mean of its updates.",
        epilog="After a crash, the same command resumes the sum if the protocol supports it. SIGTERM stops the server "
        "and keeps its state; SIGHUP reloads the TLS files.",
    )
    serve.add_argument("--protocol", type=protocol_name, default="pairwise", help=PROTOCOLS)
    serve.add_argument("--values", type=int, help="number of values of an update")
    serve.add_argument(
        "--model", type=Path, metavar="FILE", help="model (.npz, .safetensors) whose changes to sum; not with --values"
    )
    serve.add_argument("--clip", type=float, help="maximum absolute value of an update (default: 4.0 with --model)")
    serve.add_argument(
        "--statistics", type=Path, metavar="FILE", help="declaration of statistics to sum, instead of --values"
    )
    serve.add_argument("--clients", type=int, help="number of clients; ids are 0 to N-1 (default: roster size)")
    serve.add_argument("--task", type=task, default="sum", help="the task's name, as at clients (default: %(default)s)")
    serve.add_argument(
        "--tasks", type=Path, metavar="FILE", help="several tasks at once: TOML with a table [NAME] of options for each"
    )
    serve.add_argument("--listen", default="127.0.0.1:8750", metavar="HOST:PORT", help="(default: %(default)s)")
    serve.add_argument("--state", type=Path, metavar="DIR", help="folder of the session, to resume it after a crash")
    serve.add_argument(
        "--out", type=Path, metavar="FILE", help="file for the mean (.npy), the next model, or the statistics (JSON)"
    )
    more = serve.add_argument_group("further options")
    more.add_argument("--bits", type=int, help="bits of one value (default: 16; not with --model)")
    more.add_argument(
        "--group",
        metavar="K/N",
        help="invite group K of N, and write its sum to --out; `secagg add` adds the sums of all groups",
    )
    more.add_argument("--round", type=int, help="round number, increasing in a task (default: the time in seconds)")
    more.add_argument(
        "--form",
        type=int,
        default=FORMS[0],
        metavar="N",
        help="form of messages; clients that do not support it are excluded (default: %(default)s)",
    )
    more.add_argument("--behind-proxy", action="store_true", help="TLS ends at a proxy before this server")
    more.add_argument(
        "--metrics-token",
        type=Path,
        metavar="FILE",
        help="file with the token for /status and /metrics (default: only this machine may read them)",
    )
    more.add_argument(
        "--memory",
        type=int,
        default=1024,
        metavar="MIB",
        help="memory limit of answers that are being received, with copies (default: %(default)s)",
    )
    more.add_argument("--client-certs", type=Path, metavar="FILE", help="mutual TLS: authorities of clients")
    more.add_argument("--exchange-seconds", type=float, default=60.0, help="time of a stage (default: %(default)s)")
    more.add_argument("--training-seconds", type=float, default=600.0, help="time of updates (default: %(default)s)")
    more.add_argument(
        "--patience",
        type=float,
        metavar="SHARE",
        help="wait for late clients, as a multiple of the time so far (default: wait for all)",
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
        help="origin whose pages may connect, such as https://HOST",
    )
    spreading.add_options(serve)
    _add_common(more, "a server setting, as in a Flower app but without `secagg-`: roster=keys/roster.txt")
    serve.set_defaults(run=when_run("secagg.cli.serve", "run_serve"), usual=serve.get_default, parsed=serve.parse_args)
    add = commands.add_parser(
        "add",
        help="add the sums of all groups, and write the mean",
        description="Add the sums of groups, each written by `secagg serve --group K/N`, and write the mean of all "
        "updates. Sums of other plans or rounds, and clients in two groups, are refused.",
    )
    add.add_argument("sums", type=Path, nargs="+", metavar="FILE", help="the sum of one group")
    add.add_argument("--out", type=Path, required=True, metavar="FILE", help="file for the mean, .npy")
    add.set_defaults(run=when_run("secagg.cli.groups", "run_add"))
    _add_contribute(commands.add_parser("contribute", help="add one update to a server's sum"))


def _add_contribute(contribute: argparse.ArgumentParser) -> None:
    contribute.usage = (
        "secagg contribute URL (--update | --model | --statistics) FILE (--identity FILE | --client N) [...]"
    )
    contribute.add_argument("url", metavar="URL", help="URL of the server")
    what = contribute.add_mutually_exclusive_group(required=True)
    what.add_argument("--update", type=Path, metavar="FILE", help="values, as .npy")
    what.add_argument("--model", type=Path, metavar="FILE", help="trained model, as .npz or .safetensors")
    what.add_argument("--statistics", type=Path, metavar="FILE", help="this site's declaration of statistics")
    contribute.add_argument("--base", type=Path, metavar="FILE", help="with --model: the model before training")
    contribute.add_argument("--examples", type=int, metavar="N", help="with --model: number of training examples")
    contribute.add_argument("--data", metavar="FILE", help="with --statistics: a .csv, or site.py:FUNCTIONS")
    contribute.add_argument("--data-version", default="1", help="version of the data (default: %(default)s)")
    contribute.add_argument("--protocol", type=protocol_name, default="pairwise", help=f"the only accepted {PROTOCOLS}")
    who = contribute.add_mutually_exclusive_group(required=True)
    who.add_argument("--identity", type=Path, metavar="FILE", help="this client's key file from `secagg keys`")
    who.add_argument("--client", type=int, metavar="N", help="this client's number, if clients have no keys")
    contribute.add_argument("--task", type=task, default="sum", help="the only accepted task (default: %(default)s)")
    more = contribute.add_argument_group("further options")
    more.add_argument("--server-cert", type=Path, metavar="FILE", help="certificate of the server or its issuer")
    more.add_argument("--state", type=Path, metavar="DIR", help="folder for sealed progress (default: in memory)")
    more.add_argument("--patience", type=float, default=120.0, help="maximum seconds without a server (default: 120)")
    _add_common(more, "a setting of the client policy: minimum_cohort=10, servers=servers.json")
    contribute.set_defaults(run=when_run("secagg.cli.contribute", "run_contribute"))


def _add_common(command: argparse._ActionsContainer, what: str) -> None:  # pyright: ignore[reportPrivateUsage]
    _add_credentials(command)
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=what)
    levels = ("debug", "info", "warning", "error")
    command.add_argument("--log-level", choices=levels, default="info", help="(default: %(default)s)")


def _add_credentials(command: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    command.add_argument("--cert", type=Path, metavar="FILE", help="own TLS certificate, PEM")
    command.add_argument("--key", type=Path, metavar="FILE", help="private key of --cert, PEM")
