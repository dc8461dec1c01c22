"""Secure sums whose clients speak once and may leave: masks whose sum has a short key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.faces import lazy

if TYPE_CHECKING:
    from .client import Client as Client
    from .cut import OneMessageCut as OneMessageCut
    from .cut import joined as joined
    from .epoch import EpochRecord as EpochRecord
    from .epoch import HolderIdentity as HolderIdentity
    from .epoch import verify_epoch as verify_epoch
    from .floors import Floors as Floors
    from .holder import Holder as Holder
    from .holder import require_believed as require_believed
    from .journal import FileJournal as FileJournal
    from .journal import boot_id as boot_id
    from .ledger import ClientRecord as ClientRecord
    from .ledger import Ledger as Ledger
    from .member import Holdings as Holdings
    from .member import OneMessageMember as OneMessageMember
    from .messages import Upload as Upload
    from .messages import pieces_of as pieces_of
    from .parameters import ThresholdRule as ThresholdRule
    from .plan import Bounds as Bounds
    from .plan import OneMessageSettings as OneMessageSettings
    from .plan import plan_epoch as plan_epoch
    from .requests import UploadList as UploadList
    from .session import OneMessageHelpers as OneMessageHelpers
    from .session import Server as Server
    from .session import open_session as open_session
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "client": "Client",
            "cut": "OneMessageCut joined",
            "epoch": "EpochRecord HolderIdentity verify_epoch",
            "floors": "Floors",
            "holder": "Holder require_believed",
            "journal": "FileJournal boot_id",
            "ledger": "ClientRecord Ledger",
            "member": "Holdings OneMessageMember",
            "messages": "Upload pieces_of",
            "parameters": "ThresholdRule",
            "plan": "Bounds OneMessageSettings plan_epoch",
            "requests": "UploadList",
            "session": "OneMessageHelpers Server open_session",
        },
    )
