"""Rule K6: values derived from secrets are compared in constant time; timing tests miss this, so sources are checked.

For each comparison, the rule is shown to detect the same one written with ``==``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.house import report, shipped_modules

ROOMS = ("secagg.crypto", "secagg.session", "secagg.protocols")
OF_SECRETS = re.compile(
    r"expose\(\)|\b_tag\(|commit_to|commitment\b|vector_digest\b|recover_root\(|keys\.mask\.encoded|\bbefore\b"
    r"|_said\.get\(sender, b"
    r"|_marks?\b"
)
"""Expressions for a tag, a commitment, or a digest of a client's earlier message in this code."""
OPENED_BY_WHO_COMMITTED = {
    "OneHotCommitment.to(self.peer, self.context.statement, opening) != commitment",
    "OutputCommitment.to(self._peer_stamp, digest, peer_share) != self.peer_commitment",
    "self._release.commitment(share) != commitment",
    "before.parts != said.parts",
}
"""One party sent or wrote both sides, so the time reveals nothing to it."""


def faults_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops):
            text = ast.unparse(node)
            if OF_SECRETS.search(text) and not text.startswith("len(") and text not in OPENED_BY_WHO_COMMITTED:
                yield f"{text}: compare with hmac.compare_digest"


def sources(root: Path) -> dict[str, str]:
    return {
        name: module.file.read_text(encoding="utf-8")
        for name, module in shipped_modules(root).items()
        if name.startswith(ROOMS)
    }


def test_what_a_secret_went_into_is_compared_in_constant_time(repository: Path) -> None:
    report(f"{name}: {fault}" for name, source in sources(repository).items() for fault in faults_in(source))


class Plainly(ast.NodeTransformer):
    """Replaces one call of ``compare_digest`` by ``==``."""

    def __init__(self, number: int) -> None:
        self.left = number

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func).endswith("compare_digest"):
            self.left -= 1
            if self.left == -1:
                return ast.Compare(left=node.args[0], ops=[ast.Eq()], comparators=[node.args[1]])
        return node


def test_each_comparison_is_missed_when_it_is_written_plainly(repository: Path) -> None:
    """Otherwise somebody could remove a comparison unnoticed."""
    count = 0
    for name, source in sources(repository).items():
        for number in range(source.count("compare_digest(")):
            count += 1
            changed = ast.unparse(ast.fix_missing_locations(Plainly(number).visit(ast.parse(source))))
            assert [*faults_in(changed)], f"{name}: comparison {number} is not covered"
    assert count >= 12


@pytest.mark.parametrize("line", ["key.expose() == guess", "place.commit_to(x) != commitment", "_tag(k, m) == tag"])
def test_a_plain_comparison_is_noticed(line: str) -> None:
    assert [*faults_in(f"is_right = {line}")]
