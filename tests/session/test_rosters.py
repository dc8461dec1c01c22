"""Enrolment requests, rosters and roster heads: what an authority certifies, for whom, and what a reader refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace as replaced
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from secagg.cli import main
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters, PeerMisbehaved
from secagg.identifiers import ClientId
from secagg.platforms.client_node import ClientNode
from secagg.session.certificates import HOUR, Authority, SigningKey, Standing
from secagg.session.identities import (
    Request,
    certificate_file,
    client_file,
    follow,
    load_authority,
    load_identity,
    load_roster,
    make_authority,
    make_identities,
    new_identity,
    renew,
    revoke,
    rotate,
    sign_requests,
)
from secagg.session.ledger import Spent
from secagg.session.sealed_state import StateDirectory
from secagg.session.signing_keys import issue_certificate, new_signing_key
from secagg.session.store import Store
from tests.harness.quickest import quickest

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ANN, BOB = ClientId(7), ClientId(8)
AUTHORITY, OTHER = (new_signing_key(SystemCoins()) for _ in range(2))


def at(days: float = 0.0) -> Callable[[], datetime]:
    return lambda: NOW + timedelta(days=days)


def asks(client: ClientId, key: SigningKey | None = None, live: SigningKey | None = None) -> Request:
    return Request.of(AUTHORITY.public_key, client, key or new_signing_key(SystemCoins()), live)


def signs(path: Path, *requests: Request, days: float = 0.0, **how: Any) -> None:
    sign_requests(path, AUTHORITY, requests, clock=at(days), **how)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "roster.txt"


# --- Requests ---------------------------------------------------------------------------------------------------------


def test_a_request_is_read_back() -> None:
    request = asks(ANN, live=OTHER)
    assert Request.decode(request.encode()) == request


def test_a_request_for_a_key_that_its_sender_does_not_hold_is_refused() -> None:
    """Otherwise anyone who sees a client's public key could have it certified under another number."""
    known = asks(ANN).encode().split()
    known[2] = str(BOB.value)
    with pytest.raises(InvalidParameters, match="proof that its sender holds the key"):
        Request.decode(" ".join(known))


def test_a_request_to_one_authority_is_refused_by_every_other(path: Path) -> None:
    with pytest.raises(InvalidParameters, match="another authority"):
        sign_requests(path, OTHER, [asks(ANN)], clock=at())


def test_a_request_that_names_another_authority_lacks_the_proof(path: Path) -> None:
    words = asks(ANN).encode().split()
    words[1] = OTHER.public_key.hex()
    with pytest.raises(InvalidParameters, match="proof"):
        sign_requests(path, OTHER, [Request.decode(" ".join(words))], clock=at())


# --- Each number has one client ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", ["live", "expired", "revoked"])
def test_a_used_number_is_never_given_to_a_stranger(path: Path, history: str) -> None:
    """An expired or revoked number still has a ledger, a budget, and peers that trust it."""
    signs(path, asks(ANN), days=0)
    if history == "revoked":
        revoke(path, AUTHORITY, [ANN], clock=at(1))
    days = {"live": 2, "revoked": 2, "expired": 400}[history]
    before = load_roster(path)
    for stranger in (asks(ANN), asks(ANN, live=new_signing_key(SystemCoins()))):
        with pytest.raises(InvalidParameters, match="client 7"):
            signs(path, stranger, days=days)
    assert load_roster(path) == before
    signs(path, taken := asks(ANN), days=days, replaces=ANN)
    assert load_roster(path).certificates[ANN].public_key == taken.public_key


@pytest.mark.parametrize("history", ["expired", "revoked"])
def test_a_key_that_is_no_longer_live_cannot_vouch_for_another(path: Path, history: str) -> None:
    signs(path, asks(ANN, stolen := new_signing_key(SystemCoins())), days=0)
    if history == "revoked":
        revoke(path, AUTHORITY, [ANN], clock=at(1))
    with pytest.raises(InvalidParameters, match="revoked or has expired"):
        signs(path, asks(ANN, live=stolen), days={"revoked": 2, "expired": 400}[history])


def test_a_live_key_vouches_for_its_successor(path: Path) -> None:
    signs(path, asks(ANN, first := new_signing_key(SystemCoins())))
    signs(path, asks(ANN, second := new_signing_key(SystemCoins()), live=first), days=1)
    roster = load_roster(path)
    assert roster.certificates[ANN].public_key == second.public_key
    assert roster.standing.revoked == (1,)


def test_replace_takes_exactly_the_named_request(path: Path) -> None:
    """A folder could contain requests from a stranger."""
    signs(path, asks(ANN), asks(BOB))
    for requests in ([asks(BOB)], [asks(ANN), asks(BOB)], []):
        with pytest.raises(InvalidParameters, match="needs exactly one request"):
            signs(path, *requests, replaces=ANN)


def test_two_requests_for_one_number_or_one_key_are_both_refused(path: Path) -> None:
    key = new_signing_key(SystemCoins())
    for requests in ((asks(ANN), asks(ANN)), (asks(ANN, key), asks(BOB, key))):
        with pytest.raises(InvalidParameters, match=r"two requests|already"):
            signs(path, *requests)
    signs(path, asks(ANN, key))
    with pytest.raises(InvalidParameters, match="already certified"):
        signs(path, asks(BOB, key))
    assert load_roster(path).clients == {ANN}


# --- A roster ---------------------------------------------------------------------------------------------------------


def test_a_roster_only_grows_and_its_heads_have_increasing_numbers(path: Path) -> None:
    signs(path, asks(ANN))
    first = load_roster(path)
    renew(path, AUTHORITY, clock=at())
    revoke(path, AUTHORITY, [ANN], clock=at(1))
    last = load_roster(path)
    assert last.text.startswith(first.text)
    assert last.standing.number > first.standing.number
    assert not last.clients
    # A revoked certificate that has also expired is no longer listed.
    renew(path, AUTHORITY, clock=at(400))
    assert not load_roster(path).standing.revoked


@pytest.mark.parametrize("torn", [2, 40, 200])
def test_a_partial_append_is_ignored_and_replaced(path: Path, torn: int) -> None:
    signs(path, asks(ANN))
    whole = path.read_bytes()
    signs(path, asks(BOB), days=1)
    path.write_bytes(path.read_bytes()[:-torn])
    assert load_roster(path).text.encode() == whole
    signs(path, asks(BOB), days=1)
    assert load_roster(path).clients == {ANN, BOB}


@pytest.mark.parametrize("change", ["client", "removed", "head", "number"])
def test_an_altered_roster_is_refused(path: Path, change: str) -> None:
    """A server that could remove, rename or un-revoke clients would choose the participants."""
    signs(path, asks(ANN), asks(BOB))
    revoke(path, AUTHORITY, [BOB], clock=at(1))
    lines = path.read_text().splitlines(keepends=True)
    place = next(at for at, line in enumerate(lines) if line.startswith("issued 8"))
    match change:
        case "client":
            lines[place] = lines[place].replace("issued 8", "issued 9")
        case "removed":
            lines.pop(-2)
        case "head":
            lines[-1] = lines[-1][:-3] + "ff\n"
        case _:
            name, number, signature = lines[-1].split()
            lines[-1] = f"{name} {int(number) + 1} {signature}\n"
    path.write_text("".join(lines))
    with pytest.raises(InvalidParameters, match="not a valid signed roster"):
        load_roster(path)


def test_a_roster_with_two_live_keys_of_a_client_is_refused(path: Path) -> None:
    """A client that counts twice would make cohorts smaller than they claim, even if the authority signed it."""
    signs(path, asks(ANN))
    line = next(line for line in path.read_text().splitlines() if line.startswith("issued"))
    for again in (line, line.replace("issued 7", "issued 9")):
        path.write_text(load_roster(path).text.rpartition("head ")[0] + again + "\nhead 1 00\n")
        with pytest.raises(InvalidParameters, match="twice"):
            load_roster(path)
        path.unlink()
        signs(path, asks(ANN))


def test_a_roster_of_another_authority_is_not_continued(path: Path) -> None:
    signs(path, asks(ANN))
    with pytest.raises(InvalidParameters, match="another authority"):
        renew(path, OTHER, clock=at())


def test_a_roster_that_is_read_again_must_extend_the_previous_one(path: Path) -> None:
    signs(path, asks(ANN))
    first, older = load_roster(path), path.read_text()
    revoke(path, AUTHORITY, [ANN], clock=at(1))
    last = load_roster(path, first)
    assert not last.clients
    path.write_text(older)
    with pytest.raises(InvalidParameters, match="does not extend"):
        load_roster(path, last)


def test_a_roster_from_the_future_is_not_continued(path: Path) -> None:
    """Its next head would also have a future date, and clients refuse such a head."""
    signs(path, asks(ANN), days=30)
    with pytest.raises(InvalidParameters, match="clock"):
        renew(path, AUTHORITY, clock=at())


def test_ten_thousand_clients_are_read_quickly(path: Path) -> None:
    keys = (n.to_bytes(31, "big") + b"\1" for n in range(10_000))
    requests = [Request(AUTHORITY.public_key, ClientId(at), key, b"") for at, key in enumerate(keys)]
    signs(path, *requests)
    assert len(load_roster(path).clients) == 10_000
    assert quickest(lambda: load_roster(path)) < 0.5  # 0.06 s on an idle machine


# --- The trial folder -------------------------------------------------------------------------------------------------


def test_a_folder_without_a_clients_key_issues_no_second_one(tmp_path: Path) -> None:
    make_identities(tmp_path, [ANN, BOB], SystemCoins())
    before = load_roster(tmp_path / "roster.txt")
    (tmp_path / "client-7.key").unlink()
    with pytest.raises(InvalidParameters, match="client 7 was already certified"):
        make_identities(tmp_path, [ANN, BOB], SystemCoins())
    assert load_roster(tmp_path / "roster.txt") == before
    # It also remembers a client whose key was handed out.
    make_identities(tmp_path, [ClientId(9)], SystemCoins())
    assert load_roster(tmp_path / "roster.txt").clients == {ANN, BOB, ClientId(9)}


def test_a_folder_whose_authority_is_missing_creates_no_other(tmp_path: Path) -> None:
    make_identities(tmp_path, [ANN], SystemCoins())
    (tmp_path / "authority.key").unlink()
    with pytest.raises(InvalidParameters, match="authority is not in"):
        make_identities(tmp_path, [BOB], SystemCoins())


# --- The commands -----------------------------------------------------------------------------------------------------


def test_a_client_creates_its_own_key_and_replaces_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, roster = tmp_path / "authority.key", tmp_path / "roster.txt"
    assert main(["keys", "authority", "--out", str(authority)]) == 0
    public = capsys.readouterr().out.split()[-1]
    assert bytes.fromhex(public) == load_authority(authority).public_key
    own = tmp_path / "site" / "me.key"
    own.parent.mkdir()
    assert main(["keys", "new", "--client", "7", "--authority", public, "--out", str(own)]) == 0
    mark = capsys.readouterr().out.partition("mark ")[2].split()[0]
    with pytest.raises(InvalidParameters, match="no certificate yet"):
        load_identity(own)
    at_authority = ["--key", str(authority), "--roster", str(roster)]
    assert main(["keys", "sign", str(own.parent), *at_authority]) == 0
    assert mark in capsys.readouterr().out
    assert own.read_text(encoding="ascii") not in roster.read_text(encoding="ascii")
    first = load_identity(own)
    assert load_roster(roster).certificates == {ANN: first.certificate}
    assert main(["keys", "new", "--replaces", str(own), "--out", str(tmp_path / "next.key")]) == 0
    assert main(["keys", "sign", str(tmp_path / "next.request"), *at_authority]) == 0
    second = load_identity(tmp_path / "next.key")
    assert (second.client, second.authority, second.certificate.number) == (ANN, Authority(bytes.fromhex(public)), 2)
    assert main(["keys", "revoke", "7", *at_authority]) == 0
    assert load_roster(roster).standing.revoked == (1, 2)
    # A folder of requests may be signed again: those that were certified are no new ones.
    capsys.readouterr()
    assert main(["keys", "sign", str(own.parent), *at_authority]) == 0
    assert "me.request: skipped, because its key is already certified" in capsys.readouterr().out
    assert load_roster(roster).standing.revoked == (1, 2)
    assert main(["keys", "renew", *at_authority]) == 0


# --- Rotation of the authority's key ----------------------------------------------------------------------------------

THIRD = new_signing_key(SystemCoins())
BAD = "not a valid signed roster"


def rotation(
    old: SigningKey, new: SigningKey, by_old: SigningKey | None = None, by_new: SigningKey | None = None
) -> str:
    """Return the line of a rotation, signed by both keys or by others."""
    signed = (
        each.sign(Label.AUTHORITY_ROTATION, old.public_key, new.public_key).hex()
        for each in (by_old or old, by_new or new)
    )
    return " ".join(("authority", new.public_key.hex(), *signed)) + "\n"


def continued(path: Path, line: str, signer: SigningKey, *revoked: int) -> None:
    """Append a line and a head signed by this key, as its holder can."""
    text = path.read_text() + line
    number = int(at(3)().timestamp())
    head = Standing(number=number, digest=hashlib.sha256(text.encode()).digest(), revoked=revoked).signed(signer)
    path.write_text(f"{text}head {number} {head.signature.hex()}\n")


def test_a_rotation_keeps_clients_numbers_and_revocations(path: Path) -> None:
    signs(path, asks(ANN), asks(BOB), asks(ClientId(9)))
    revoke(path, AUTHORITY, [ClientId(9)], clock=at(1))
    before = load_roster(path)
    rotate(path, AUTHORITY, OTHER, clock=at(2))
    after = load_roster(path)
    assert after.text.startswith(before.text)
    assert (after.authority, after.authorities) == (OTHER.public_key, (AUTHORITY.public_key, OTHER.public_key))
    assert after.standing.revoked == before.standing.revoked == (3,)
    for client, one in after.certificates.items():
        held = before.certificates[client]
        assert (one.public_key, one.number, one.expiry) == (held.public_key, held.number, held.expiry)
        Authority(OTHER.public_key).verify(one)
    assert after.clients == before.clients == {ANN, BOB}
    # The new key can append; the old one is refused.
    revoke(path, OTHER, [BOB], clock=at(3))
    with pytest.raises(InvalidParameters, match="another authority"):
        renew(path, AUTHORITY, clock=at(4))
    assert load_roster(path).standing.revoked == (2, 3)


def test_a_rotation_without_the_signatures_of_both_keys_is_refused(path: Path) -> None:
    """A server has the roster and its own key; an authority may name a key that nobody holds, or a client's key."""
    signs(path, asks(ANN))
    whole = path.read_text()
    for line, signer in (
        (rotation(AUTHORITY, OTHER, by_old=OTHER), OTHER),
        (rotation(AUTHORITY, OTHER, by_new=AUTHORITY), OTHER),
        (rotation(AUTHORITY, OTHER, by_new=AUTHORITY), AUTHORITY),
        (rotation(AUTHORITY, OTHER), AUTHORITY),
        (rotation(AUTHORITY, THIRD).replace(THIRD.public_key.hex(), OTHER.public_key.hex()), OTHER),
    ):
        path.write_text(whole)
        continued(path, line, signer, 1)
        with pytest.raises(InvalidParameters, match=BAD):
            load_roster(path)
    path.write_text(whole)
    continued(path, rotation(AUTHORITY, OTHER), OTHER, 1)
    assert load_roster(path).authority == OTHER.public_key


def test_a_rotation_replayed_after_a_later_one_is_refused(path: Path) -> None:
    """Otherwise an attacker with a retired authority key could bring it back into use."""
    signs(path, asks(ANN))
    rotate(path, AUTHORITY, OTHER, clock=at(1))
    rotate(path, OTHER, THIRD, clock=at(2))
    whole = path.read_text()
    back = [rotation(AUTHORITY, OTHER), rotation(THIRD, OTHER), rotation(OTHER, AUTHORITY), rotation(THIRD, AUTHORITY)]
    for line, signer in zip(back, (OTHER, OTHER, AUTHORITY, AUTHORITY), strict=True):
        path.write_text(whole)
        continued(path, line, signer, 1)
        with pytest.raises(InvalidParameters, match=BAD):
            load_roster(path)


@pytest.mark.parametrize("change", ["number", "expiry", "revoked", "twice"])
def test_a_rotation_only_renews_live_certificates(path: Path, change: str) -> None:
    signs(path, asks(ANN), asks(BOB))
    revoke(path, AUTHORITY, [BOB], clock=at(1))
    ann, bob = load_roster(path).certificates[ANN], load_roster(path).issued[BOB]
    number, until = ann.number + (change == "number"), ann.expiry // HOUR + (change == "expiry")
    one = issue_certificate(OTHER, ANN, ann.public_key, number=number, until=until)
    lines = rotation(AUTHORITY, OTHER) + f"renewed 7 {one.grant.hex()}\n" * (1 + (change == "twice"))
    if change == "revoked":
        again = issue_certificate(OTHER, BOB, bob.public_key, number=bob.number, until=bob.expiry // HOUR)
        lines += f"renewed 8 {again.grant.hex()}\n"
    continued(path, lines, OTHER, *((2,) if change != "revoked" else ()))
    with pytest.raises(InvalidParameters, match=BAD):
        load_roster(path)


def test_a_rotation_to_a_clients_key_is_refused(path: Path) -> None:
    signs(path, asks(ANN, client := new_signing_key(SystemCoins())))
    with pytest.raises(InvalidParameters, match="use another"):
        rotate(path, AUTHORITY, client, clock=at(1))
    assert load_roster(path).authority == AUTHORITY.public_key


# --- Clients follow a rotation ----------------------------------------------------------------------------------------


class Site:
    """A client with its state, whose authority rotates its key."""

    def __init__(self, folder: Path) -> None:
        self.path, self.roster = folder / "me.key", folder / "roster.txt"
        (folder / "state").mkdir(mode=0o700)
        self.state = Store(folder / "state")
        request = new_identity(self.path, ANN, AUTHORITY.public_key, SystemCoins())
        (certificate,) = sign_requests(self.roster, AUTHORITY, [request], clock=at())
        certificate_file(self.path).write_text(certificate.grant.hex())
        self.state.reach(AUTHORITY.public_key, ANN.value, 41)
        self.saw(AUTHORITY, 0)

    def saw(self, authority: SigningKey, days: float) -> None:
        number = int(at(days)().timestamp())
        self.state.see_standing(authority.public_key, Standing(number=number).signed(authority))

    def follows(self, days: float) -> None:
        follow(self.path, load_roster(self.roster), self.state, clock=at(days))

    def refuses(self, match: str, days: float) -> None:
        before = self.path.read_bytes()
        with pytest.raises(InvalidParameters, match=match):
            self.follows(days)
        assert self.path.read_bytes() == before


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_client_follows_a_rotation_and_keeps_its_key_number_and_state(site: Site) -> None:
    before = load_identity(site.path)
    with site.state.transaction() as rows:
        rows.execute("INSERT INTO names VALUES ('records of 2026', ?)", (AUTHORITY.public_key,))
    rotate(site.roster, AUTHORITY, OTHER, clock=at(1))
    rotate(site.roster, OTHER, THIRD, clock=at(2))
    site.follows(2.5)
    after = load_identity(site.path)
    assert after.authority.public_key == THIRD.public_key
    assert after.signing_key.public_key == before.signing_key.public_key
    assert (after.client, after.certificate.number) == (before.client, before.certificate.number)
    assert site.state.newest(THIRD.public_key, ANN.value) == 41
    with site.state.transaction() as rows:
        assert rows.execute("SELECT authority FROM names").fetchall() == [(THIRD.public_key,)]
    written = site.path.read_bytes()
    site.follows(2.6)
    assert site.path.read_bytes() == written


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe"])
def test_a_certificate_that_an_editor_marked_is_refused_in_a_sentence(site: Site, mark: bytes) -> None:
    beside = certificate_file(site.path)
    beside.write_bytes(mark + beside.read_bytes())
    with pytest.raises(InvalidParameters, match="is not a client file with a valid certificate"):
        load_identity(site.path)


def test_a_key_behind_a_link_stays_where_it_is(site: Site, tmp_path: Path) -> None:
    """Such as on a volume of its own: no copy of the private key appears beside the link."""
    (volume := tmp_path / "volume").mkdir()
    kept = site.path.rename(volume / "own.key")
    site.path.symlink_to(kept)
    rotate(site.roster, AUTHORITY, OTHER, clock=at(1))
    site.follows(1.5)
    assert site.path.is_symlink()
    assert load_identity(kept).authority.public_key == OTHER.public_key


def test_a_client_does_not_follow_to_a_key_that_its_authority_did_not_sign(site: Site, tmp_path: Path) -> None:
    """A foreign roster that contains this client's key is not a rotation."""
    own = load_identity(site.path)
    other = tmp_path / "other.txt"
    request = Request.of(OTHER.public_key, ANN, own.signing_key)
    sign_requests(other, OTHER, [request], clock=at(1))
    site.roster = other
    site.refuses("does not lead from", 1)


def test_a_client_does_not_go_back_to_a_retired_key(site: Site) -> None:
    rotate(site.roster, AUTHORITY, OTHER, clock=at(1))
    older = site.roster.read_text()
    rotate(site.roster, OTHER, THIRD, clock=at(2))
    site.follows(2)
    site.roster.write_text(older)
    # An attacker with the intermediate key signs a fresh head.
    for days in (1.5, 2.5):
        site.refuses("does not lead from", days)
        renew(site.roster, OTHER, clock=at(2.5))


def test_a_replayed_rotation_is_expired_or_older_than_the_last_one_seen(site: Site) -> None:
    rotate(site.roster, AUTHORITY, OTHER, clock=at(1))
    site.refuses("hours old", 2.5)
    site.saw(AUTHORITY, 1.5)
    site.refuses("has seen one of", 1.6)


def test_a_client_revoked_before_or_after_a_rotation_does_not_follow(site: Site) -> None:
    rotate(site.roster, AUTHORITY, OTHER, clock=at(1))
    revoke(site.roster, OTHER, [ANN], clock=at(1.5))
    site.refuses("no live certificate", 1.6)


def test_a_replaced_key_does_not_follow(site: Site) -> None:
    signs(site.roster, asks(ANN, live=load_identity(site.path).signing_key), days=1)
    rotate(site.roster, AUTHORITY, OTHER, clock=at(1.1))
    site.refuses("no live certificate for the key", 1.2)


def test_the_commands_rotate_and_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECAGG_LEDGER_DIRECTORY", str(tmp_path / "state"))
    (tmp_path / "state").mkdir(mode=0o700)
    assert main(["keys", "authority"]) == 0
    assert (
        main(["keys", "new", "--client", "7", "--authority", capsys.readouterr().out.split()[-1], "--out", "me.key"])
        == 0
    )
    assert main(["keys", "sign", "me.request"]) == 0
    node, states = ClientNode(), StateDirectory(tmp_path / "state", coins=SystemCoins())

    def charge(number: int) -> None:
        own = load_identity(Path("me.key"))
        node.charges(own, states, own.client).charge(Spent(b"task", number, bytes([number]) * 32))

    charge(3)
    assert main(["keys", "rotate", "--new", "authority-2.key"]) == 0
    assert "secagg keys follow KEY roster.txt" in capsys.readouterr().out
    assert main(["keys", "follow", "me.key", "roster.txt"]) == 0
    with pytest.raises(PeerMisbehaved, match="uploaded"):
        charge(3)
    charge(4)
    # Data of another client of this authority must not be mistaken for another authority's data.
    follower = load_identity(Path("me.key"))
    assert node.data_of(replaced(follower, client=BOB)) == "client 8"
    assert load_identity(Path("me.key")).authority.public_key == load_authority(Path("authority-2.key")).public_key
    assert main(["keys", "renew", "--key", "authority-2.key"]) == 0
    assert main(["keys", "renew"]) == 2


# --- Files that are none, and answers that were lost ------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"-----BEGIN PRIVATE KEY-----\n", b"notes\n", b"\0"])
def test_a_file_that_is_no_roster_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(InvalidParameters, match="is not a roster and would be overwritten"):
        renew(other, AUTHORITY)
    with pytest.raises(InvalidParameters, match="is not a roster and would be overwritten"):
        signs(other, asks(ANN))
    assert other.read_bytes() == content


def test_a_roster_with_other_line_ends_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """An append would cut it at the wrong place, and nobody could read it then."""
    roster = tmp_path / "roster.txt"
    signs(roster, asks(ANN))
    changed = roster.read_bytes().replace(b"\n", b"\r\n")
    roster.write_bytes(changed)
    with pytest.raises(InvalidParameters, match="its line endings were changed"):
        revoke(roster, AUTHORITY, [ANN])
    assert roster.read_bytes() == changed


@pytest.mark.parametrize("is_headless", [False, True])
def test_a_roster_without_line_ends_or_head_is_not_taken_for_a_new_one(path: Path, *, is_headless: bool) -> None:
    """A new one would give its numbers to other keys, and forget what was revoked."""
    signs(path, asks(ANN))
    whole = path.read_bytes()
    kept = whole[: whole.index(b"\nhead ") + 1] if is_headless else whole.replace(b"\n", b"\r")
    path.write_bytes(kept)
    with pytest.raises(InvalidParameters, match="is not a roster and would be overwritten"):
        renew(path, OTHER if is_headless else AUTHORITY)
    assert path.read_bytes() == kept


def test_a_roster_whose_last_line_end_was_lost_keeps_what_was_revoked(path: Path) -> None:
    signs(path, asks(ANN), asks(BOB))
    revoke(path, AUTHORITY, [ANN], clock=at(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert load_roster(path).standing.revoked == (1,)
    renew(path, AUTHORITY, clock=at(2))
    assert path.read_bytes().startswith(whole)
    assert load_roster(path).standing.revoked == (1,)


@pytest.mark.parametrize("behind", [" ", "\t", ".", "\x0c", "\x1a", "\0", " \nrevoked 8 "])
@pytest.mark.parametrize("before", ["", " ", "> "])
def test_a_roster_whose_last_head_was_changed_is_not_read_without_what_was_revoked(
    path: Path, before: str, behind: str
) -> None:
    """An editor that leaves a blank on the last line, and no line end, must not bring a revoked client back."""
    signs(path, asks(ANN), asks(BOB))
    revoke(path, AUTHORITY, [ANN], clock=at(1))
    text = path.read_text().removesuffix("\n")
    start = text.rindex("\n") + 1
    changed = f"{text[:start]}{before}{text[start:]}{behind}".encode()
    path.write_bytes(changed)
    if not before and behind.startswith(" \n"):  # The line is whole, and the next one torn.
        assert load_roster(path).standing.revoked == (1,)
        return
    with pytest.raises(InvalidParameters, match="the line of its last head was changed"):
        load_roster(path)
    with pytest.raises(InvalidParameters, match="the line of its last head was changed"):
        renew(path, AUTHORITY, clock=at(2))
    assert path.read_bytes() == changed


@pytest.mark.parametrize(
    ("old", "new"),
    [("head", "HEAD"), ("head", ""), ("head ", "head"), ("head ", "head \n"), (" ", "\n"), ("head ", "head 1\x0b ")],
)
def test_a_roster_whose_last_head_reads_as_another_line_is_refused(path: Path, old: str, new: str) -> None:
    signs(path, asks(ANN), asks(BOB))
    revoke(path, AUTHORITY, [ANN], clock=at(1))
    text = path.read_text()
    start = text.rindex("head ")
    for blank in ("", "\n", " \n"):
        path.write_text(text + blank)
        assert load_roster(path).standing.revoked == (1,)
        path.write_text(text[:start] + text[start:].replace(old, new, 1) + blank)
        with pytest.raises(InvalidParameters, match="not a valid signed roster"):
            load_roster(path)


@pytest.mark.parametrize("line", ["renewed", f"head {1 << 70} {'0' * 128}", f"head -1 {'0' * 128}"])
def test_a_roster_with_words_missing_or_too_large_is_refused(path: Path, line: str) -> None:
    """A server that reads it again between sessions waits for a better one, and does not end."""
    signs(path, asks(ANN))
    whole = path.read_text()
    path.write_text(f"{whole}{line}\n{whole.splitlines()[-1]}\n" if line == "renewed" else f"{whole}{line}\n")
    with pytest.raises(InvalidParameters, match="not a valid signed roster"):
        load_roster(path)


def test_a_roster_that_is_not_there_is_not_signed_as_of_now(tmp_path: Path) -> None:
    """A daily renewal in another folder would sign that nothing was revoked, later than the roster's own head."""
    signs(roster := tmp_path / "roster.txt", asks(ANN))
    revoke(roster, AUTHORITY, [ANN], clock=at(1))
    other = tmp_path / "other.txt"
    with pytest.raises(InvalidParameters, match="lists no client"):
        renew(other, AUTHORITY, clock=at(2))
    with pytest.raises(InvalidParameters, match="lists no client"):
        rotate(other, AUTHORITY, OTHER, clock=at(2))
    assert not other.read_bytes()
    renew(roster, AUTHORITY, clock=at(2))
    assert load_roster(roster).standing.revoked == (1,)


@pytest.mark.parametrize("name", ["me.request", "me.certificate"])
def test_a_key_is_not_written_where_its_request_or_its_certificate_goes(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = ["keys", "new", "--client", "7", "--authority", AUTHORITY.public_key.hex(), "--out"]
    assert main([*new, str(tmp_path / name)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    assert main([*new, str(tmp_path / "me.key")]) == 0
    assert "seed" in (tmp_path / "me.key").read_text()


def test_two_requests_are_not_answered_in_one_file(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = tmp_path / "authority.key"
    assert main(["keys", "authority", "--out", str(authority)]) == 0
    key = load_authority(authority).public_key
    paths = [tmp_path / "ann.request", tmp_path / "ann.txt"]
    for each, client in zip(paths, (ANN, BOB), strict=True):
        each.write_text(Request.of(key, client, new_signing_key(SystemCoins())).encode())
    sign = ["keys", "sign", *map(str, paths), "--key", str(authority), "--roster", str(path)]
    assert main(sign) == 2
    assert "rename one" in capsys.readouterr().err
    assert not path.exists()
    sign[3] = str(paths[1].rename(tmp_path / "bob.txt"))
    assert main(sign) == 0
    assert f"{path}: a new roster, which revokes nothing, of 2 clients" in capsys.readouterr().out
    assert main(sign) == 0
    assert f"{path}: 2 clients" in capsys.readouterr().out
    assert {each.name for each in tmp_path.glob("*.certificate")} == {"ann.certificate", "bob.certificate"}


def test_a_roster_of_other_bytes_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, other, asked = tmp_path / "authority.key", tmp_path / "other", tmp_path / "ann.request"
    assert main(["keys", "authority", "--out", str(authority)]) == 0
    asked.write_text(Request.of(load_authority(authority).public_key, ANN, new_signing_key(SystemCoins())).encode())
    other.write_bytes(b"\xce" * 300)
    assert main(["keys", "sign", str(asked), "--key", str(authority), "--roster", str(other)]) == 2
    assert "is not a roster and would be overwritten" in capsys.readouterr().err
    assert other.read_bytes() == b"\xce" * 300


def test_a_folder_replaces_no_key(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A requester puts a request for another's number among those that are passed over."""
    authority, folder = tmp_path / "authority.key", tmp_path / "requests"
    folder.mkdir()
    assert main(["keys", "authority", "--out", str(authority)]) == 0
    new = ["keys", "new", "--authority", load_authority(authority).public_key.hex()]
    at_authority = ["--key", str(authority), "--roster", str(path)]
    for client in ("7", "8"):
        assert main([*new, "--client", client, "--out", str(folder / f"{client}.key")]) == 0
    assert main(["keys", "sign", str(folder), *at_authority]) == 0
    before = path.read_bytes()
    assert main([*new, "--client", "7", "--out", str(folder / "another.key")]) == 0
    assert main(["keys", "sign", str(folder), *at_authority, "--replace", "7"]) == 2
    assert "--replace needs one request file" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_requests_name_shows_no_other_mark(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A requester in another's name writes the mark that the authority heard on the telephone."""
    authority, folder = tmp_path / "authority.key", tmp_path / "requests"
    folder.mkdir()
    assert main(["keys", "authority", "--out", str(authority)]) == 0
    new = ["keys", "new", "--client", "7", "--authority", load_authority(authority).public_key.hex(), "--out"]
    assert main([*new, str(tmp_path / "ann.key")]) == 0
    heard = capsys.readouterr().out.partition("mark ")[2].split()[0]
    assert main([*new, str(tmp_path / "another.key")]) == 0
    own = capsys.readouterr().out.partition("mark ")[2].split()[0]
    at_authority = ["--key", str(authority), "--roster", str(path)]
    for hidden in ("\n\x1b[8m", "\r", "\u202e"):
        named = folder / f"client 7, mark {heard}: return it to the client{hidden}.request"
        named.write_bytes((tmp_path / "another.request").read_bytes())
        for requests in (folder, named):
            assert main(["keys", "sign", str(requests), *at_authority]) == 2
        said = capsys.readouterr()
        assert hidden not in said.out + said.err.strip()
        assert not path.exists()
        named.unlink()
    (folder / f"client 7, mark {heard}.request").write_bytes((tmp_path / "another.request").read_bytes())
    assert main(["keys", "sign", str(folder), *at_authority]) == 0
    assert capsys.readouterr().out.startswith(f"client 7, mark {own}: return ")


def test_a_request_whose_certificate_was_lost_is_answered_again(tmp_path: Path) -> None:
    roster, asked = tmp_path / "roster.txt", asks(ANN)
    (first,) = sign_requests(roster, AUTHORITY, [asked])
    (again,) = sign_requests(roster, AUTHORITY, [asked])
    assert again == first
    assert [*load_roster(roster).certificates] == [ANN]
    revoke(roster, AUTHORITY, [ANN])
    with pytest.raises(InvalidParameters, match="was already certified"):
        sign_requests(roster, AUTHORITY, [asked])


def test_a_folder_answers_a_request_whose_certificate_could_not_be_written(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file from before, of the client's last key, does not pass for the answer to its next one."""
    authority, own, following, folder = (tmp_path / name for name in ("a.key", "me.key", "next.key", "requests"))
    folder.mkdir()
    assert main(["keys", "authority", "--out", str(authority)]) == 0
    public = load_authority(authority).public_key.hex()
    sign = ["keys", "sign", str(folder), "--key", str(authority), "--roster", str(path)]
    assert main(["keys", "new", "--client", "7", "--authority", public, "--out", str(own)]) == 0
    asked = own.with_suffix(".request").rename(folder / "7.request")
    assert main(sign) == 0
    certificate_file(asked).rename(certificate_file(own))
    certificate_file(asked).write_bytes(certificate_file(own).read_bytes())
    assert main(["keys", "new", "--replaces", str(own), "--out", str(following)]) == 0
    following.with_suffix(".request").rename(asked)
    (blocked := folder / "7.certificate.new").mkdir()
    assert main(sign) == 2
    blocked.rmdir()
    assert main(sign) == 0
    certificate_file(asked).rename(certificate_file(following))
    assert load_identity(following).certificate.number == 2
    certificate_file(asked).write_bytes(certificate_file(following).read_bytes())
    capsys.readouterr()
    assert main(sign) == 0
    assert "skipped, because its key is already certified" in capsys.readouterr().out


def test_a_folder_whose_roster_is_of_another_authority_gets_no_key(tmp_path: Path) -> None:
    make_identities(tmp_path, [ANN], SystemCoins())
    (tmp_path / "authority.key").unlink()
    make_authority(tmp_path / "authority.key", SystemCoins())
    with pytest.raises(InvalidParameters, match="does not have the authority of"):
        make_identities(tmp_path, [ANN, BOB], SystemCoins())
    assert not (tmp_path / client_file(BOB)).exists()
