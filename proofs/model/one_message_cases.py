"""The cases of one message: what each lets happen, with planted defects that the search must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

import ideal
import one_message_clients
import one_message_holders
from defects import Replacement, nothing, planted
from one_message_cast import PATCHES, Cast, Setting, remembered_decoding
from report import Report
from secagg.crypto.labels import Label
from secagg.errors import UNDECIDED, PeerMisbehaved, Reason
from secagg.protocols.one_message import configuration, holder, parameters
from secagg.protocols.one_message.client import NO_MODEL, Ledger
from secagg.protocols.one_message.configuration import Agreement
from secagg.protocols.one_message.holder import HeldShare, Holder
from secagg.protocols.one_message.parameters import CHECK_WORDS
from secagg.protocols.one_message.requests import CertifiedList, ListSignature, UploadList
from secagg.session.ledger import Spent

TWO_ROUNDS_OF_THREE = ((1, (0, 1)), (2, (0, 1)), (3, (0, 1)))
FOUR_CLIENTS = ((1, (0,)), (2, (0,)), (3, (0,)), (4, (0,)))
ONE_ROUND = Setting(4, 1, uploads=FOUR_CLIENTS)
TWO_ROUNDS = Setting(3, 1, uploads=TWO_ROUNDS_OF_THREE, at_once=True)
PACKED = Setting(5, 1, packing=2)
BAD_CLIENTS = Setting(
    5,
    1,
    uploads=((1, (0,)), (2, (0,)), (3, (0,)), (8, (0,)), (9, (0,))),
    bad_clients=(8, 9),
    forged=((2, 0), (3, 0)),
    at_once=True,
)
Search = Setting | Callable[[], Report]


@dataclass(frozen=True, slots=True)
class Case:
    """A search, with planted defects."""

    name: str
    search: Search
    """Holders with the uploads that they receive, or another search."""
    defects: tuple[Replacement, ...] = ()
    attacked: bool = False
    every: bool = False
    """Whether every honest holder is searched, instead of one for all."""

    def explore(self) -> Report:
        """Run it, with ideal cryptography."""
        with ideal.installed(), planted(*PATCHES, *self.defects), remembered_decoding(), ExitStack() as stack:
            configuration._verified_epoch.cache_clear()  # noqa: SLF001 -- entries of another case
            stack.callback(configuration._verified_epoch.cache_clear)  # noqa: SLF001
            if isinstance(self.search, Setting):
                every = self.every or bool(self.search.bad_clients)
                return one_message_holders.explore(Cast(self.search), every=every)
            return self.search()


def cases() -> tuple[Case, ...]:
    """Return every case: unchanged holders and clients, then each defect, then parameters beyond the bounds."""
    shipped = (
        Case("one message: a client, two epochs", one_message_clients.explore),
        Case("one message: 4 holders, two lists", ONE_ROUND),
        Case("one message: 3 holders, two rounds", TWO_ROUNDS),
        Case("one message: 5 holders, packed", PACKED, every=True),
        Case("one message: bad dealers and forged uploads", BAD_CLIENTS),
    )
    found = (*DEFECTS, *BEYOND)
    return (*shipped, *(Case(f"one message: {name}", *rest, attacked=True) for name, *rest in found))


# --- Defects ----------------------------------------------------------------------------------------------------------


_WHOLE: Any = Holder._require_whole  # noqa: SLF001
_PLACE: Any = Holder._place  # noqa: SLF001


def _any_size(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    configuration = SimpleNamespace(minimum_cohort=1, parameters=work.agreement.parameters)
    agreement = SimpleNamespace(configuration=configuration, record=work.agreement.record)
    _WHOLE(self, SimpleNamespace(agreement=agreement, accepted=work.accepted), upload_list)


def _any_terms(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    terms = upload_list.terms
    accepted = {upload: replace(one, terms=terms) for upload, one in work.accepted.items()}
    _WHOLE(self, SimpleNamespace(agreement=work.agreement, accepted=accepted), upload_list)


def _part_of_it(self: Any, work: Any, upload_list: UploadList) -> None:  # noqa: ANN401 -- a holder, and its work
    accepted = _with_zeros(self, work, upload_list)
    _WHOLE(self, SimpleNamespace(agreement=work.agreement, accepted=accepted), upload_list)
    work.accepted = accepted


def _place_part(self: Any, work: Any, upload_list: UploadList, reply: bytes) -> None:  # noqa: ANN401
    work.accepted = _with_zeros(self, work, upload_list)
    _PLACE(self, work, upload_list, reply)


def _with_zeros(self: Any, work: Any, upload_list: UploadList) -> dict[bytes, Any]:  # noqa: ANN401
    """Return the accepted shares, and zero for each missing share of a list."""
    sizes = work.agreement.parameters
    terms = upload_list.terms
    words = np.zeros(sizes.secret_columns + CHECK_WORDS, np.int64)
    zeros = {
        one.upload: holder._Accepted(one.client, terms, HeldShare(sizes, self.position, words))  # noqa: SLF001
        for one in upload_list.listed
    }
    return {**zeros, **work.accepted}


def _same_keys(self: Any, position: int) -> Holder:  # noqa: ANN401 -- a cast
    return self.holder(position)  # type: ignore[no-any-return]


def _majority(holders: int, _: int) -> int:
    return holders // 2 + 1


def _without_the_secret(corrupted: int, packing: int) -> int:
    return corrupted + packing - 1


def _often(agreement: Agreement, upload_list: bytes, certified: CertifiedList) -> None:
    """Count each signature, whoever signed it."""
    if len(certified.certificate) < agreement.record.quorum:
        raise PeerMisbehaved("too few signatures", reason=Reason.QUORUM_NOT_MET, culprits=UNDECIDED)
    for one in certified.certificate:
        signed = ListSignature(t0=agreement.t0, holder=one.holder, upload_list=upload_list)
        agreement.verify(one.holder, one.signature, Label.ONE_MESSAGE_SIGNED_LIST, *signed.parts)


def _any_number(agreement: Agreement, upload_list: bytes, certified: CertifiedList) -> None:
    """Verify signatures, but require none."""
    for one in certified.certificate:
        signed = ListSignature(t0=agreement.t0, holder=one.holder, upload_list=upload_list)
        agreement.verify(one.holder, one.signature, Label.ONE_MESSAGE_SIGNED_LIST, *signed.parts)


def _on_any_list(self: Any, signed: Any, label: Label, digest: bytes, culprits: Any = UNDECIDED) -> None:  # noqa: ANN401
    is_list = label is Label.ONE_MESSAGE_SIGNED_LIST
    _QUORUM_OF(self, signed, label, bytes(32) if is_list else digest, culprits)


def _not_spent(self: Any, spent: Spent, epoch: int) -> None:  # noqa: ANN401 -- a ledger
    _CHARGE(self, replace(spent, model=NO_MODEL), epoch)


def _any_epoch(self: Any, spent: Spent, _: int) -> None:  # noqa: ANN401 -- a ledger
    _CHARGE(self, spent, self._record.newest_epoch)


def _in_memory(self: Any, record: Any) -> None:  # noqa: ANN401 -- a ledger, and its entries
    self._record = record


_QUORUM_OF: Any = Agreement.require_quorum
_CHARGE: Any = Ledger.charge
_FREE = "_require_free"
_CERTIFICATE = "require_certificate"
_QUORUMS: tuple[Replacement, ...] = ((parameters, "least_quorum", _majority),)
_THRESHOLDS: tuple[Replacement, ...] = ((parameters, "least_threshold", _without_the_secret),)
_CLIENT = one_message_clients.explore
_ANY_TERMS = ((Holder, "_require_whole", _any_terms),)
_SIGNED = Setting(4, 1)
_SIGNED_BY_THREE = Setting(3, 1)
DEFECTS: tuple[tuple[Any, ...], ...] = (
    ("keys that survive a restart", _SIGNED_BY_THREE, ((Cast, "restarted", _same_keys),)),
    ("an upload is on several lists", _SIGNED_BY_THREE, ((Holder, _FREE, nothing),)),
    ("lists of any size", _SIGNED, ((Holder, "_require_whole", _any_size),)),
    ("uploads of two rounds on one list", replace(TWO_ROUNDS, uploads=TWO_ROUNDS_OF_THREE[:2]), _ANY_TERMS),
    ("a part of a list", _SIGNED, ((Holder, "_require_whole", _part_of_it), (Holder, "_place", _place_part))),
    ("a quorum of the majority", _SIGNED_BY_THREE, _QUORUMS),
    ("certificates not verified", _SIGNED_BY_THREE, ((holder, _CERTIFICATE, nothing),)),
    ("certificates of any number", _SIGNED_BY_THREE, ((holder, _CERTIFICATE, _any_number),)),
    ("one signer counted often", _SIGNED_BY_THREE, ((holder, _CERTIFICATE, _often),)),
    (
        "signatures on any list",
        _SIGNED,
        (
            (ListSignature, "parts", property(lambda signed: (signed.holder.to_bytes(2, "big"), bytes(32)))),
            (Agreement, "require_quorum", _on_any_list),
        ),
    ),
    ("a dealer's polynomial not checked", BAD_CLIENTS, ((HeldShare, "require_on", nothing),)),
    ("uploads' signatures not verified", BAD_CLIENTS, ((holder, "require_signed", nothing),)),
    ("updates not spent", _CLIENT, ((Ledger, "charge", _not_spent),)),
    ("rounds not counted", _CLIENT, ((Ledger, "charge", nothing),)),
    ("epochs not counted", _CLIENT, ((Ledger, "charge", _any_epoch),)),
    ("a ledger that is not stored", _CLIENT, ((Ledger, "_write", _in_memory),)),
)
BEYOND: tuple[tuple[Any, ...], ...] = (
    ("a threshold of packed secrets that the corrupted reach", replace(_SIGNED, packing=2), _THRESHOLDS),
    ("two of 4 holders lie, not one", replace(_SIGNED, liars=2)),
)
"""Not a defect: the parameters exceed the bounds, and splitting lists succeeds. A holder restored with its memory
counts as a malicious one.
"""
