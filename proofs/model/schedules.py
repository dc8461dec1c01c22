"""All schedules of a case: what the server sends to each honest client, and what it has learned in the end.

Every combination of the clients' paths is run against the library's own clients, with the signatures and shares that
exist in that combination. Asking every client for everything loses no attack, because fewer answers reveal less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from asking import Answer, Answered, Request, Signatures
from bits import Bits
from knowledge import Owner, Share, Upload, fault, known_secrets, leaked_to_corrupted
from obligations import Deeds, broken_alone, broken_by
from paths import Catalogue, Messages, Path, Paths, described, subsets, useful
from report import Report
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import SurvivorSignature
from setups import GENUINE, Set, Setup
from showing import World

NOBODY: Set = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client sent before it was asked for shares."""

    messages: Messages
    upload: int
    """The bit of its upload."""
    signed: int
    """The bits of its signatures."""
    leaked: int
    """The bits of the shares that it sealed to keys of the server."""
    is_complete: bool
    """Whether it accepted every message."""


class Explorer:
    """All schedules of one setup."""

    def __init__(self, setup: Setup, catalogue: Catalogue) -> None:
        """Start without schedules."""
        self.setup, self.catalogue, self.world = setup, catalogue, World(setup)
        if 0 < setup.committee < setup.population:
            self.world.draw_committee(frozenset(range(setup.committee)))
        self.report = Report()
        self._unmet = set[str]()
        """The obligations that some client has violated so far."""
        self._paths = Paths(self.world, catalogue)
        self._signatures = Signatures(self.world)
        self._outcomes = dict[tuple[Owner, Path, Set], Outcome]()
        self._requests = dict[tuple[int, Path, int], Request]()
        self._shares, self._uploads = Bits[Share](), Bits[Upload]()
        self._verdicts = dict[tuple[int, int], tuple[bool, str | None]]()
        self._keeps_input = {
            c: setup.attempts > 1 and not setup.rounds and self.world.keeps_its_input(c) for c in setup.honest
        }

    def explore(self) -> Report:
        """Run every schedule, up to the first that reveals too much to the server.

        A violated obligation is a fault as well, even if the server learns nothing from it here.
        """
        report, words = self.report, list[str]()
        for schedule in self._agreed() if self.catalogue.agreed else self._free():
            report.schedules += 1
            revealing, found = self._play(schedule)
            report.revealing += revealing
            if found is not None:
                words, report.trace = [found], tuple(map(described, schedule.values()))
                break
        words += [f"a client {what}" for what in self._paths.broken]
        words += [f"not met: {', '.join(sorted(self._unmet))}"] if self._unmet else []
        report.fault = "; ".join(words) or None
        report.calls, report.refused = self.world.runs, self._paths.refused
        return report

    def _free(self) -> Iterator[dict[Owner, Path]]:
        owners = [(client, attempt) for attempt in range(self.setup.attempts) for client in self.setup.honest]
        choices = useful([self._paths.of(*owner) for owner in owners])
        for owner, paths in zip(owners, choices, strict=True):
            for path in paths:
                self._outcome(owner, path, NOBODY)
        for paths in product(*choices):
            yield dict(zip(owners, paths, strict=True))

    def _agreed(self) -> Iterator[dict[Owner, Path]]:
        """Yield the schedules of a server that follows the protocol: dropouts at every possible point."""
        shown, honest = self.world.whole_roster(0), self.setup.honest
        made = dict[tuple[Set, tuple[Set, ...]], Path]()
        for sharers in subsets(self.setup.everyone):
            for contributors in subsets(sharers):
                for answering in subsets(contributors - self.setup.corrupted):
                    asked = {client: (contributors,) if client in answering else () for client in honest}
                    for once in asked.values():
                        made.setdefault((sharers, once), Path(shown, sharers, (), once))
                    yield {(c, 0): made[sharers, once] for c, once in asked.items() if c in contributors}

    def _play(self, schedule: Mapping[Owner, Path]) -> tuple[bool, str | None]:
        """Return whether a sum was revealed, and what the server must not have learned."""
        is_mixed = self.setup.attempts > 1 or len({path.shown for path in schedule.values()}) > 1
        outcomes, answers = dict[Owner, Outcome](), list[Answer]()
        pool = uploads = shares = 0
        for owner, path in schedule.items():
            missing = self._missing(owner, path, schedule) if is_mixed else NOBODY
            outcome = outcomes[owner] = self._outcome(owner, path, missing)
            pool |= outcome.signed
            uploads |= outcome.upload
            shares |= outcome.leaked
        for owner, path in schedule.items():
            outcome = outcomes[owner]
            if path.asked and outcome.is_complete:
                for answered in self._answers(owner, path, outcome.messages, pool):
                    shares |= answered.shares
                    answers += [answered.answer] if answered.answer else []
        if answers and self.setup.quorum:
            self._hold_to_obligations(schedule, outcomes, answers)
        if (uploads, shares) not in self._verdicts:
            made = [self._as_released(upload, uploads) for upload in self._uploads.each(uploads)]
            known = known_secrets(self.setup, self._shares.each(shares))
            found = fault(self.setup, made, known, self.world.mask_names)
            self._verdicts[uploads, shares] = bool(known.seeds), found
        return self._verdicts[uploads, shares]

    def _hold_to_obligations(
        self, schedule: Mapping[Owner, Path], outcomes: Mapping[Owner, Outcome], answers: list[Answer]
    ) -> None:
        signed = {owner: path for owner, path in schedule.items() if outcomes[owner].is_complete}
        uploads = {owner: self._uploads.first(one.upload) for owner, one in outcomes.items() if one.upload}
        for answer in answers:
            self._unmet.update(broken_by(self.world, answer, Deeds(signed, uploads)))

    def _missing(self, owner: Owner, path: Path, schedule: Mapping[Owner, Path]) -> Set:
        """Return the clients whose entries for a client do not exist, because they received another roster."""
        client, attempt = owner
        return frozenset(
            other
            for other in path.sharers - self.setup.corrupted - {client}
            if other in path.shown.genuine
            and (other, attempt) in schedule
            and schedule[other, attempt].shown is not path.shown
        )

    def _as_released(self, upload: Upload, uploads: int) -> Upload:
        """Return an upload with the name of its input: in a retry the first attempt's input, unless it was spent."""
        client, attempt = upload.owner
        is_again = attempt and self._keeps_input[client]
        if is_again and any(other.owner == (client, 0) for other in self._uploads.each(uploads)):
            return replace(upload, input_name=(client, 0))
        return upload

    def _outcome(self, owner: Owner, path: Path, missing: Set) -> Outcome:
        key = owner, path, missing
        if key not in self._outcomes:
            self._outcomes[key] = self._upload_and_sign(owner, path, missing)
        return self._outcomes[key]

    def _upload_and_sign(self, owner: Owner, path: Path, missing: Set) -> Outcome:
        world, shown, client = self.world, path.shown, owner[0]
        messages = [world.roster_message(shown, client), world.shares_message(shown, client, path.sharers, missing)]
        for index, contributors in enumerate(path.signed):
            message = world.survivors_message(shown, path.sharers, contributors)
            messages += self._paths.next(message, is_second=index > 0)
        answers = world.run((client, GENUINE), shown.attempt, tuple(messages))
        # The advertisement, the shares, the upload, and then the signatures.
        upload = signed = 0
        if len(answers.replies) > 2:  # noqa: PLR2004
            upload = self._uploads.bit(Upload(owner, shown, path.sharers, answers.masks, owner))
        if upload and self.setup.quorum:
            self._unmet.update(broken_alone(world, path))
            made = [MaskedInput.decode(answers.replies[2], world.roster(shown)).signature]
            made += [SurvivorSignature.decode(reply).signature for reply in answers.replies[3:]]
            statements = [world.view_statement(shown, client, path.sharers)]
            statements += [world.endorsement_statement(shown, client, path.sharers, one) for one in path.signed]
            for statement, signature in zip(statements, made, strict=False):
                if signature == world.sign(client, statement):
                    signed |= self._signatures.bit((client, statement))
        leaked = self._shares.set_of(leaked_to_corrupted(self.setup, owner, shown))
        return Outcome(tuple(messages), upload, signed, leaked, answers.accepted)

    def _answers(self, owner: Owner, path: Path, messages: Messages, pool: int) -> Iterator[Answered]:
        """Ask for everything on the path, and yield the results."""
        for index in range(len(path.asked)):
            key = owner[0], path, index
            if key not in self._requests:
                before = [*self._outcome(owner, path, NOBODY).messages]
                before += [self._paths.perfect_request(owner[0], path, first) for first in path.asked[:index]]
                self._requests[key] = Request(
                    self._paths, self._signatures, self._shares, owner[0], path, index, tuple(before)
                )
            answered = self._requests[key].answer(messages, pool)
            messages = answered.messages
            yield answered
