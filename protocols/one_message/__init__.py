"""Secure sums whose clients speak once and may leave: masks whose sum has a short key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.faces import lazy

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import ClientRecord as ClientRecord
    from .client import Ledger as Ledger
    from .client import OneMessageMember as OneMessageMember
    from .epoch import EpochRecord as EpochRecord
    from .epoch import HolderIdentity as HolderIdentity
    from .epoch import verify_epoch as verify_epoch
    from .floors import Floors as Floors
    from .holder import Holder as Holder
    from .holder import Holdings as Holdings
    from .holder import require_believed as require_believed
    from .journal import FileJournal as FileJournal
    from .journal import boot_id as boot_id
    from .lattice.opening import OneMessageCut as OneMessageCut
    from .lattice.opening import joined as joined
    from .lattice.values import pieces_of as pieces_of
    from .messages import Upload as Upload
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
            "client": "Client ClientRecord Ledger OneMessageMember",
            "epoch": "EpochRecord HolderIdentity verify_epoch",
            "floors": "Floors",
            "holder": "Holder Holdings require_believed",
            "journal": "FileJournal boot_id",
            "lattice.opening": "OneMessageCut joined",
            "lattice.values": "pieces_of",
            "messages": "Upload",
            "parameters": "ThresholdRule",
            "plan": "Bounds OneMessageSettings plan_epoch",
            "requests": "UploadList",
            "session": "OneMessageHelpers Server open_session",
        },
    )
