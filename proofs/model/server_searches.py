"""What each case of two servers lets happen: the uploads, the corrupted parties, and their possible messages."""

from __future__ import annotations

from indexing_cast import Place, signing_key_of
from secagg.protocols.two_servers.server_messages import OutputCommitment, encode_batch
from secagg.wire import MessageKind
from two_servers import STARTS_AGAIN, Action, Search

PROPOSAL, ANSWER, CONCLUSION = (
    MessageKind.INDEXING_PROPOSAL,
    MessageKind.INDEXING_ANSWER,
    MessageKind.INDEXING_CONCLUSION,
)


def network() -> Search:
    """Both servers are honest; the network and client 3 are not."""
    at = Place(7)
    at.send(1)
    at.send(2)
    at.send(3, "x", is_unit=False)
    at.send(3, "y")
    search = Search([at], ((0, 0), (0, 1)))
    elsewhere = _of_another_round()
    forger = signing_key_of("client 3")
    for driven in search.driven:
        index = driven.index
        forged = [at.signed_list(1 - index, entries, forger) for entries in at.subsets()]
        driven.actions += [
            *_receipts(at, index),
            *(
                [Action(f"propose {sent.name}", "propose", ((sent.entry.upload_id,),)) for sent in at.sent.values()]
                * index
            ),
            Action("close", "close"),
            Action(STARTS_AGAIN, STARTS_AGAIN),
            *(Action("agree (forged)", "agree", (message,)) for message in forged),
            *elsewhere[index],
        ]
    return search


def batches() -> Search:
    """Both servers are honest, and server 1 asks about all uploads in one message."""
    at = Place(7)
    at.send(1)
    at.send(2)
    both = tuple(sent.entry.upload_id for sent in at.sent.values())
    search = Search([at], ((0, 0), (0, 1)))
    for driven in search.driven:
        driven.actions += [*_receipts(at, driven.index), Action("close", "close"), Action(STARTS_AGAIN, STARTS_AGAIN)]
        driven.actions.append(Action("give up", "wipe"))
    search.driven[1].actions += [
        Action("propose both", "propose", (both,)),
        Action("propose 2", "propose", (both[1:],)),
    ]
    return search


def corrupted_1() -> Search:
    """Server 1 is corrupted, and server 0 is searched."""
    return _with_one_corrupted(0)


def corrupted_0() -> Search:
    """Server 0 is corrupted, and server 1 is searched."""
    return _with_one_corrupted(1)


def names() -> Search:
    """Server 1 is corrupted, and clients upload twice or in other clients' names."""
    search = _one_corrupted(0)
    at = search.places[0]
    at.send(1)
    at.send(3, "x")
    at.send(3, "y")
    at.send_in_the_name_of(2, certified=True)
    at.send_in_the_name_of(9, certified=False)
    return _with_lists(search, [(sent.name, b"1", b"+") for sent in at.sent.values()])


def crowded() -> Search:
    """Server 1 is corrupted, and there are more uploads than the round has room for."""
    return _all_taken(Place(7, room=2), (1, 2, 4), ())


def small() -> Search:
    """Server 1 is corrupted, and accepts three uploads or refuses one of them."""
    return _all_taken(Place(7), (1, 2, 4), (4,))


def refusing() -> Search:
    """Server 1 is corrupted, accepts two uploads, and refuses two others."""
    return _all_taken(Place(7), (1, 2), (3, 4))


def _all_taken(at: Place, taken: tuple[int, ...], refused: tuple[int, ...]) -> Search:
    search = Search([at], ((0, 0),))
    for client in sorted({*taken, *refused}):
        at.send(client)
    good = [(str(client), b"1", b"+") for client in taken]
    return _with_lists(search, [*good, *((str(client), None, None) for client in refused)])


def _with_one_corrupted(index: int) -> Search:
    search = _one_corrupted(index)
    at = search.places[0]
    at.send(1)
    at.send(2)
    at.send(3, "x")
    at.send(3, "y")
    # All possible proposals, answers and conclusions about each upload.
    good, words = (
        (b"1", [("1", b"2", b"-"), ("2", None, None)]) if index == 0 else (b"1+", [("1", b"1-", b""), ("2", None, b"")])
    )
    return _with_lists(search, [*((name, good, b"+") for name in at.sent), *words])


def _one_corrupted(index: int) -> Search:
    return Search([Place(7)], ((0, index),))


def _with_lists(search: Search, words: list[tuple[str, bytes | None, bytes | None]]) -> Search:
    """Send one server the given messages about uploads, and every list that the other can sign."""
    (at,), (driven,) = search.places, search.driven
    index, peer = driven.index, 1 - driven.index
    stamp = at.stamp(peer)
    for name, first, last in words:
        upload_id = at.sent[name].entry.upload_id

        def said(kind: MessageKind, what: bytes | None, upload_id: bytes = upload_id) -> tuple[bytes]:
            return (encode_batch(kind, stamp, [(upload_id, None if what is None else upload_id[:4] + what)]),)

        if index == 0:
            driven.actions += [
                Action(f"answer ({name}: {_shown(first)})", "answer", said(PROPOSAL, first)),
                Action(f"settle ({name}: {_shown(last)})", "settle", said(CONCLUSION, last)),
            ]
        else:
            driven.actions += [
                Action(f"propose {name}", "propose", ((upload_id,),)),
                Action(f"conclude ({name}: {_shown(first)})", "conclude", said(ANSWER, first)),
            ]
    lists = [at.signed_list(peer, entries) for entries in at.subsets()]
    search.genuine.update(lists)
    commitments = [OutputCommitment(stamp=stamp, digest=bytes([number]) * 32).encode() for number in (1, 2)]
    driven.actions += [
        *_receipts(at, index),
        Action("close", "close"),
        Action(STARTS_AGAIN, STARTS_AGAIN),
        *(Action(f"agree ({number})", "agree", (message,)) for number, message in enumerate(lists)),
        *(Action(f"open ({number})", "open", (message,)) for number, message in enumerate(commitments)),
    ]
    driven.actions = list(dict.fromkeys(driven.actions))
    return search


def _shown(what: bytes | None) -> str:
    return "refused" if what is None else what.decode()


def two_rounds() -> Search:
    """Server 1 is corrupted, and asks client 1 to upload in two rounds of one layout."""
    return _with_two_places(Place(7), Place(8))


def two_layouts() -> Search:
    """Server 1 is corrupted, and asks client 1 to upload for two layouts in rounds of one number."""
    return _with_two_places(Place(7), Place(7, width=61))


def _with_two_places(one: Place, other: Place) -> Search:
    places, updates = [one, other], ("u", "v")
    for at in places:
        for update in updates:
            at.send(1, update)
        at.send(3)
    search = Search(places, ((0, 0), (1, 0)), {1: updates})
    for driven, elsewhere in zip(search.driven, reversed(places), strict=True):
        at = driven.at
        stamp = at.stamp(1)
        for sent in at.sent.values():
            upload_id = sent.entry.upload_id
            for method, kind, what in (("answer", PROPOSAL, b"1"), ("settle", CONCLUSION, b"+")):
                message = encode_batch(kind, stamp, [(upload_id, upload_id[:4] + what)])
                driven.actions.append(Action(f"{method} ({sent.name})", method, (message,)))
        lists = [at.signed_list(1, entries) for entries in at.subsets()]
        search.genuine.update(lists)
        driven.actions += [
            *_receipts(at, 0, {3}),
            *_receipts(elsewhere, 0),
            Action("close", "close"),
            Action(STARTS_AGAIN, STARTS_AGAIN),
            *(Action(f"agree ({number})", "agree", (message,)) for number, message in enumerate(lists)),
            Action("open", "open", (OutputCommitment(stamp=stamp, digest=bytes(32)).encode(),)),
        ]
    return search


def _receipts(at: Place, index: int, clients: set[int] | None = None) -> list[Action]:
    return [
        Action(f"receive {sent.name}", "receive", (sent.halves[index],))
        for sent in at.sent.values()
        if clients is None or sent.client in clients
    ]


def _of_another_round() -> tuple[list[Action], list[Action]]:
    """Return, for each server, all messages that it receives in a complete round with another number."""
    at = Place(8)
    zero, one = at.server(0), at.server(1)
    for sent in (at.send(1), at.send(2)):
        zero.receive(sent.halves[0])
        one.receive(sent.halves[1])
    proposal = one.propose(one.waiting())
    answer = zero.answer(proposal)
    conclusion = one.conclude(answer)
    zero.settle(conclusion)
    lists = zero.close(), one.close()
    commitments = zero.agree(lists[1]), one.agree(lists[0])
    shares = zero.open(commitments[1]), one.open(commitments[0])
    heard = ([("answer", proposal), ("settle", conclusion)], [("conclude", answer)])
    return tuple(  # type: ignore[return-value]
        [
            *(Action(f"{method} (another round)", method, (message,)) for method, message in heard[index]),
            *_receipts(at, index),
            *(
                Action(f"{method} (another round)", method, (messages[server],))
                for method, messages in (("agree", lists), ("open", commitments), ("combine", shares))
                for server in (0, 1)
            ),
        ]
        for index in (0, 1)
    )
