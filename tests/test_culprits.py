"""Only ``secagg.blame`` decides who is to blame; the check finds culprits that are written down in any other form."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.house import report
from tests.harness.named_parties import Library, check_culprits, literals_in, read_library

pytestmark = pytest.mark.repository


def test_no_culprits_are_written_down_outside_the_table(repository: Path) -> None:
    check_culprits(repository)


WRONG = [
    "raise PeerMisbehaved('', reason=Reason.REPLAYED, culprits={ServerId()})",
    "raise PeerMisbehaved('', reason=Reason.REPLAYED, culprits=[sender])",
    "raise AuthenticationFailed(culprits=(sender,))",
    "raise AuthenticationFailed(culprits=frozenset({sender}))",
    "raise AuthenticationFailed(culprits=unverified(sender) | {other})",
    "raise AuthenticationFailed(culprits=unverified(sender) if other else {sender})",
    "raise AuthenticationFailed(culprits={sender} or unverified(sender))",
    "raise AuthenticationFailed(culprits={one for one in (sender, other)})",
    "raise AuthenticationFailed(culprits=SOMEBODY)",
    "named = {sender}\n    raise AuthenticationFailed(culprits=named)",
    "named = unverified(sender)\n    named |= {other}\n    raise AuthenticationFailed(culprits=named)",
    "label, named = 1, {sender}\n    raise AuthenticationFailed(culprits=named)",
    "error.culprits = {sender}",
    "with blaming(sender): pass",
    "with blaming(*{sender}): pass",
    "with blaming(*unverified(sender), other): pass",
    "require_length('', 1, 1, {sender})",
    "refuse('', {sender})",
    "refuse('', named={sender})",
    "def inner(culprits={1}): pass",
    "def inner() -> frozenset[Party]:\n        return frozenset({sender})",
    "def inner(*culprits): raise AuthenticationFailed(culprits=culprits)",
    "def inner(culprits={1}, /): pass",
    "def inner(*, whom: frozenset[Party] = {1}): pass",
    "inner = lambda culprits={1}: 0",
    "inner = lambda: {sender}\n    raise AuthenticationFailed(culprits=inner())",
    "raise AuthenticationFailed(culprits=unverified(sender) - {ServerId()})",
    "raise AuthenticationFailed(culprits=unverified(sender) - from_server())",
    "raise AuthenticationFailed(culprits=disputed({sender}))",
    "raise AuthenticationFailed(culprits=disputed(unverified(sender), {other}))",
    "raise AuthenticationFailed(culprits=elsewhere.unverified(sender))",
    "def unverified(one): return {one}\n    raise AuthenticationFailed(culprits=unverified(sender))",
    "unverified = lambda one: {one}",
    "culprits = lambda one: {one}\n    raise AuthenticationFailed(culprits=culprits(sender))",
    "from elsewhere import those as unverified\n    raise AuthenticationFailed(culprits=unverified(sender))",
    "NOBODY = {sender}\n    raise AuthenticationFailed(culprits=NOBODY)",
    "if whom := {sender}: raise AuthenticationFailed(culprits=whom)",
    "for whom in [{sender}]: raise AuthenticationFailed(culprits=whom)",
    "whom = NOBODY\n    for whom in [{sender}]: pass\n    raise AuthenticationFailed(culprits=whom)",
    "whom = NOBODY\n    with other as whom: pass\n    raise AuthenticationFailed(culprits=whom)",
    "whom = NOBODY\n    def inner():\n        nonlocal whom\n        whom = {1}\n    refuse('', whom)",
    "def named(_): return {sender}\n    raise AuthenticationFailed(culprits=named(NOBODY))",
    "def culprits(_): return {sender}\n    raise AuthenticationFailed(culprits=culprits(1))",
    "raise AuthenticationFailed(**{'culprits': {sender}})",
    "raise AuthenticationFailed(**dict(culprits={sender}))",
    "partial(AuthenticationFailed, culprits={sender})()",
    "partial(require_length, '', 1, 1, {sender})()",
    "partial(blaming, sender)()",
    "length = require_length\n    length('', 1, 1, {sender})",
    "require_length(*('', 1, 1, {sender}))",
    "require_length(*('', 1, 1), {sender})",
    "Fault(Reason.REPLAYED, '', {sender})",
    "replace(fault, culprits={sender})",
    "name = blaming\n    with name(sender): pass",
    "from secagg.errors import blaming as name\n    with name(sender): pass",
    "with errors.blaming(sender): pass",
    "with getattr(errors, 'blaming')(sender): pass",
    "error.culprits |= {sender}",
    "error.culprits: frozenset = {sender}",
    "error.culprits, other = {sender}, 1",
    "other = error.culprits = {sender}",
    "setattr(error, 'culprits', {sender})",
    "object.__setattr__(error, 'culprits', {sender})",
    "error.__dict__['culprits'] = {sender}",
    "error.__dict__.update(culprits={sender})",
    "class Wrong(PeerMisbehaved):\n        culprits = frozenset({sender})",
    "class Wrong(PeerMisbehaved):\n        @property\n        def culprits(self): return {sender}",
]
RIGHT = [
    "raise AuthenticationFailed(culprits=NOBODY)",
    "raise AuthenticationFailed(culprits=frozenset[Party]())",
    "raise AuthenticationFailed(culprits=unverified(sender) | signed_by(other))",
    "raise AuthenticationFailed(culprits=disputed(unverified(sender), signed_by(other)))",
    "raise AuthenticationFailed(culprits=disputed(*(unverified(one) for one in (sender, other))))",
    "told = {'culprits': sorted(map(str, error.culprits))}",
    "raise AuthenticationFailed(culprits=error.culprits or TRUSTED)",
    "label, named = 1, unverified(sender)\n    raise AuthenticationFailed(culprits=named)",
    "with blaming(*unverified(sender)): pass",
    "with blaming(): pass",
    "require_length('', 1, 1, unverified(sender))",
    "refuse('', signed_by(sender))",
]
MODULE = """
from secagg.blame import from_server, signed_by, unverified
from secagg.errors import NOBODY, AuthenticationFailed, Fault, blaming, require_length
SOMEBODY, TRUSTED = frozenset(), from_server()
def refuse(sentence: str, named: frozenset[Party]): pass
def step(sender, other, error, fault):
    ...
"""


@pytest.fixture(scope="module")
def library(repository: Path) -> Library:
    return read_library(repository)


@pytest.mark.parametrize("line", WRONG)
def test_the_check_finds_culprits_that_are_written_down(library: Library, line: str) -> None:
    assert list(literals_in(ast.parse(MODULE.replace("...", line)), library))


@pytest.mark.parametrize("line", RIGHT)
def test_the_check_accepts_culprits_from_the_table(library: Library, line: str) -> None:
    assert not list(literals_in(ast.parse(MODULE.replace("...", line)), library))


def test_no_log_line_and_no_state_keeps_an_error(repository: Path) -> None:
    """An error's traceback keeps the refused message alive; its text, or a ``Fault``, does not."""
    report(
        f"{file}:{line}: log str(...) of the error, and store a Fault"
        for file, tree in read_library(repository).modules.values()
        # Simulated training refuses no messages; it raises its own errors again with their tracebacks.
        if file.parts[0] != "training"
        for line in errors_held(tree)
    )


@pytest.mark.parametrize(
    "line",
    [
        "LOG.warning('%s', error)",
        "self.log.error('%s: %s', 1, error)",
        "self.failure = error",
        "self.errors[1] = error",
        "self.errors.append(error)",
    ],
)
def test_the_check_finds_an_error_that_is_kept(line: str) -> None:
    module = "try:\n    pass\nexcept ValueError as error:\n    {}"
    assert [*errors_held(ast.parse(module.format(line)))]
    safe = line.replace("error)", "str(error))") if "(" in line else f"{line}.with_traceback(None)"
    assert not [*errors_held(ast.parse(module.format(safe)))]


def errors_held(tree: ast.Module) -> Iterator[int]:
    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler):
            for node in ast.walk(handler):
                match node:
                    case ast.Call(func=ast.Attribute(attr="info" | "warning" | "error" | "critical" | "append")):
                        held = node.args
                    case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                        held = [node.value]
                    case _:
                        held = []
                yield from (each.lineno for each in held if isinstance(each, ast.Name) and each.id == handler.name)
