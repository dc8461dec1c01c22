"""A server that shows holders other lists than one: what careless holders would tell it, and that ours refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import pytest

from secagg.errors import AuthenticationFailed, PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.protocols.one_message import configuration
from secagg.protocols.one_message.configuration import HolderSignature, Offer
from secagg.protocols.one_message.decoding import SumOfSecrets
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.masks import EpochRing, epoch_ring
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.opening import Accumulator
from secagg.protocols.one_message.parameters import FIELD
from secagg.protocols.one_message.requests import Answer, CertifiedList, Listed, ListSignature, UploadList
from secagg.protocols.one_message.tally import Tally
from tests.harness.one_message_sums import InsecureSum, SumSetup, Total, opened_by, recover
from tests.harness.planted import always

VICTIM = 0
Words = np.ndarray[Any, Any]


def list_of(offer: Offer, uploads: Mapping[ClientId, bytes]) -> bytes:
    listed = tuple(Listed(client=client, upload=uploads[client]) for client in sorted(uploads))
    return UploadList(t0=offer.agree().t0, terms=offer.terms, listed=listed).encode()


def taken_by(server: Tally) -> dict[ClientId, bytes]:
    known = server._taken  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return {client: one[: configuration.DIGEST_BYTES] for client, one in known.items()}


def digests(server: Tally) -> dict[ClientId, bytes]:
    """Return what the uploads of a server that collected them are known by."""
    return {listed.client: listed.upload for listed in fixed(server).listed}


def fixed(server: Tally) -> UploadList:
    server.fix_list()
    return server.upload_list


def words_of(answer: bytes) -> Words:
    return np.frombuffer(Answer.decode(answer).sums, "<u2").astype(np.int64)


def as_answer(words: Words) -> bytes:
    return (words % FIELD).astype("<u2").tobytes()


def victims_input(world: InsecureSum, offer: Offer, upload: bytes, secret: SumOfSecrets) -> bool:
    """Whether the secret opens the victim's upload alone, to the victim's input."""
    ring = ring_of(offer)
    total = Total(ring.parameters)
    total.add(Upload.decode(upload).vector)
    found = opened_by(ring, total, secret).vector(0)
    victims: list[int] = world.setup.values_of(world.setup.clients[VICTIM]).values[0].tolist()
    return bool(found.tolist() == victims)


def ring_of(offer: Offer) -> EpochRing:
    agreement = offer.agree()
    return epoch_ring(agreement.parameters, agreement.epoch.seed)


def world_of(
    monkeypatch: pytest.MonkeyPatch, setup: SumSetup, *planted: Callable[[pytest.MonkeyPatch], None]
) -> InsecureSum:
    for plant in planted:
        plant(monkeypatch)
    return InsecureSum(setup)


def without_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holder, "_require_whole", always(None))


def without_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holders that forget on which list an upload is."""
    monkeypatch.setattr(Holder, "_place", always(None))


def keeping_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holders that keep shares after an answer, which those with the rules have no reason to."""
    monkeypatch.setattr("secagg.protocols.one_message.holder.HeldShare.wipe", always(None))


# --- Several sums -----------------------------------------------------------------------------------------------------


# --- Two certificates -------------------------------------------------------------------------------------------------

SEVEN = SumSetup(holders=7, threshold=3)


def certified_by(world: InsecureSum, upload_list: bytes, positions: Iterable[int]) -> bytes:
    signed = [ListSignature.decode(world.holders[position].respond(upload_list)) for position in sorted(positions)]
    certificate = tuple(HolderSignature(holder=one.holder, signature=one.signature) for one in signed)
    return CertifiedList(upload_list=upload_list, certificate=certificate).encode()


def two_certificates(world: InsecureSum) -> bool:
    setup, offer = world.setup, world.offer()
    server = world.collected(offer)
    victim, known = setup.clients[VICTIM], digests(server)
    upload = world.stored_upload(victim)
    everybody = list_of(offer, known)
    del known[victim]
    others = list_of(offer, known)
    answers = list[dict[int, bytes]]()
    for upload_list, asked in ((everybody, (0, 1, 2)), (others, (3, 4, 5))):
        certified = certified_by(world, upload_list, range(world.record.quorum))
        answers.append({p: Answer.decode(world.holders[p].respond(certified)).sums for p in asked})
    with_it, without_it = (recover(offer.agree().parameters, one).sum_secret for one in answers)
    return victims_input(world, offer, upload, with_it - without_it)


def test_two_certificates_with_and_without_a_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as planted:
        assert two_certificates(world_of(planted, SEVEN, without_placements))
    with pytest.raises(PeerMisbehaved, match="an upload can be on only one list"):
        two_certificates(InsecureSum(SEVEN))


def test_a_second_list_never_reaches_a_quorum() -> None:
    """The holders are divided between two lists; only one list can be certified, and a smaller one never."""
    world = InsecureSum(SEVEN)
    offer = world.offer()
    known = digests(world.collected(offer))
    everybody = list_of(offer, known)
    del known[world.setup.clients[VICTIM]]
    others = list_of(offer, known)
    signed = 0
    for position, holder in world.holders.items():
        for upload_list in (everybody, others) if position % 2 else (others, everybody):
            with suppress(PeerMisbehaved):
                signature = ListSignature.decode(holder.respond(upload_list))
                signed += signature.upload_list == UploadList.decode(others).digest
    assert signed < world.record.quorum


def test_two_lists_at_the_same_moment_get_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were found free before either was taken down: the difference of the answers is the victim's share."""
    world = InsecureSum(SumSetup())
    offer = world.offer()
    known = digests(world.collected(offer))
    victim = world.setup.clients[0]
    others = {client: upload for client, upload in known.items() if client != victim}
    # Where the two meet.
    checked, both = Holder._require_whole, Barrier(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def meet(holder: Holder, *arguments: object) -> None:
        checked(holder, *arguments)  # type: ignore[arg-type]
        try:
            both.wait(timeout=0.5)
        except BrokenBarrierError:
            return

    monkeypatch.setattr(Holder, "_require_whole", meet)

    def ask(request: bytes) -> Reason | None:
        try:
            world.holders[0].respond(request)
        except PeerMisbehaved as error:
            return error.reason
        return None

    requests = [list_of(offer, uploads) for uploads in (known, others)]
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(ask, requests)) == {None, Reason.ALREADY_SPENT}


# --- Partial lists ----------------------------------------------------------------------------------------------------


def withheld_share(world: InsecureSum, monkeypatch: pytest.MonkeyPatch | None) -> bool:
    """Withhold the victim's share from T holders; careless ones answer for the rest of the list."""
    offer, setup = world.offer(), world.setup
    victim, kept = setup.clients[VICTIM], (0, 1, 2)
    upload = world.upload(victim, offer)
    server = world.collected(offer, setup.clients[1:])
    server.receive_upload(victim, upload)
    world.ask(server, server.deliver(), absent=kept)
    server.settle()
    # A server that cheats lists what it likes.
    known = taken_by(server)
    everybody = list_of(offer, known)
    if monkeypatch is not None:
        skip_what_never_came(monkeypatch)
    certified = certified_by(world, everybody, range(world.record.quorum))
    answers = [
        {position: Answer.decode(world.holders[position].respond(certified)).sums for position in asked}
        for asked in ((3, 4, 5), kept)
    ]
    with_it, without_it = (recover(offer.agree().parameters, one).sum_secret for one in answers)
    return victims_input(world, offer, upload, with_it - without_it)


def skip_what_never_came(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Holder._answer  # noqa: SLF001 -- what is planted away  # pyright: ignore[reportPrivateUsage]
    place = Holder._place  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def shorter(work: Any, upload_list: UploadList) -> UploadList:
        return replace(upload_list, listed=tuple(one for one in upload_list.listed if one.upload in work.accepted))

    def answer(self: Holder, work: Any, upload_list: UploadList) -> bytes:
        return whole(self, work, shorter(work, upload_list))

    def placed(self: Holder, work: Any, upload_list: UploadList, reply: bytes) -> None:
        place(self, work, shorter(work, upload_list), reply)

    monkeypatch.setattr(Holder, "_require_whole", always(None))
    monkeypatch.setattr(Holder, "_answer", answer)
    monkeypatch.setattr(Holder, "_place", placed)


def test_a_share_that_is_withheld_from_some(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = replace(SEVEN, population=5)
    with monkeypatch.context() as planted:
        assert withheld_share(InsecureSum(setup), planted)
    with pytest.raises(PeerMisbehaved, match="a whole list or nothing"):
        withheld_share(InsecureSum(setup), None)


# --- Split lists ------------------------------------------------------------------------------------------------------


class Combined:
    """Uploads in a combination that is no sum, for ``opened_by``."""

    def __init__(self, offer: Offer, parts: Mapping[int, list[bytes]]) -> None:
        self.parameters = offer.agree().parameters
        self.runs = self.parameters.runs
        # So many uploads have as much noise as what is combined.
        self.count = sum(factor * factor * len(uploads) for factor, uploads in parts.items())
        self._offer, self._parts = offer, parts

    def coefficients(self) -> list[Words]:
        total = np.zeros(self.parameters.coefficients, np.uint64)
        for factor, uploads in self._parts.items():
            one = Accumulator(ring_of(self._offer).parameters)
            for upload in uploads:
                one.add(Upload.decode(upload).vector)
            total += one.coefficients()[0] * np.uint64(factor % (1 << 64))
        # Rounding adds half a unit each time, which opening takes away for as many uploads as it is told of.
        added = sum(factor * len(uploads) for factor, uploads in self._parts.items()) // 2
        return [total + np.uint64(self.count // 2 - added)]


def test_split_lists_are_not_certified() -> None:
    """A list that only some were shown has too few signatures for any answer."""
    world = InsecureSum(SumSetup(population=6, holders=4, corrupted=1, minimum_cohort=3))
    offer = world.offer()
    known = digests(world.collected(offer))
    for shown, position in ((world.setup.clients[:3], 0), (world.setup.clients, 1), (world.setup.clients[3:], 2)):
        upload_list = list_of(offer, {client: known[client] for client in shown})
        with pytest.raises(PeerMisbehaved, match="signatures of"):
            world.holders[position].respond(certified_by(world, upload_list, [position]))


# --- What a holder checks of a list -----------------------------------------------------------------------------------


def altered_lists(world: InsecureSum, server: Tally) -> dict[str, UploadList]:
    whole = fixed(server)
    other_model = replace(world.setup, model=bytes(32), round_number=7)
    dead = world.offer(setup=other_model)
    given_dead = digests(world.collected(dead, setup=other_model))
    first, *rest = whole.listed
    return {
        "a list of one": replace(whole, listed=(first,)),
        "a dead model for all but one": replace(
            whole, listed=(first, *(replace(one, upload=given_dead[one.client]) for one in rest))
        ),
    }


def test_what_a_holder_refuses_of_a_list() -> None:
    world = InsecureSum(SumSetup())
    offer = world.offer()
    server = world.collected(offer)
    holder = world.holders[0]
    for name, altered in altered_lists(world, server).items():
        with pytest.raises(PeerError) as refused:
            holder.respond(altered.encode())
        assert refused.value.culprits, name
    # None of them spent anything: the true list is answered, and only that.
    reply = holder.respond(server.upload_list.encode())
    assert holder.respond(server.upload_list.encode()) == reply


def test_lists_longer_than_the_capacity() -> None:
    world = InsecureSum(SumSetup(population=4, capacity=3))
    server = world.server(clients=world.setup.clients[:3])
    with pytest.raises(PeerMisbehaved, match="the list is full"):
        server.receive_upload(world.setup.clients[3], world.upload(world.setup.clients[3]))
    # A server that does not count delivers all four.
    server.agreement.parameters.__dict__["capacity"] = 4
    server.receive_upload(world.setup.clients[3], world.upload(world.setup.clients[3]))
    world.ask(server, server.deliver())
    listed = [Listed(client=one, upload=upload) for one, upload in taken_by(server).items()]
    server.agreement.parameters.__dict__["capacity"] = 3
    too_long = UploadList(
        t0=server.agreement.t0, terms=world.offer().terms, listed=tuple(sorted(listed, key=lambda one: one.client))
    )
    with pytest.raises(PeerMisbehaved, match=r"a list of 4 is not in 3\.\.3"):
        world.holders[0].respond(too_long.encode())


# --- Certificates -----------------------------------------------------------------------------------------------------


def test_forged_certificates() -> None:
    world = InsecureSum(SumSetup())
    offer = world.offer()
    server = world.collected(offer)
    upload_list, quorum = fixed(server).encode(), world.record.quorum
    good = CertifiedList.decode(certified_by(world, upload_list, range(quorum)))
    signatures, holder = good.certificate, world.holders[4]
    forged = {
        "one past the last": (*signatures[:-1], replace(signatures[-1], holder=len(world.holders))),
        "another's signature": (*signatures[:-1], replace(signatures[-1], signature=signatures[0].signature)),
        "none": (*signatures[:-1], replace(signatures[-1], signature=b"")),
    }
    for name, certificate in forged.items():
        with pytest.raises((PeerMisbehaved, AuthenticationFailed)) as refused:
            holder.respond(replace(good, certificate=certificate).encode())
        assert refused.value.culprits, name
    other = replace(UploadList.decode(upload_list), listed=UploadList.decode(upload_list).listed[1:])
    with pytest.raises(AuthenticationFailed):
        holder.respond(replace(good, upload_list=other.encode()).encode())
    assert Answer.decode(holder.respond(good.encode())).holder == 4


def test_fewer_than_a_quorum_is_no_certificate_at_the_server() -> None:
    world = InsecureSum(SumSetup())
    server = world.collected()
    server.fix_list()
    world.ask(server, server.requests(), absent=range(world.record.quorum - 1, 5))
    with pytest.raises(ThresholdNotMet):
        server.certify()
