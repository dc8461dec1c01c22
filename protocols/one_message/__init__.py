"""Secure sums whose clients speak once and may leave: masks whose sum has a short key."""

from __future__ import annotations

from .client import Client
from .committee.holding import Holdings
from .committee.member import OneMessageMember
from .committee.session import CommitteeSession
from .epoch import EpochRecord, HolderIdentity, verify_epoch
from .floors import Floors
from .holder import Holder
from .journal import FileJournal, boot_id
from .ledger import ClientRecord, Ledger
from .messages import in_parts
from .parameters import ThresholdRule
from .plan import Bounds, OneMessageSettings, plan_epoch
from .session import OneMessageHelpers, OneMessageServerSession, open_session

__all__ = [
    "Bounds",
    "Client",
    "ClientRecord",
    "CommitteeSession",
    "EpochRecord",
    "FileJournal",
    "Floors",
    "Holder",
    "HolderIdentity",
    "Holdings",
    "Ledger",
    "OneMessageHelpers",
    "OneMessageMember",
    "OneMessageServerSession",
    "OneMessageSettings",
    "ThresholdRule",
    "boot_id",
    "in_parts",
    "open_session",
    "plan_epoch",
    "verify_epoch",
]
