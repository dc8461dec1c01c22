"""Changes that must fail the check, made one after the other in a copy of the repository.

Each weakening changes one place in the code or in a theory. First the changed digest must be detected. Then the digests
are renewed without review, and the pinned statements or a test that a claim names must still detect the change.
``proofs/check weakenings`` makes all of them and prints what detected which.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from gates.coq_text import THEORIES
from gates.reference import PROGRAM, check_reference
from gates.report import BUILT, REPOSITORY, require, say
from gates.reviewed import claims
from gates.symbolic import found_or_built
from gates.theories import is_built

STATEMENTS = "statements"
CLAIMS = "claims"
CASE = "case "
FAMILY = "family "
PRINTED = "what Coq prints"
COMPARED = "compared "
QUERY = "query "
PARTS = {CASE: "model", FAMILY: "smt", COMPARED: "reference", QUERY: "symbolic"}
"""The parts whose program can run a single named item."""
BEFORE_TRANSCRIPT = "Definition transcript (x : client -> G) (y : {ffun client -> G}) (r : coins) (s : coins) :=\n"
ROUND_0 = "protocols/pairwise_mask/round0_advertise_keys.py"
ROUND_1 = "protocols/pairwise_mask/round1_share_keys.py"
ROUND_2 = "protocols/pairwise_mask/round2_masked_input.py"
ROUND_4 = "protocols/pairwise_mask/rounds3_4_unmasking.py"
ROSTERS, OFFERS = "tests/adversaries/test_rosters.py", "tests/adversaries/test_offers_below_the_policy.py"
TRANSIT = "tests/adversaries/test_shares_in_transit.py"
DIGESTS = "proofs/reviewed.toml"
THRESHOLDS, LISTS = "tests/protocols/one_message/test_parameters.py", "tests/adversaries/test_one_message_lists.py"
PLACES = REPOSITORY / "build" / "weakened"


@dataclass(frozen=True, slots=True)
class Weakening:
    """One change, and what detects it after all digests were renewed."""

    name: str
    file: str
    before: str
    after: str
    noticed_by: str = STATEMENTS
    """The pinned statements or claims, what Coq prints, a case of the model, a family of the solver, a kind of compared
    inputs, a query of the symbolic models, or a test that a claim names.
    """

    @property
    def shown(self) -> str:
        """What detects it, as the documents name it."""
        if self.noticed_by == STATEMENTS:
            return "the pinned statements"
        if self.noticed_by == CLAIMS:
            return "the pinned claims"
        if self.noticed_by == PRINTED:
            return PRINTED
        for kind, part in PARTS.items():
            if self.noticed_by.startswith(kind):
                return f"`{part}/`: {self.noticed_by.removeprefix(kind)}"
        return f"`{self.noticed_by.rpartition('::')[2]}`"

    def make(self, tree: Path) -> None:
        """Make the change in a copy of the repository."""
        source = (tree / self.file).read_text(encoding="utf-8")
        require(source.count(self.before) == 1, f"`{self.name}` must change exactly one place in {self.file}")
        (tree / self.file).write_text(source.replace(self.before, self.after), encoding="utf-8")


WEAKENINGS = (
    Weakening(
        "a gutted theorem",
        "proofs/coq/statements.v",
        "Theorem full_graph_tells_one_sum : obliged (fun u v => u != v) -> #|corrupted| < threshold ->\n"
        "  tells_one_sum (fun u v => u != v).\n",
        "Theorem full_graph_tells_one_sum : obliged (fun u v => u != v) -> #|corrupted| < threshold -> True.\n",
    ),
    Weakening(
        "a hypothesis in a section of statements.v",
        "proofs/coq/statements.v",
        "Variable signs : client -> {set client} * {set client} -> bool.\n",
        "Variable signs : client -> {set client} * {set client} -> bool.\nHypothesis nobody : corrupted = set0.\n",
    ),
    Weakening(
        "a sixth obligation",
        "proofs/coq/quorum.v",
        "  quorum_large : #|committee| + #|committee :&: corrupted| < 2 * quorum\n",
        "  quorum_large : #|committee| + #|committee :&: corrupted| < 2 * quorum;\n  nobody : corrupted = set0\n",
    ),
    Weakening(
        "a definition that says less: transcripts without uploads",
        "proofs/coq/transcripts.v",
        "(masks.uploads joined0 covered0 id x s == y) && [forall p, revealed p ==> (s p == r p)].",
        "[forall p, revealed p ==> (s p == r p)].",
    ),
    Weakening(
        "a notation in the way of a statement",
        "proofs/coq/statements.v",
        "Local Open Scope nat_scope.\n",
        'Local Open Scope nat_scope.\nLocal Notation "a < b" := (a <= b.+1) : nat_scope.\n',
    ),
    Weakening(
        "a notation between the steps of a proof",
        "proofs/coq/statements.v",
        "Proof. exact: masks.full_graph_hides. Qed.",
        'Proof. Local Notation "a == b" := true. exact: masks.full_graph_hides. Qed.',
    ),
    Weakening(
        "a proof that is not finished, after a comment in a string",
        "proofs/coq/split.v",
        "Lemma neighbours_irr : irreflexive neighbours.\nProof. by move=> u; rewrite /neighbours /after subrr. Qed.",
        'Definition opening := "(*"%string.\nLemma neighbours_irr : irreflexive neighbours.\nProof. Admitted.\n'
        'Definition closing := "*)"%string.',
    ),
    *(
        Weakening(
            f"a definition after `{command}`",
            "proofs/coq/transcripts.v",
            BEFORE_TRANSCRIPT,
            f"{command}\n{BEFORE_TRANSCRIPT}",
        )
        for command in (
            '#[ local ] Notation "a == b" := true : bool_scope.',
            'Time Notation "a == b" := true : bool_scope.',
            "Load gutted.",
            "Number Notation nat Nat.of_num_uint Nat.to_num_uint : bool_scope.",
        )
    ),
    Weakening(
        "a claim that says more",
        "proofs/claims.toml",
        'claim = "With uniform masks, active mode tells one sum,',
        'claim = "With uniform masks, every mode tells one sum,',
        CLAIMS,
    ),
    Weakening(
        "a statement that says nothing at every width but one",
        "proofs/smt/ring_kernels.py",
        """    left, right = _words(width, "l", "r")
    return Question(_is_element(kernels["add"]""",
        """    left, right = _words(width, "l", "r")
    if width != MUTATED_WIDTH:
        return Question(z3.BoolVal(val=True))
    return Question(_is_element(kernels["add"]""",
        f"{FAMILY}ring add",
    ),
    Weakening(
        "a query that exempts a corrupted dealer",
        "proofs/symbolic/classic.pv",
        "event(Lied(me, peer, c)) ==> event(Corrupted(me)).",
        "event(Lied(me, peer, c)) ==> event(Corrupted(me)) || event(Corrupted(peer)).",
        CLAIMS,
    ),
    Weakening("a comparison of two inputs", "proofs/claims.toml", '"20000 secrets dealt"', '"2 secrets dealt"', CLAIMS),
    Weakening(
        "a theorem with a premise more, its own proof adapted",
        "proofs/coq/statements.v",
        "Theorem sharing_field_is_prime : prime (2 ^ 16 - 15).\nProof. exact",
        "Theorem sharing_field_is_prime : true -> prime (2 ^ 16 - 15).\nProof. move=> _; exact",
        PRINTED,
    ),
    Weakening(
        "another modulus of the field that secrets are shared in",
        "secagg/crypto/prime_field.py",
        "2**256 - 189",
        "2**256 - 187",
        f"{COMPARED}dealt_secrets",
    ),
    Weakening(
        "a model in which nobody takes a pair",
        "proofs/symbolic/classic.pv",
        "    event Taken(me, peer, ctx, m, fixed);\n",
        "",
        f"{QUERY}classic: a pair can be taken",
    ),
    Weakening(
        "round 0: the check of the population",
        ROUND_0,
        "        configuration.require_protected(member.policy, present)\n",
        "        pass\n",
        f"{OFFERS}::test_a_threshold_below_the_rule_for_the_advertisers_ends_the_session_for_the_client",
    ),
    Weakening(
        "round 1: the signature of an entry",
        ROUND_1,
        "    identity.verify(item.signature, Label.SIGNED_SHARES, *parts, culprits=unverified(identity.client))\n",
        "",
        f"{ROSTERS}::test_shares_made_under_another_list_do_not_pass_a_neighbours_check_in_active_mode",
    ),
    Weakening(
        "round 0: keys are distinct",
        ROUND_0,
        "    _require_distinct_keys(own.client, own_keys, advertisers.values())\n",
        "",
        f"{ROSTERS}::test_a_bad_key_that_the_server_lets_pass_is_stopped_by_every_neighbour",
    ),
    Weakening(
        "round 0: the policy of a client",
        ROUND_0,
        "    configuration.require_accepted(member.policy)\n",
        "",
        f"{OFFERS}::test_an_offer_below_the_policy_is_refused_before_anything_is_drawn",
    ),
    Weakening(
        "round 0: the root of the roster",
        ROUND_0,
        "    if not proven:\n",
        "    if False:\n",
        f"{ROSTERS}::test_a_roster_that_does_not_fit_together_is_refused",
    ),
    Weakening(
        "round 0: the commitment to the opening",
        ROUND_0,
        "    if not compare_digest(commit_to_opening(message.opening), configuration.graph_commitment):\n",
        "    if False:\n",
        f"{ROSTERS}::test_a_roster_that_does_not_fit_together_is_refused",
    ),
    Weakening(
        "round 2: the signature of an entry",
        ROUND_2,
        "        verify_delivered_entry(roster, neighbour, key_set.position, item, advertiser.identity)\n",
        "",
        f"{TRANSIT}::test_in_active_mode_whatever_the_relay_alters_in_an_entry_ends_the_session_for_the_receiver",
    ),
    Weakening(
        "round 2: a pair fits its commitment",
        ROUND_2,
        "    if not compare_digest(place.commit_to(*digests), commitment):\n",
        "    if False:\n",
        f"{TRANSIT}::test_a_sender_of_a_crooked_share_is_complained_about_and_no_holder_is_blamed_for_it",
    ),
    Weakening(
        "round 4: the certificate",
        ROUND_4,
        "        _verify_certificate(member, masked, message)\n",
        "",
        f"{CASE}lists of 4 of 5, threshold 2",
    ),
    Weakening(
        "round 4: the neighbours' views",
        ROUND_4,
        "        _verify_views(member, masked, message, present)\n",
        "",
        f"{CASE}one other view, a committee of 3 of 5",
    ),
    Weakening(
        "one message: the threshold of certified lists",
        "protocols/one_message/parameters.py",
        "    return corrupted + packing\n",
        "    return corrupted + packing - 1\n",
        f"{THRESHOLDS}::test_the_table_of_thresholds",
    ),
    Weakening(
        "one message: an upload is on one list",
        "protocols/one_message/holder.py",
        "        self._require_free(upload_list)\n",
        "",
        f"{LISTS}::test_a_second_list_never_reaches_a_quorum",
    ),
    Weakening(
        "one message: the certificate of a list",
        "protocols/one_message/holder.py",
        "            require_certificate(work.agreement, digest, certified)\n",
        "            pass\n",
        f"{LISTS}::test_forged_certificates",
    ),
)
"""Weakenings that reviewers asked for, and a few that somebody might try next."""


def check_weakenings() -> None:
    """Make each weakening in a copy; the check must fail by the digests, and again without them."""
    there = importlib.util.find_spec("pytest") is not None
    require(there, f"pytest is missing in {sys.executable}; `make proofs`, or pip install '.[dev]'")
    if not PROGRAM.exists() or not all(map(is_built, THEORIES)):
        check_reference()
    started, copies, proverif = time.perf_counter(), SimpleQueue[Path](), found_or_built()
    made = [one for one in WEAKENINGS if proverif or not one.noticed_by.startswith(QUERY)]
    jobs = os.cpu_count() or 1
    for number in range(jobs):
        copies.put(copied(PLACES / str(number)))
    sound = copies.get()
    tests = {weakening.noticed_by for weakening in made if "::" in weakening.noticed_by}
    others = {weakening.noticed_by for weakening in made} - tests
    require(
        _passes(sound, *sorted(tests)) and all(_is_green(sound, other) for other in sorted(others)),
        "a copy of this repository fails without any weakening; fix that first",
    )
    copies.put(sound)
    with ThreadPoolExecutor(jobs) as pool:
        for weakening, unseen in zip(made, pool.map(lambda w: unseen_by(w, copies), made), strict=True):
            say(f"  {weakening.name}: {unseen or f'the digests, and without them {weakening.shown}'}")
            require(not unseen, f"`{weakening.name}` was not detected by {unseen}")
    shutil.rmtree(PLACES, ignore_errors=True)
    left = "" if proverif else " (weakenings that ProVerif would detect were NOT made)"
    say(f"weakenings: {len(made)} made{left}, each detected twice, {time.perf_counter() - started:.0f} s")


def unseen_by(weakening: Weakening, copies: SimpleQueue[Path]) -> str:
    """Return which of the two checks does not detect a weakening; nothing if both do."""
    tree = copies.get()
    kept = {file: (tree / file).read_bytes() for file in (weakening.file, DIGESTS)}
    try:
        weakening.make(tree)
        if _check(tree, "claims"):
            return "the digests"
        require(_check(tree, "renew"), f"digests cannot be renewed after `{weakening.name}`")
        return weakening.shown if _is_green(tree, weakening.noticed_by) else ""
    finally:
        for file, content in kept.items():
            (tree / file).write_bytes(content)
        copies.put(tree)


def copied(tree: Path) -> Path:
    """Return a copy of what the check and the tests need."""
    shutil.rmtree(tree, ignore_errors=True)
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY, tree, ignore=unwanted, symlinks=True)
    shutil.copytree(BUILT, tree / BUILT.relative_to(REPOSITORY))
    return tree


def named_tests() -> set[str]:
    """Return the test files that claims name."""
    return {test for claim in claims() for test in claim["tests"]}


def _is_green(tree: Path, noticed_by: str) -> bool:
    if noticed_by in {STATEMENTS, CLAIMS}:
        return _check(tree, noticed_by)
    require(_check(tree, "claims"), "the check fails with renewed digests, so nothing else was tested")
    if noticed_by == PRINTED:
        return _check(tree, "recheck")
    for kind, part in PARTS.items():
        if noticed_by.startswith(kind):
            tool = {COMPARED: [str(PROGRAM)], QUERY: [str(found_or_built())]}.get(kind, [])
            return _runs(tree, str(tree / "proofs" / part / "run.py"), *tool, noticed_by.removeprefix(kind))
    return _passes(tree, noticed_by)


def _check(tree: Path, *parts: str) -> bool:
    return _runs(tree, str(tree / "proofs" / "check"), *parts)


def _passes(tree: Path, *tests: str) -> bool:
    return _runs(tree, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests)


def _runs(tree: Path, *arguments: str) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, *arguments)
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False).returncode == 0  # noqa: S603 -- this interpreter
