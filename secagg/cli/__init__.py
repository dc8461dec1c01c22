"""The ``secagg`` command: reads arguments and calls the library."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import secagg
from secagg.errors import InvalidParameters, SecAggError
from secagg.options import suggestion

from . import options as command_options
from . import train
from .options import in_own_words, when_run
from .round import add_options as add_round_options

_CHOICE: Final = re.compile(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    # Other users must not be able to write to our files and folders, whatever the user's umask is.
    os.umask(os.umask(0o022) | 0o022)
    parser, options = _parser(), argparse.Namespace()
    try:
        options = parser.parse_args(arguments)
        if not hasattr(options, "run"):
            parser.print_help()
            return 0
        return int(options.run(options))
    except SecAggError as error:
        said = "\n".join([f"secagg: {error}", *getattr(error, "__notes__", ())])
        print(in_own_words(said, options), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nsecagg: interrupted; nothing was released", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader closed the pipe; suppress the interpreter's flush error at exit.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- it stays open until the end
        return 0
    except OSError as error:
        place = "" if isinstance(error, ConnectionError) else "; use another path"
        what = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
        print(in_own_words(f"secagg: {what}{place}", options), file=sys.stderr)
        return 2


_MEANT: Final = {"--absent": "--dropped"}
"""Options that users may try, each with ours of the same meaning."""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one sentence, with a suggestion."""

    def error(self, message: str) -> NoReturn:
        if found := _CHOICE.fullmatch(message):
            argument, given, known = found.groups()
            choices = known.replace("'", "").split(", ")
            message = f"{argument}: unknown value {given!r}; {suggestion(given, choices)}"
        elif message.startswith("unrecognized arguments: --"):
            given = message.split()[2].partition("=")[0]
            message = f"there is no {given}; {suggestion(_MEANT.get(given, given), [*self._option_string_actions])}"
        raise InvalidParameters(f"{message} (`{self.prog} --help`)")

    def parse_known_args(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 -- as argparse has it
        """Report unknown options here, because the parent parser does not know this command's options."""
        options, strange = super().parse_known_args(*arguments, **named)
        if strange:
            self.error(f"unrecognized arguments: {' '.join(strange)}")
        return options, strange


class _Version(argparse.Action):
    """Looks up the version only on demand, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> None:
        del arguments
        print(f"secagg {secagg.__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="secagg", description="Secure aggregation for federated learning.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(metavar="COMMAND")
    demo = commands.add_parser("demo", help="a small session with dropouts, in memory, with a picture of who sees what")
    demo.add_argument("--clients", type=int, default=12, help="number of clients, 3 to 100 (default: %(default)s)")
    demo.add_argument("--drop", type=int, help="number of clients that drop out before the upload (default: up to 2)")
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="folder for the report and the picture (default: %(default)s)",
    )
    demo.set_defaults(run=when_run("secagg.cli.demo", "run_demo"))
    add_round_options(commands)
    _add_plan_options(
        commands.add_parser(
            "plan",
            help="costs of every combination of compression and protocol for a model, shortest upload first",
            usage="secagg plan (--model FILE | --blocks N | --seconds) [option ...]",
            description="Compute the costs of every combination of compression and protocol for a model: a client's "
            "bytes, the server's work, the trust assumptions, and whether it can be used; shortest upload first.",
        )
    )
    for each in (command_options, train):
        each.add_options(commands)
    return parser


def _add_plan_options(planned: argparse.ArgumentParser) -> None:
    model = planned.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help='.npz, .safetensors, or shapes as JSON: {"layer.weight": [64, 32], "layer.bias": [64]}',
    )
    model.add_argument("--blocks", type=int, help="number of blocks of --block-size values, instead of a model")
    model.add_argument(
        "--seconds",
        nargs="?",
        const="",
        metavar="PRESET",
        help="measure this machine: time of a training run or, without PRESET, of one sum of very many clients",
    )
    planned.add_argument("--clients", type=int, help="clients in a sum (default: 100; with --seconds 1,000,000)")
    planned.add_argument("--bits", type=int, default=8, help="bits of one quantized value (default: %(default)s)")
    planned.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="(default: %(default)s)")
    planned.add_argument("--json", type=Path, metavar="FILE", help="file for all figures, in addition to the output")
    train.add_seconds_options(planned)
    command = planned.add_argument_group("without --seconds")
    command.add_argument(
        "--base", type=Path, metavar="FILE", help="the model before training; suggests a clip for the change to --model"
    )
    command.add_argument(
        "--dropped", type=int, metavar="N", help="number of clients that may drop out (default: a third of up to 30)"
    )
    command.add_argument("--explain", action="store_true", help="explain the advice, the trust and the counting")
    command.add_argument("--codewords", type=int, default=64, help="codewords per codebook (default: %(default)s)")
    command.add_argument("--block-size", type=int, default=9, help="values per codeword (default: %(default)s)")
    command.add_argument(
        "--cohort-bits",
        type=float,
        default=1.6,
        help="bits per value of peak code or sketch, of all clients together (default: %(default)s)",
    )
    command.add_argument("--sparsity", default="0.9", help="share of values that pruning omits (default: %(default)s)")
    command.add_argument(
        "--megabits", type=float, default=20.0, help="a client's bandwidth in Mbit/s (default: %(default)s)"
    )
    command.add_argument(
        "--latency", type=float, default=0.1, help="time of a round trip, in seconds (default: %(default)s)"
    )
    command.add_argument("--noise", metavar="Z", help="noise multiplier; computes its privacy loss")
    command.add_argument("--releases", type=int, help="with --noise: sums that include one client (default: 1)")
    command.add_argument("--delta", type=float, help="with --noise: delta of epsilon (default: 1e-06)")
    planned.set_defaults(run=when_run("secagg.cli.plan", "run_plan"), usual=planned.get_default)
