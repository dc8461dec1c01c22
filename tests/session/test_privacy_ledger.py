"""Ledgers of simulated clients, in memory; the attack tests use ledgers in files."""

from __future__ import annotations

from fractions import Fraction

import pytest

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.privacy.accounting import Adjacency, PrivacyBudget
from secagg.privacy.client_noise import NoiseSettings
from secagg.privacy.kinds import NoiseKind
from secagg.session.ledger import PrivacyLedger, PrivacyLedgers

TWO = PrivacyBudget(epsilon=8.5, delta=1e-6, adjacency=Adjacency.ZERO_OUT)
"""A budget for two sums, but not for three."""


def test_every_simulated_client_keeps_one_ledger_across_sessions() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    settings = NoiseSettings(noise_multiplier=Fraction(1), l2_bounds=(3000,), adjacency=Adjacency.ZERO_OUT)
    layout = Layout((RingSegment(24, 8),))
    noise = settings.noise_for(layout, minimum_cohort=3, capacity=4, corrupted=0)
    ledgers = PrivacyLedgers(TWO)

    def of(client: int) -> PrivacyLedger:
        found = ledgers.of(ClientId(client))
        assert found is not None
        return found

    for uploads in (0, 1):
        assert of(1).uploads == uploads
        of(1).charge(noise)
    with pytest.raises(InvalidParameters, match="its 2 uploads so far have spent") as caught:
        of(1).charge(noise)
    assert caught.value.reason is Reason.BUDGET_SPENT
    assert of(1).uploads == 2
    assert of(2).uploads == 0


@pytest.mark.parametrize("kind", list(NoiseKind))
def test_another_accountant_reads_releases_as_events_and_charges_no_less(kind: NoiseKind) -> None:
    accountant = pytest.importorskip("dp_accounting.rdp", reason="needs the extra `dp`").RdpAccountant()
    settings = NoiseSettings(noise_multiplier=Fraction(2), l2_bounds=(3000,), noise_kind=kind)
    noise = settings.noise_for(Layout((RingSegment(24, 8),)), minimum_cohort=3, capacity=4, corrupted=0)
    ledger = PrivacyLedger(PrivacyBudget(epsilon=20.0, delta=1e-6))
    accountant.compose(ledger.event)
    assert accountant.get_epsilon(1e-6) == 0
    for _ in range(3):
        ledger.charge(noise)
    accountant.compose(ledger.event)
    assert ledger.spent <= accountant.get_epsilon(1e-6) * (1 + 1e-9)
    assert accountant.get_epsilon(1e-6) < 1.15 * ledger.spent


def test_without_a_budget_there_is_no_ledger() -> None:
    assert PrivacyLedgers(None).of(ClientId(1)) is None
