"""``secagg keys``: clients' keys, and the authority's roster of certificates."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography import x509

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.platforms.client_node import state_folder
from secagg.platforms.kits import load_kit, read_sites, require_vouched
from secagg.session.certificates import IDENTITY_KEY_BYTES
from secagg.session.durable import PUBLIC, replace
from secagg.session.identities import (
    AUTHORITY_FILE,
    ROSTER_FILE,
    Request,
    certificate_file,
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
from secagg.session.standings import system_clock
from secagg.session.store import Store

_MOST_CLIENTS: Final = 100_000
_MARK_BYTES: Final = 8


def make_all(options: argparse.Namespace) -> int:
    """Write a trial's keys: the authority's, missing ones of clients, the roster, and optionally the servers'."""
    if options.clients is None:
        raise InvalidParameters(
            "give a COMMAND, such as new, or make all keys of a trial with --clients N; --help lists the commands"
        )
    clients, first, out = int(options.clients), int(options.first), Path(options.out)
    if not 1 <= clients <= _MOST_CLIENTS or first < 0:
        raise InvalidParameters(f"--clients must be between 1 and {_MOST_CLIENTS}, and --first at least 0")
    made, is_new = make_identities(out, map(ClientId, range(first, first + clients)), SystemCoins())
    if is_new:
        print(f"{out / AUTHORITY_FILE}: a new authority; keep it where no server can read it")
    print(f"{out}/client-<id>.key: {made} of {clients} are new; for a trial only: this folder has all clients' keys")
    print(f"{out / ROSTER_FILE}: public; use it as the server's setting `roster`")
    if options.trial_servers:
        from secagg.protocols.two_servers import SERVERS_FILE, make_trial_pair, server_file

        is_new = make_trial_pair(out, SystemCoins())
        print(f"{out / server_file(0)}, {out / server_file(1)}: {'new' if is_new else 'there already'}; for a trial,")
        print("  because the owner of both files can act as both servers; two operators use `secagg server keys`")
        print(f"{out / SERVERS_FILE}: public; use it as the setting secagg-servers of the server and every client")
    return 0


def make_own(options: argparse.Namespace) -> int:
    """Make a client's key and the request for its certificate."""
    asked = options.out.with_suffix(".request")
    if options.out in {asked, certificate_file(options.out)}:
        raise InvalidParameters(f"--out {options.out} would be overwritten: name the key, such as client.key")
    if options.replaces is not None:
        if options.client is not None or options.authority is not None:
            raise InvalidParameters("--replaces reuses client and authority; remove --client and --authority")
        live = load_identity(options.replaces)
        client, authority, key = live.client, live.authority.public_key, live.signing_key
    else:
        if options.client is None or options.authority is None:
            raise InvalidParameters(
                "give --client N and --authority KEY, or --replaces FILE for a new key of an existing client"
            )
        client, authority, key = ClientId(options.client), authority_in(options.authority), None
    kit = None if options.kit is None else load_kit(options.kit)
    request = new_identity(options.out, client, authority, SystemCoins(), key)
    replace(asked, (request.encode() + ("" if kit is None else kit.vouch(request))).encode("ascii"), PUBLIC)
    print(f"{options.out}: the private key of client {client.value}; it stays here")
    print(f"{asked}: give it to the authority, and confirm the mark {_mark(request)} over another channel, e.g. a call")
    print(f"{certificate_file(options.out)}: put the authority's certificate here")
    return 0


def sign(options: argparse.Namespace) -> int:
    """Certify the keys of requests."""
    asked = {path: _read(path) for path in _requests(options.requests, options.roster)}
    new = "" if options.roster.exists() else "a new roster, which revokes nothing, of "
    if len({*map(certificate_file, asked)}) < len(asked):
        raise InvalidParameters("two requests have one name, except for the suffix, and so one certificate; rename one")
    if options.sites is not None:
        sites, root = read_sites(options.sites), None if options.root is None else _root(options.root)
        for path, request in asked.items():
            require_vouched(request, _lines(path)[1], sites, root, system_clock())
        print(f"kits vouch for all requests: their issuer and the author of {options.sites} must not run the server")
    elif options.root is not None:
        raise InvalidParameters("--root only applies with --sites, the list of sites whose kits vouch; set both")
    replaced = None if options.replace is None else ClientId(options.replace)
    if replaced is not None and any(path.is_dir() for path in options.requests):
        raise InvalidParameters("--replace needs one request file, because a folder may contain a stranger's")
    made = sign_requests(
        options.roster, load_authority(options.key), asked.values(), replaces=replaced, days=options.days
    )
    for (path, request), certificate in zip(asked.items(), made, strict=True):
        replace(certificate_file(path), certificate.grant.hex().encode("ascii"), PUBLIC)
        # The mark comes before the name, which a requester may have chosen.
        print(f"client {request.client.value}, mark {_mark(request)}: return {certificate_file(path)} to the client")
    return _signed(options.roster, new)


def take_back(options: argparse.Namespace) -> int:
    """Revoke the certificates of clients."""
    revoke(options.roster, load_authority(options.key), map(ClientId, options.clients))
    return _signed(options.roster)


def sign_again(options: argparse.Namespace) -> int:
    """Sign the roster as of now."""
    renew(options.roster, load_authority(options.key))
    return _signed(options.roster)


def rotate_key(options: argparse.Namespace) -> int:
    """Replace the authority's key."""
    if not options.new.exists():
        make_authority(options.new, SystemCoins())
    new = load_authority(options.new)
    rotate(options.roster, load_authority(options.key), new)
    print(f"{options.new}: the authority's key from now on; keep it where no server can read it. Its public key:")
    print(new.public_key.hex())
    print(f"Each client runs `secagg keys follow KEY {options.roster.name}`; its key and its budget do not change")
    return _signed(options.roster)


def follow_authority(options: argparse.Namespace) -> int:
    """Make a client trust its authority's next key."""
    own = follow(options.own, load_roster(options.roster), Store.at(state_folder()))
    print(f"{options.own}: client {own.client.value} trusts {own.authority.public_key.hex()} from now on")
    return 0


def begin(options: argparse.Namespace) -> int:
    """Make an authority's key."""
    make_authority(options.out, SystemCoins())
    print(f"{options.out}: a new authority; keep it where no server can read it. Its public key, for clients:")
    print(load_authority(options.out).public_key.hex())
    return 0


def authority_in(text: str) -> bytes:
    """Return an authority's key, from hexadecimal digits or its roster file."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return load_roster(Path(text)).authority
    if len(key) != IDENTITY_KEY_BYTES:
        raise InvalidParameters(f"--authority must be {2 * IDENTITY_KEY_BYTES} hexadecimal digits, or a roster file")
    return key


# --- Private ----------------------------------------------------------------------------------------------------------


def _signed(roster: Path, new: str = "") -> int:
    """Print the number of clients in a roster, and return the exit status."""
    print(f"{roster}: {new}{len(load_roster(roster).clients)} clients, signed as of now; give it to the server")
    return 0


def _requests(paths: list[Path], roster: Path) -> Iterator[Path]:
    """Yield request files; from a folder, only those without a certificate next to them."""
    certified = roster.read_text(encoding="ascii", errors="replace") if roster.exists() else ""
    for path in paths:
        if not path.is_dir():
            yield path
        elif found := sorted(each for each in path.glob("*.request") if each.is_file()):
            for each in found:
                beside, key = certificate_file(each), _read(each).public_key.hex()
                if beside.exists() and f"{key} {beside.read_text(errors='replace').strip()}\n" in certified:
                    print(f"{each}: skipped, because its key is already certified")
                else:
                    yield each
        else:
            raise InvalidParameters(f"the folder {path} has no *.request file; make requests with `secagg keys new`")


def _lines(path: Path) -> tuple[str, str]:
    """Return a request and its kit's line, which may be empty."""
    request, _, kit = path.read_text(encoding="ascii").partition("\n")
    return request, kit


def _root(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidParameters(f"{path} is not a root certificate in PEM ({error})") from None


def _read(path: Path) -> Request:
    if not path.name.isprintable():
        raise InvalidParameters(f"the name of the request {path.name!r} has control characters; remove or rename it")
    try:
        return Request.decode(_lines(path)[0])
    except (OSError, ValueError) as error:
        raise InvalidParameters(f"cannot read {path} as a request ({error})") from None


def _mark(request: Request) -> str:
    digest = hashlib.sha256(request.public_key).hexdigest()[: 2 * _MARK_BYTES]
    return "-".join(digest[at : at + 4] for at in range(0, len(digest), 4))
