"""Analytics in a deployment: a site's policy and ledgers, and rounds on a platform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from secagg.compression.model_update import encode_parameters
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Reason
from secagg.platforms.client_node import ClientNode
from secagg.platforms.client_round import Node, NodeRound
from secagg.platforms.round_task import Rounds, RoundTask
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import Terms
from secagg.privacy.client_noise import USUAL_DELTA
from secagg.session.identities import ClientIdentity
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.roles import LazyUpdate

from .data import Site
from .declaration import Declaration
from .plan import Plan

ONCE = ClientNode(attempts=1)
"""Default policy of a site: count people again only if the data's version changes."""


@dataclass(frozen=True, slots=True)
class Answering:
    """A site that answers its declaration under its policy."""

    site: Site
    settings: ClientNode = ONCE
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", Plan(self.site.declaration))
        if (self.plan.multiplier or 0) < self.settings.noise:
            declared = f"noise of {float(self.plan.multiplier):g}" if self.plan.multiplier else "none"
            raise InvalidParameters(
                f"this site requires noise of {self.settings.noise:g}, but the declaration has {declared}; lower "
                "its epsilon",
                reason=Reason.BELOW_FLOOR,
            )

    @property
    def node(self) -> ClientNode:
        """Policy for the session, without the site's own noise and budget."""
        policy = self.settings.policy.raised_by({"minimum_cohort": self.site.declaration.least_clients})
        return replace(self.settings, policy=policy, noise=0.0, norm=0.0, epsilon=0.0, delta=USUAL_DELTA)

    def late(
        self, charges: SpentUpdates, task: str, number: int, identity: ClientIdentity | None, *, is_new: bool
    ) -> LazyUpdate:
        """Return the lazy update; it is charged when it is taken, before data are read.

        Args:
            identity: the site's key, if it has one.
            is_new: whether the session starts, so that the ledgers refuse at once.
        """
        noise, multiplier = self.plan.noise, float(self.plan.multiplier or 0)
        budgeted = replace(self.settings, noise=multiplier, norm=1.0 if multiplier else 0.0)
        ledger, spent = budgeted.privacy_ledger(identity), Spent(task.encode(), number, self.site.spent)
        if is_new:
            charges.require_open(spent)
            self._require_alone(charges.require_kept)
        if is_new and ledger is not None:
            ledger.require_room(noise)

        def charge() -> None:
            with charges.transaction():
                self._require_alone(charges.keep)
                charges.charge(spent)
                if ledger is not None:
                    ledger.charge(noise)

        return self.plan.late(self.site, SystemCoins(), charge)

    def _require_alone(self, kept: Callable[[bytes, dict[str, str], str], None]) -> None:
        """Refuse a declaration that may reveal counts hidden by another one of the same data; reads no data."""
        declared = self.site.declaration
        if declared.epsilon is None:
            said = declared.digest.hex()[:16] if declared.has_hidden_cells else "one without a floor"
            shown = {each: said for one in declared.statistics.values() for each in one.of}
            kept(
                f"statistics of version {self.site.version}".encode("utf-8", "surrogateescape"),
                {f"the declaration that shows {each!r}": one for each, one in shown.items()},
                "two declarations may together reveal a count that each hides; set an epsilon, or change the "
                "version if the data changed",
            )

    def begun(self, node: Node, terms: Terms) -> NodeRound:
        """Check the terms of a platform's session; refuse another declaration."""
        if terms.parameters != encode_parameters(self.plan.update):
            raise InvalidParameters(
                "the server's declaration differs from this site's; compare the two files", reason=Reason.BELOW_FLOOR
            )
        return replace(node, settings=self.node).begun(terms)

    def late_in(self, begun: NodeRound, *, is_new: bool) -> LazyUpdate:
        terms = begun.terms
        return self.late(begun.charges, terms.task, terms.round_number, begun.identity, is_new=is_new)


def settings_of(settings: SecAggSettings, declaration: Declaration) -> SecAggSettings:
    """Return a server's settings for a declaration: equal weights, and at least its minimum number of sites."""
    least = max(settings.minimum_cohort, declaration.least_clients)
    return replace(settings, weighting="uniform", minimum_cohort=least)


def round_of(rounds: Rounds, plan: Plan, *, clients: int, task: str, number: int) -> RoundTask:
    """Return the task of a platform's round for a declaration."""
    if clients > plan.declaration.most_clients:
        raise InvalidParameters(f"{clients} sites are above most_clients = {plan.declaration.most_clients}")
    return rounds.asked(plan.update, plan.asked, clients=clients, task=task, number=number)
