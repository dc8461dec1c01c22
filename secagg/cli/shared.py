"""Code shared by ``secagg serve`` and ``contribute`` and by other services; and ``secagg enclave serve``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_origin

from secagg.errors import InvalidParameters, Reason, SecAggError

from .options import in_own_words

if TYPE_CHECKING:
    from secagg.analytics import Declaration, Plan
    from secagg.platforms.round_task import RoundTask
    from secagg.platforms.terms import Terms
    from secagg.quick.model_session import Session
    from secagg.session.roles import Subject
    from secagg.transport.description import SessionDescription
    from secagg.transport.tls import Credentials

Result = TypeVar("Result")
ACTIVE: Final = "active"
TRUST: Final = ("clients trust the server to follow the protocol", "clients trust certified keys, not the server")
"""Sentences for semi-honest and for active mode."""
_PORTS: Final = 1 << 16
_TERMS: Final = dict.fromkeys(("clients", "all_clients", "group", "groups", "values", "bits"), int) | {"clip": float}
_MAX_NORM: Final = "max_norm"
"""Term of sums in which an enclave bounds norms."""
_MOST_VALUES: Final = 1 << 28


def plan_of(protocol: str, terms: Mapping[str, Any]) -> Session[Any]:
    """Return the session that encodes updates. This does not check a server's terms against a client's policy."""
    import numpy as np

    from secagg.quick.model_session import Session
    from secagg.session.registry import find

    due = _TERMS | ({_MAX_NORM: float} if _MAX_NORM in terms else {})
    is_whole = {name: type(value) for name, value in terms.items()} == due
    if not (is_whole and 1 <= terms["group"] <= terms["groups"]):
        raise InvalidParameters(f"a sum's terms must be {', '.join(_TERMS)}; both ends need the same version of secagg")
    if not 1 <= terms["values"] <= _MOST_VALUES:
        raise InvalidParameters(f"an update must have 1 to {_MOST_VALUES:,} values; got {terms['values']}")
    return Session.for_model(
        np.zeros(terms["values"]),
        clients=terms["clients"],
        all_clients=terms["all_clients"],
        clip=terms["clip"],
        bits=terms["bits"],
        max_norm=terms.get(_MAX_NORM),
        protocol=find(protocol),
    )


def max_norms_in(protocol: str, terms: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the norms in steps to which an enclave bounds the updates of a sum."""
    return cast("tuple[int, ...]", plan_of(protocol, terms).settings.max_norms) if _MAX_NORM in terms else ()


def plan_for(declared: Declaration | None, protocol: str, terms: Mapping[str, Any]) -> Session[Any] | Plan:
    """Return the session that encodes updates, or the plan of this side's own declaration of statistics."""
    from secagg.analytics import Plan

    if declared is None:
        return plan_of(protocol, terms)
    if terms.get("statistics") != declared.digest.hex():
        raise InvalidParameters(
            f"the server's statistics differ from this site's declaration {declared.name!r}; compare the two files",
            reason=Reason.BELOW_FLOOR,
        )
    return Plan(declared)


def model_terms(task: RoundTask) -> dict[str, Any]:
    """Return the terms of a sum of a model, in addition to its cohort."""
    from secagg.compression.model_update.arrays import model_digest

    return {
        "about": task.terms.small,
        "parameters": b64encode(task.terms.parameters).decode(),
        "model": model_digest(task.sent).hex(),
        "noise": [task.settings.noise, task.settings.norm],
    }


def terms_of_model(description: SessionDescription) -> Terms:
    """Read the terms of a sum of a model, and check them against the description."""
    from secagg.platforms.terms import Terms, malformed

    if not {"about", "parameters", "model", "noise"} <= (given := description.terms).keys():
        raise InvalidParameters(
            "the server sums values or statistics, not a model; ask its operator, and use --update or --statistics",
            reason=Reason.BELOW_FLOOR,
        )
    try:
        parameters = b64decode(str(given["parameters"]), validate=True)
    except ValueError:
        raise malformed("parameters") from None
    terms = Terms.parsed({"terms": given["about"], "parameters": parameters})
    named = (description.protocol, description.task, description.round_number)
    if terms is None or (terms.protocol, terms.task, terms.round_number) != named:
        raise malformed("terms")
    return terms


def subject_of(plan: Session[Any] | Plan, task: str, number: int, terms: Mapping[str, Any]) -> Subject:
    """Return the subject of a sum, with the digest of its terms."""
    from secagg.transport.description import terms_digest

    return replace(plan.subject(task=task.encode(), round_number=number, model=()), terms=terms_digest(terms))


class JsonLines(logging.Formatter):
    """Formats records as lines of JSON, or as text for people, with settings spelled as options of the command."""

    def __init__(self, options: argparse.Namespace, *, is_for_people: bool = False) -> None:
        from secagg.transport.description import TASK

        super().__init__()
        self._options, self._task, self._is_for_people = options, TASK, is_for_people

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": in_own_words(record.getMessage(), self._options),
            **({"task": task} if (task := self._task.get()) else {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if not self._is_for_people:
            return json.dumps(line)
        clock, level, _, event = (line.pop(name) for name in ("time", "level", "logger", "event"))
        about = in_own_words("".join(f", {name} {value}" for name, value in line.items()), self._options)
        return f"{clock[11:19]} {'' if level == 'info' else level + ': '}{event}{about}"


def running(work: Callable[[], Coroutine[Any, Any, Result]], options: argparse.Namespace) -> Result:
    """Run until the work ends, or until SIGTERM or SIGINT; logs are text on a terminal and JSON elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(options, is_for_people=sys.stderr.isatty()))
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    for each in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(each).setLevel(logging.WARNING)
    # Uvicorn would warn of malformed requests, which anybody can send.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with serving():
        return asyncio.run(_until_told(work))


def stopped() -> int:
    """Print that a signal stopped the sum, and return the exit status."""
    print("secagg: stopped before the end of the sum; with --state, the same command resumes it", file=sys.stderr)
    return 130


async def _until_told(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run the work until a signal. The loop cancels it, because an exception raised within a request would be lost."""
    task, signals = asyncio.ensure_future(work()), [signal.SIGTERM, signal.SIGINT]

    def end() -> None:
        # A second signal must not interrupt the code that notifies clients and saves the session.
        if signals:
            signals.clear()
            task.cancel()

    for each in signals:
        asyncio.get_running_loop().add_signal_handler(each, end)
    try:
        return await task
    except asyncio.CancelledError:
        raise SystemExit(0) from None


def own_credentials(options: argparse.Namespace) -> Credentials | None:
    """Return this side's TLS certificate and key, or None."""
    from secagg.transport.tls import Credentials

    if (options.cert is None) != (options.key is None):
        raise InvalidParameters("--cert and --key must be set together; set both or neither")
    return None if options.cert is None else Credentials(certificate=options.cert, key=options.key)


def address(option: str, text: str) -> tuple[str, int]:
    """Read HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) >= _PORTS:
        raise InvalidParameters(f"{option} must be HOST:PORT; got {text!r}")
    return host, int(port)


def assigned(assignments: Iterable[str], *classes: type[Any]) -> dict[str, Any]:
    """Parse ``name=value`` as the classes declare the names; choices and unknown names stay text."""
    from secagg.options import Declared, declared, spelled

    known, given = dict[str, Declared](), dict[str, Any]()
    for each in classes:
        known |= {name: one for name, one in declared(each).items() if get_origin(one.kind) is not frozenset}
    for assignment in assignments:
        option, equals, text = assignment.partition("=")
        if not equals:
            raise InvalidParameters(f"--set must be NAME=VALUE; got {assignment!r}")
        name = option.replace("-", "_")
        with spelled(f"--set {option}"):
            given[name] = known[name].parsed(text) if name in known else text
    return given


# --- Processes that serve ---------------------------------------------------------------------------------------------

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def serving() -> Generator[None]:
    """Exit at the first SIGTERM or SIGINT, and disable core dumps, which would contain keys."""
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidParameters("this system has no Unix sockets; use another system")
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    earlier = {each: signal.signal(each, _end) for each in _ENDING}
    try:
        yield
    except SecAggError:
        # Nothing was served, and the caller continues with its own handlers.
        for each, handler in earlier.items():
            signal.signal(each, handler)
        raise


def serve_enclave(options: argparse.Namespace) -> int:
    """Run the enclave's trusted part, and return the exit status."""
    from secagg.crypto.entropy import SystemCoins
    from secagg.protocols.enclave import serve_at

    with serving():
        serve_at(
            options.listen,
            evidence=options.evidence,
            coins=SystemCoins(),
            threads=options.threads,
            memory_bytes=options.memory << 20,
        )
    return 0


def _end(*_: int | FrameType | None) -> None:
    # A second signal must not interrupt the code that overwrites keys and removes sockets.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(0)
