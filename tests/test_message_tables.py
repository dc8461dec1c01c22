"""The README of each protocol has a table of bytes for each message, generated from the message's declaration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from secagg.declared import MessageIn
from secagg.protocols.enclave import client as enclave
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.round0_advertise_keys import AdvertisedKeys, KeyAdvertisement
from secagg.protocols.pairwise_mask.round1_share_keys import DeliveredShares, EncryptedShares
from secagg.protocols.pairwise_mask.round2_masked_input import Complaint, MaskedInput
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import (
    SurvivorSet,
    SurvivorSignature,
    UnmaskingRequest,
    UnmaskingShares,
)
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.offers import Invitation as TwoServersInvitation
from secagg.protocols.two_servers.offers import RoundOffers, ServerOffer
from secagg.protocols.two_servers.point_functions.one_hot_check import OneHotCommitment
from secagg.protocols.two_servers.server_keys import OperatorKeys
from secagg.protocols.two_servers.server_messages import AcceptedList, BatchRequest, Beginning, OutputCommitment
from secagg.protocols.two_servers.upload import Upload
from secagg.wire import MessageKind
from tests.harness.message_tables import table_of

pytestmark = pytest.mark.repository

DECLARED: dict[str, tuple[type[MessageIn[Any]], ...]] = {
    "pairwise_mask": (
        SessionConfiguration,
        KeyAdvertisement,
        AdvertisedKeys,
        EncryptedShares,
        DeliveredShares,
        MaskedInput,
        SurvivorSet,
        SurvivorSignature,
        UnmaskingRequest,
        UnmaskingShares,
        Complaint,
    ),
    "two_servers": (
        IndexingConfiguration,
        OperatorKeys,
        ServerOffer,
        Beginning,
        RoundOffers,
        TwoServersInvitation,
        Upload,
        BatchRequest,
        OneHotCommitment,
        AcceptedList,
        OutputCommitment,
    ),
    "enclave": (enclave.Invitation,),
}


@pytest.mark.parametrize("protocol", DECLARED)
def test_the_readme_has_the_table_of_every_message(protocol: str, repository: Path) -> None:
    readme = repository / "protocols" / protocol / "README.md"
    text, due = readme.read_text(encoding="utf-8"), section_of(DECLARED[protocol])
    assert due in text, f"{readme} does not have the declared messages; it should have\n{due}"


def test_the_browser_client_knows_the_existing_message_kinds(repository: Path) -> None:
    text = (repository / "clients" / "web" / "wire.js").read_text(encoding="utf-8")
    table = text.partition("const KINDS = ")[2].partition(";")[0]
    ranges: list[tuple[int, int]] = [(int(first), int(last)) for first, last in re.findall(r"\[(\d+), (\d+)\]", table)]
    assert {kind for first, last in ranges for kind in range(first, last + 1)} == set(MessageKind)


def section_of(messages: tuple[type[MessageIn[Any]], ...]) -> str:
    """Return the tables of some messages in the format of the README."""
    return "\n".join(f"### {one.__name__} (kind {one.kind.value})\n\n{table_of(one)}" for one in messages)
