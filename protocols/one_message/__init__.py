"""Secure aggregation in one message per client; holders share the keys of the masks, so clients may leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import ClientRecord as ClientRecord
    from .client import Ledger as Ledger
    from .client import OneMessageMember as OneMessageMember
    from .configuration import EpochRecord as EpochRecord
    from .configuration import HolderIdentity as HolderIdentity
    from .configuration import verify_epoch as verify_epoch
    from .holder import Holder as Holder
    from .holder import require_believed as require_believed
    from .messages import Upload as Upload
    from .opening import OneMessageCut as OneMessageCut
    from .parameters import pieces_of as pieces_of
    from .requests import UploadList as UploadList
    from .session import Bounds as Bounds
    from .session import OneMessageHelpers as OneMessageHelpers
    from .session import OneMessageOptions as OneMessageOptions
    from .session import Server as Server
    from .session import open_session as open_session
    from .session import plan_epoch as plan_epoch
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "client": "Client ClientRecord Ledger OneMessageMember",
            "configuration": "EpochRecord HolderIdentity verify_epoch",
            "holder": "Holder require_believed",
            "messages": "Upload",
            "opening": "OneMessageCut",
            "parameters": "pieces_of",
            "requests": "UploadList",
            "session": "Bounds OneMessageHelpers OneMessageOptions Server open_session plan_epoch",
        },
    )
