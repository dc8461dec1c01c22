"""The packages whose decisions are altered: their files, and the tests and model cases that judge them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from alterations import REPOSITORY

MODEL: Final = REPOSITORY / "proofs" / "model"


@dataclass(frozen=True, slots=True)
class Room:
    """Files that belong together, and their judges."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    """Test files and folders, run in this process."""
    further: tuple[str, ...] = ()
    """Additional judges of survivors, with ``--deeper``."""
    arithmetic: bool = False
    """Whether operators and constants are altered too."""
    without: tuple[str, ...] = ()
    """Words in the names of tests that are not run, because they take long or start another process."""
    models: tuple[str, ...] = ()
    """Names of cases without a fault."""

    def cases(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Yield each case of the model with a function that returns whether it has its expected outcome."""
        if not self.models:
            return
        if str(MODEL) not in sys.path:
            sys.path.insert(0, str(MODEL))
        import enclave_cases  # noqa: PLC0415 -- only when the model is run
        import one_message_cases  # noqa: PLC0415

        known: dict[str, Callable[[], Any]] = {
            case.name: case.explore
            for model in (enclave_cases, one_message_cases)
            for case in model.cases()
            if not case.attacked
        }
        for name in self.models:
            yield name, _clean(known[name])


def _clean(explore: Callable[[], Any]) -> Callable[[], bool]:
    def passes() -> bool:
        report = explore()
        return not report.fault and report.revealing > 0

    return passes


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_ONE_MESSAGE_TESTS: Final = (
    *_in(
        "tests/adversaries",
        "test_one_message_dealers.py",
        "test_one_message_epochs.py",
        "test_one_message_holder_memory.py",
        "test_one_message_lists.py",
        "test_one_message_transit.py",
    ),
    *_in(
        "tests/protocols/one_message",
        "test_client.py",
        "test_receipts.py",
        "test_parameters.py",
        "test_sharing.py",
        "test_messages.py",
        "test_split_lists.py",
        "test_session.py",
        "test_server.py",
        "test_cut.py",
        "test_vectors.py",
        "test_run.py",
    ),
)
_TWO_SERVERS_ATTACKS: Final = _in(
    "tests/adversaries",
    "test_standings_everywhere.py",
    "test_two_servers_blame.py",
    "test_two_servers_cheating.py",
    "test_two_servers_crashes.py",
    "test_two_servers_lists.py",
    "test_two_servers_noise.py",
    "test_two_servers_offers.py",
    "test_two_servers_secrets.py",
    "test_two_servers_uploads.py",
)
_ENCLAVE_ATTACKS: Final = _in(
    "tests/adversaries",
    "test_enclave_bounds.py",
    "test_enclave_memory.py",
    "test_enclave_offers.py",
    "test_enclave_releases.py",
    "test_enclave_uploads.py",
    "test_standings_everywhere.py",
)
_PAIRWISE_ATTACKS: Final = _in(
    "tests/adversaries",
    "test_liars_at_unmasking.py",
    "test_shares_in_transit.py",
    "test_offers_below_the_policy.py",
    "test_survivor_sets.py",
    "test_rosters.py",
    "test_order_and_replays.py",
)
_SLOW_VECTORS: Final = ("slow_implementation", "generator")
"""Tests of the vectors themselves."""
_OTHER_PROTOCOLS: Final = ("[coded", "[enclave", "[pairwise", "[plain", "[two servers")
_OTHER_SESSIONS: Final = (*_OTHER_PROTOCOLS[1:], "[one message")
ROOMS: Final = (
    Room(
        "one message: holders",
        _in("protocols/one_message", "holder.py", "parameters.py"),
        _ONE_MESSAGE_TESTS,
        models=(
            "one message: 3 holders, two rounds",
            "one message: 4 holders, two lists",
            "one message: bad dealers and forged uploads",
        ),
    ),
    Room(
        "two servers: release, rules",
        _in("protocols/two_servers", "release.py", "offers.py"),
        (*_in("tests/protocols/two_servers", "test_round_rules.py", "test_server.py"), *_TWO_SERVERS_ATTACKS),
    ),
    Room(
        "enclave: releases, buffers, messages",
        _in("protocols/enclave", "trusted/buffer.py", "trusted/messages.py"),
        (
            "tests/protocols/enclave/test_buffer.py",
            "tests/protocols/enclave/test_client.py",
            "tests/protocols/enclave/test_messages.py",
            "tests/adversaries/test_enclave_memory.py",
            "tests/adversaries/test_enclave_releases.py",
        ),
        (*_ENCLAVE_ATTACKS, "tests/protocols/enclave/test_enclave.py"),
        models=("enclave: as released",),
    ),
    Room(
        "sharing: Shamir, check words, packing",
        (
            *_in("secagg/crypto", "shamir.py", "reconstruction.py", "prime_field.py", "check_words.py"),
            "protocols/one_message/sharing.py",
        ),
        (
            *_in("tests/crypto", "test_shamir.py", "test_prime_field.py", "test_check_words.py"),
            "tests/protocols/one_message/test_sharing.py",
        ),
        (
            "tests/adversaries/test_one_message_dealers.py",
            "tests/protocols/one_message/test_vectors.py",
            "tests/protocols/pairwise_mask/test_rounds.py",
            "tests/protocols/pairwise_mask/test_recovery.py",
        ),
        arithmetic=True,
    ),
    Room(
        "two servers: servers and operators",
        _in(
            "protocols/two_servers",
            "server.py",
            "server_messages.py",
            "opened_upload.py",
            "standing_server.py",
            "server_keys.py",
        ),
        (
            *_in(
                "tests/protocols/two_servers",
                "test_server.py",
                "test_server_keys.py",
                "test_server_messages.py",
                "test_standing_rules.py",
                "test_standing_server.py",
                "test_envelope.py",
                "test_upload.py",
                "point_functions/test_batch.py",
            ),
            "tests/protocols/test_declared_messages.py",
            *_TWO_SERVERS_ATTACKS,
        ),
        _in("tests/protocols/two_servers", "test_configured_means_released.py", "test_message_sizes.py"),
    ),
    Room(
        "session: ledger, latch, certificates",
        _in(
            "secagg/session",
            "client_policy.py",
            "ledger.py",
            "store.py",
            "certificates.py",
            "signing_keys.py",
            "durable.py",
            "sealed_state.py",
        ),
        (
            *_in(
                "tests/session",
                "test_certificates.py",
                "test_client_policy.py",
                "test_durable.py",
                "test_full_disk.py",
                "test_latch.py",
                "test_ledger.py",
                "test_privacy_ledger.py",
                "test_rosters.py",
                "test_sealed_state.py",
                "test_store.py",
            ),
            *_in("tests/adversaries", "test_privacy_budgets.py", "test_standings.py"),
        ),
        (*_in("tests/adversaries", "test_one_message_epochs.py", "test_order_and_replays.py"), "tests/session"),
    ),
    Room(
        "pairwise: thresholds, policy, sets",
        _in("protocols/pairwise_mask", "graph.py", "plan.py", "configuration.py"),
        (
            *_in(
                "tests/protocols/pairwise_mask",
                "test_absent_clients.py",
                "test_thresholds.py",
                "test_configuration.py",
                "test_graph.py",
                "test_policy.py",
                "test_roster.py",
                "test_transitions.py",
            ),
            "tests/adversaries/test_leavers.py",
        ),
        (
            "tests/adversaries/test_offers_below_the_policy.py",
            "tests/adversaries/test_rosters.py",
            "tests/protocols/pairwise_mask",
            "tests/planning",
        ),
    ),
    Room(
        "privacy: noise and rounding",
        _in("secagg/privacy", "client_noise.py", "rounding.py", "accounting.py", "kinds.py", "noise.py"),
        (
            *_in(
                "tests/privacy",
                "test_accounting.py",
                "test_budget.py",
                "test_client_noise.py",
                "test_noise.py",
                "test_rounding.py",
                "test_sensitivity.py",
            ),
            "tests/adversaries/test_client_noise.py",
        ),
    ),
    Room(
        "pairwise: server",
        _in("protocols/pairwise_mask", "session.py", "recovery.py", "relay.py"),
        (
            *_in(
                "tests/protocols/pairwise_mask",
                "test_rounds.py",
                "test_recovery.py",
                "test_revealed_sets.py",
                "test_server_record.py",
                "test_session.py",
                "test_transitions.py",
                "test_participation.py",
                "test_vectors.py",
            ),
            *_PAIRWISE_ATTACKS,
        ),
        ("tests/protocols/pairwise_mask", "tests/adversaries/test_leavers.py"),
        without=_SLOW_VECTORS,
    ),
    Room(
        "pairwise: client and rounds",
        _in(
            "protocols/pairwise_mask",
            "client.py",
            "client_record.py",
            "member.py",
            "round0_advertise_keys.py",
            "round1_share_keys.py",
            "round2_masked_input.py",
            "rounds3_4_unmasking.py",
        ),
        (
            *_in(
                "tests/protocols/pairwise_mask",
                "test_rounds.py",
                "test_client_record.py",
                "test_masking.py",
                "test_session.py",
                "test_recovery.py",
                "test_transitions.py",
                "test_participation.py",
                "test_vectors.py",
            ),
            "tests/protocols/test_masked_rounding.py",
            *_PAIRWISE_ATTACKS[1:],
            *_in(
                "tests/adversaries",
                "test_client_noise.py",
                "test_message_forms.py",
                "test_privacy_budgets.py",
                "test_standings.py",
                "test_standings_everywhere.py",
                "test_sums_below_the_cohort.py",
            ),
        ),
        ("tests/protocols/pairwise_mask", _PAIRWISE_ATTACKS[0]),
        without=_SLOW_VECTORS,
    ),
    Room(
        "enclave: inside",
        _in("protocols/enclave", "trusted/enclave.py", "trusted/histogram.py", "trusted/configuration.py"),
        (
            *_in(
                "tests/protocols/enclave",
                "test_enclave.py",
                "test_histogram.py",
                "test_configuration.py",
                "test_buffer.py",
                "test_hostile_host.py",
            ),
            *_in(
                "tests/adversaries",
                "test_enclave_bounds.py",
                "test_enclave_offers.py",
                "test_enclave_memory.py",
                "test_enclave_releases.py",
                "test_enclave_uploads.py",
                "test_rows_of_few_clients.py",
                "test_standings_everywhere.py",
            ),
        ),
        _ENCLAVE_ATTACKS,
    ),
    Room(
        "one message: client, server",
        _in(
            "protocols/one_message",
            "client.py",
            "configuration.py",
            "tally.py",
            "opening.py",
            "decoding.py",
            "messages.py",
            "requests.py",
            "session.py",
        ),
        (
            *_ONE_MESSAGE_TESTS,
            "tests/protocols/one_message/test_limits.py",
            "tests/protocols/one_message/test_recovery.py",
            "tests/protocols/one_message/lattice/test_masks.py",
            "tests/protocols/one_message/lattice/test_ring_products.py",
            "tests/adversaries/test_one_message_liars.py",
            "tests/adversaries/test_privacy_budgets.py",
            "tests/protocols/test_declared_messages.py",
            "tests/session/test_conduct.py",
            "tests/session/test_machine.py",
        ),
        ("tests/protocols/one_message", "tests/scale/test_sums.py", "tests/adversaries/test_one_message_liars.py"),
        without=_OTHER_PROTOCOLS,
        models=("one message: a client, two epochs",),
    ),
    Room(
        "LightSecAgg",
        _in("protocols/light_secagg", "client.py", "configuration.py", "field.py", "server.py", "session.py"),
        ("tests/protocols/light_secagg", *_in("tests/session", "test_conduct.py", "test_machine.py", "test_run.py")),
        without=_OTHER_SESSIONS,
    ),
    Room(
        "two servers: client, configuration",
        _in("protocols/two_servers", "client.py", "configuration.py"),
        (
            *_in("tests/protocols/two_servers", "test_client.py", "test_configuration.py", "test_policy.py"),
            *_TWO_SERVERS_ATTACKS,
            "tests/adversaries/test_rows_of_few_clients.py",
        ),
    ),
    Room(
        "enclave: client, host",
        _in(
            "protocols/enclave",
            "client.py",
            "seal_ledger.py",
            "server.py",
            "release_privacy.py",
            "session.py",
            "verified_enclave.py",
        ),
        (
            *_in(
                "tests/protocols/enclave",
                "test_client.py",
                "test_enclave.py",
                "test_hostile_host.py",
                "test_plan.py",
                "test_privacy.py",
                "test_verified_enclave.py",
            ),
            "tests/session/test_ledger.py",
            "tests/adversaries/test_rows_of_few_clients.py",
            *_ENCLAVE_ATTACKS,
        ),
    ),
    Room("transport: exchange", ("secagg/transport/exchange.py",), ("tests/transport/test_exchange.py",)),
    Room(
        "platforms: a server's round",
        _in("secagg/platforms", "server_round.py", "__init__.py"),
        ("tests/platforms/test_server_round.py",),
    ),
    Room(
        "scale: sums, tasks and state",
        _in("secagg/scale", "spread.py", "storage.py"),
        _in("tests/scale", "test_sums.py", "test_engines.py", "test_spread.py", "test_state.py"),
        without=("test_a_coordinator_that_is_killed_at_any_moment",),
    ),
)
"""In order of importance."""
