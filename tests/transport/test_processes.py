"""Servers and clients as processes: one drops out, and each is killed at any point."""

from __future__ import annotations

import re
from pathlib import Path
from socket import socket
from ssl import PEM_cert_to_DER_cert, get_server_certificate

import httpx
import numpy as np
import pytest

from secagg.identifiers import ClientId
from secagg.transport.proof import header_of
from secagg.transport.tls import Credentials
from tests.harness.certificates_of_tests import make_credentials
from tests.harness.standing_holders import StandingHolders
from tests.harness.wire_town import SECONDS, Process, Town

pytestmark = pytest.mark.wire
STAGES = ("advertise keys", "share keys", "masked input", "consistency check", "unmasking")
SIMULATED = ("--protocol", "enclave", "--set", "allow_simulated_enclave=yes")


def active(town: Town) -> list[str]:
    """Return options of a server in active mode, which is the default with a roster."""
    return ["--set", f"roster={town.make_keys()}"]


def walk(client: Process, *numbers: int) -> None:
    """Let a client that stops around each answer send those of these stages."""
    for number in numbers:
        for step in ("asked", "stored"):
            client.wait_for(f"{step} {number}")
            client.go_on()


def give(client: Process) -> None:
    """Let a client send the answer before which it was stopped, and the rest."""
    client.go_on()
    client.wait_for("stored 0")
    client.go_on()
    walk(client, 1, 2, 3)


def require_mean(town: Town, server: Process, *clients: Process, mean: float = 0.02) -> None:
    """Wait until all have succeeded, and compare the mean with that of clients starting at 0."""
    assert [client.ended() for client in clients] == [0] * len(clients)
    assert server.ended() == 0
    assert abs(town.mean() - mean) < 1e-3


@pytest.mark.parametrize(("protocol", "upload"), [("pairwise", 2), ("lightsecagg", 1)])
def test_five_clients_of_which_one_drops_out(town: Town, protocol: str, upload: int) -> None:
    """With LightSecAgg its piece of every mask is at the server, so it is only missed when masks are uploaded."""
    server = town.serve("--protocol", protocol, "--clients", "5", "--patience", "0.5")
    believed = ("--protocol", protocol) if protocol == "lightsecagg" else ()
    clients = [town.contribute(number, *believed) for number in range(3)]
    lost, last = (town.contribute(number, *believed, is_paused=True) for number in (4, 3))
    for number in range(upload):
        # Four are enough, so the client that will be lost answers before the fourth.
        for client in (lost, last):
            walk(client, number)
    lost.wait_for(f"asked {upload}")
    lost.kill()
    walk(last, *range(upload, 4))
    require_mean(town, server, *clients, last, mean=0.015)
    assert "the sum of 4 clients was released" in last.text


def test_two_servers_with_a_group_each(town: Town) -> None:
    """Six clients, three at each server; the mean is that of all."""
    first, second = (Town(town.folder / str(group)) for group in (1, 2))
    sums = [place.folder / "group.sum" for place in (first, second)]
    plan = ("--clients", "6", "--round", "1")
    try:
        servers = list[Process]()
        for group, place in enumerate((first, second), 1):
            place.folder.mkdir()
            servers.append(place.serve(*plan, "--group", f"{group}/2", "--out", str(sums[group - 1])))
        # A client of the other group is refused here.
        stranger = first.contribute(3)
        assert stranger.ended() == 2
        assert "the server refused this client" in stranger.text
        clients = [(first, second)[number // 3].contribute(number) for number in range(6)]
        assert [client.ended() for client in clients] == [0] * 6
        assert [server.ended() for server in servers] == [0] * 2
    finally:
        first.close()
        second.close()
    added = town.command("add", *map(str, sums), "--out", str(town.folder / "mean.npy"))
    assert added.ended() == 0
    assert "the mean of 6 of 6 clients' updates" in added.text
    assert "revealed: 2 sums, over 3 to 3 clients" in added.text
    assert abs(town.mean() - 0.025) < 1e-3


def test_a_server_that_is_killed_in_every_stage_goes_on(town: Town) -> None:
    options = active(town)
    server = town.serve(*options)
    clients = [town.contribute(number) for number in range(4)]
    held = town.contribute(4, is_paused=True)
    for number, name in enumerate(STAGES):
        held.wait_for(f"asked {number}")
        # The stage is open, and cannot close without the stopped client.
        server.kill()
        server = town.serve(*options)
        assert server.wait_for_stage() == (name, number)
        held.go_on()
        held.wait_for(f"stored {number}")
        held.go_on()
    require_mean(town, server, *clients, held)
    assert not list((town.folder / "server").iterdir())


def test_a_server_reads_its_roster_between_sessions(town: Town) -> None:
    """A client that was signed while it runs takes part in the next session, and a revoked one does not."""
    keys = town.folder / "keys"
    at_authority = ("--key", str(keys / "authority.key"), "--roster", str(keys / "roster.txt"))
    assert town.command("keys", "--clients", "3", "--out", str(keys)).ended() == 0
    out = ("--out", str(town.folder / "mean.npy"))
    seconds = ("--exchange-seconds", "8", "--training-seconds", "60")
    server = town.command(
        *("serve", "--page", "--listen", "127.0.0.1:0", "--set", f"roster={keys / 'roster.txt'}", *out, *seconds)
    )
    found = re.search(r":(\d+),", server.wait_for("listening at "))
    assert found is not None
    town.port = int(found[1])

    def sums(turn: int, *numbers: int) -> None:
        clients = [town.contribute(number, values=784, turn=turn) for number in numbers]
        assert [client.ended() for client in clients] == [0] * len(numbers)
        server.wait_for(f"mean of {len(numbers)} clients")

    sums(0, 0, 1, 2)
    assert town.command("keys", "--clients", "1", "--first", "3", "--out", str(keys)).ended() == 0
    assert town.command("keys", "revoke", "0", *at_authority).ended() == 0
    # The open session ends, since no client takes part; so does one with too few clients.
    server.wait_for("a session ended without a sum")
    stranger = town.contribute(0, values=784, turn=1)
    assert stranger.ended() == 2
    assert "the server refused this client" in stranger.text
    sums(1, 1, 2, 3)
    assert town.command("keys", "revoke", "1", "2", *at_authority).ended() == 0
    server.wait_for("no session can begin")
    assert town.command("keys", "--clients", "3", "--first", "4", "--out", str(keys)).ended() == 0
    sums(2, 3, 4, 5, 6)


def test_a_server_whose_roster_has_grown_goes_on_with_its_session(town: Town) -> None:
    """A client was signed and another one revoked while it was down: this affects the next session, not this one."""
    options = active(town)
    keys = town.folder / "keys"
    at_authority = ("--key", str(keys / "authority.key"), "--roster", str(keys / "roster.txt"))
    server = town.serve(*options)
    clients = [town.contribute(number) for number in range(4)]
    held = town.contribute(4, is_paused=True)
    walk(held, 0)
    held.wait_for("asked 1")
    server.kill()
    assert town.command("keys", "--clients", "1", "--first", "5", "--out", str(keys)).ended() == 0
    assert town.command("keys", "revoke", "2", *at_authority).ended() == 0
    server = town.serve(*options)
    assert server.wait_for_stage() == ("share keys", 1)
    held.go_on()
    held.wait_for("stored 1")
    held.go_on()
    walk(held, 2, 3, 4)
    require_mean(town, server, *clients, held)
    assert not list((town.folder / "server").iterdir())


@pytest.mark.parametrize("last", ["to write", "written", "recorded", "to erase", "erased"])
def test_a_server_that_is_killed_while_it_writes_and_tells_has_a_sum(town: Town, last: str) -> None:
    """At any point: the result is on disk before any client receives it, and the next process succeeds."""
    options = (*active(town), "--round", "1")
    server = town.serve(*options, is_paused=True)
    clients = [town.contribute(number) for number in range(5)]
    for step in ("to write", "written", "recorded", "to erase", "erased"):
        server.wait_for(step)
        is_told = any("was released" in client.text for client in clients)
        assert not is_told or step in {"to erase", "erased"}
        if step == last:
            break
        server.go_on()
    server.kill()
    assert (town.folder / "mean.npy").exists() is (last != "to write")
    if last == "erased":
        assert [client.ended() for client in clients] == [0] * 5
    else:
        server = town.serve(*options)
        assert [client.ended() for client in clients] == [0] * 5
        assert server.ended() == 0
        assert ("an earlier process wrote" in server.text) is (last in {"recorded", "to erase"})
    assert abs(town.mean() - 0.02) < 1e-3
    assert not list((town.folder / "server").iterdir())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_sum_that_cannot_be_written_is_not_lost(town: Town, *, is_stopped: bool) -> None:
    out = town.folder / "results" / "mean.npy"
    server = town.serve("--clients", "5", "--out", str(out))
    clients = [town.contribute(number) for number in range(4)]
    held = town.contribute(4, is_paused=True)
    held.wait_for("asked 0")
    out.parent.rmdir()
    give(held)
    server.wait_for("cannot be written")
    assert not any("was released" in client.text for client in (*clients, held))
    if is_stopped:
        assert server.terminate() == 130
        server = town.serve("--clients", "5", "--out", str(out))
    else:
        out.parent.mkdir()
    assert [client.ended() for client in (*clients, held)] == [0] * 5
    assert server.ended() == 0
    assert abs(float(np.load(out)[0]) - 0.02) < 1e-3


def test_a_client_that_corrects_its_options_takes_part_after_all(town: Town) -> None:
    """One is refused by the session description, the other at the first message, after it sent its name."""
    server = town.serve("--clients", "5")
    clients = [town.contribute(number) for number in range(3)]
    wrong = [town.contribute(3, "--set", "minimum_cohort=10"), town.contribute(4, "--set", "minimum_threshold=9")]
    assert [client.ended() for client in wrong] == [2, 2]
    assert "this client requires at least 10" in wrong[0].text
    clients += [town.contribute(number) for number in (3, 4)]
    require_mean(town, server, *clients)


def test_a_name_is_still_its_first_claimants_after_the_server_was_killed(town: Town) -> None:
    server = town.serve("--clients", "5")
    held = town.contribute(0, is_paused=True)
    held.wait_for("asked 0")
    server.kill()
    server = town.serve("--clients", "5")
    found = re.search(r"session ([0-9a-f]{32})", server.text)
    assert found is not None
    place = f"{town.url}:{town.port}/v1/sessions/{found[1]}/message"

    def status(number: int) -> int:
        headers = {"authorization": header_of(ClientId(number), bytes(65))}
        return httpx.get(place, headers=headers, timeout=SECONDS).status_code

    assert [status(number) for number in (0, 1)] == [401, 200]


def test_a_client_that_is_killed_in_every_stage_goes_on(town: Town) -> None:
    server = town.serve(*active(town))
    clients = [town.contribute(number) for number in range(4)]
    for number in range(len(STAGES)):
        before = town.contribute(4, is_paused=True)
        before.wait_for(f"asked {number}")
        before.kill()
        after = town.contribute(4, is_paused=True)
        after.wait_for(f"asked {number}")
        after.go_on()
        after.wait_for(f"stored {number}")
        after.kill()
    last = town.contribute(4)
    require_mean(town, server, *clients, last)


def test_a_server_that_is_told_to_stop_goes_on_later(town: Town) -> None:
    server = town.serve("--clients", "5")
    clients = [town.contribute(number) for number in range(4)]
    held = town.contribute(4, is_paused=True)
    held.wait_for("asked 0")
    assert server.terminate() == 130
    server = town.serve("--clients", "5")
    give(held)
    require_mean(town, server, *clients, held)


def test_a_server_that_cannot_go_on_says_so(town: Town) -> None:
    options = ["--protocol", "enclave", "--set", f"roster={town.make_keys()}"]
    server = town.serve(*options, "--round", "1")
    first = [town.contribute(number, *SIMULATED, is_paused=True) for number in range(4)]
    held = town.contribute(4, *SIMULATED, is_paused=True)
    # All are in this session before it is lost.
    for client in (*first, held):
        client.wait_for("asked 0")
    for client in first:
        client.go_on()
        client.wait_for("stored 0")
        client.go_on()
    server.kill()
    server = town.serve(*options, "--round", "2")
    assert "cannot be resumed" in server.text
    held.go_on()
    held.wait_for("stored 0")
    held.go_on()
    for client in (*first, held):
        client.wait_for("the server does not know this session")
        assert client.ended() == 1
    # Theirs are spent, and this one cannot know whether its upload arrived.
    again = town.contribute(4, *SIMULATED)
    again.wait_for("already uploaded")
    assert again.ended() == 2
    assert server.terminate() == 130


def test_a_norm_that_an_enclave_bounds_stays_the_same_in_a_task(town: Town) -> None:
    """A server that varies it could bisect a client's norm."""
    options = ["--protocol", "enclave", "--set", f"roster={town.make_keys()}"]
    server = town.serve(*options, "--set", "max-norm=50")
    require_mean(town, server, *(town.contribute(number, *SIMULATED) for number in range(5)))
    server = town.serve(*options, "--set", "max-norm=25", "--round", "9999999999")
    again = town.contribute(0, *SIMULATED)
    again.wait_for("max_norm is 25.0, but was 50.0")
    assert again.ended() == 2
    assert server.terminate() == 130


def test_a_file_that_was_uploaded_before_is_refused_before_a_server_waits_for_it(town: Town) -> None:
    """It would leave a session that needs all clients, after the others have sent their keys."""
    server = town.serve("--clients", "5")
    require_mean(town, server, *(town.contribute(number) for number in range(5)))
    server = town.serve("--clients", "5", "--round", "9999999999")
    again = town.contribute(0)
    again.wait_for("already uploaded")
    assert again.ended() == 2
    assert "client left" not in server.text


def test_a_floor_of_a_client_holds_with_light_secagg(town: Town) -> None:
    town.serve("--protocol", "lightsecagg", "--clients", "5")
    strict = town.contribute(0, "--protocol", "lightsecagg", "--set", "assumed_corrupted=3")
    strict.wait_for("corrupted clients")
    assert strict.ended() == 2


def test_one_message_with_holders_elsewhere_of_which_one_is_killed(town: Town, tmp_path: Path) -> None:
    """A process for each holder, and no certificate files."""
    roster = town.make_keys()
    authority = tmp_path / "keys" / "authority.key"
    holders = StandingHolders(tmp_path, authority, 5, serve=("--minimum-cohort", "3"), elsewhere=True)
    try:
        sockets = ",".join(map(holders.socket, range(5)))
        server = town.serve(
            *("--protocol", "one-message", "--set", f"roster={roster}", "--set", f"epoch={tmp_path / 'record'}"),
            *("--set", f"holders={sockets}", "--set", f"server-keys={tmp_path / 'server.key'}"),
            *("--set", "minimum-cohort=4", "--patience", "0.5"),
        )
        believed = ("--protocol", "one-message")
        lost = town.contribute(4, *believed, is_paused=True)
        lost.wait_for("asked 0")
        lost.kill()
        # The holders have seen the offer; the sum can do without one of them.
        holders.kill(0)
        require_mean(town, server, *(town.contribute(number, *believed) for number in range(4)), mean=0.015)
    finally:
        holders.end()


def test_a_renewed_certificate_is_taken_within_a_session(town: Town, tmp_path: Path) -> None:
    before, after = (make_credentials(tmp_path, name) for name in ("before", "after"))
    used, both = Credentials(certificate=tmp_path / "used.pem", key=tmp_path / "used.key"), tmp_path / "both.pem"
    both.write_bytes(before.certificate.read_bytes() + after.certificate.read_bytes())

    def write(certificate: bytes, key: bytes) -> None:
        used.certificate.write_bytes(certificate)
        used.key.write_bytes(key)

    def shown() -> bytes:
        return PEM_cert_to_DER_cert(get_server_certificate(("127.0.0.1", town.port), timeout=SECONDS))

    old, new = ((own.certificate.read_bytes(), own.key.read_bytes()) for own in (before, after))
    write(*old)
    town.url = "https://127.0.0.1"
    server = town.serve("--clients", "5", "--cert", str(used.certificate), "--key", str(used.key))
    clients = [town.contribute(number, "--server-cert", str(both)) for number in range(4)]
    held = town.contribute(4, "--server-cert", str(both), is_paused=True)
    held.wait_for("asked 0")
    for half in ((new[0], old[1]), (old[0], new[1]), (new[0][:99], new[1]), (new[0], new[1][:99]), (b"", new[1])):
        write(*half)
        server.hang_up()
        assert "are not a certificate and its private key" in server.wait_for("certificate not renewed")
        assert shown() == PEM_cert_to_DER_cert(old[0].decode().strip())
    write(*new)
    server.hang_up()
    server.wait_for("certificate renewed")
    assert shown() == PEM_cert_to_DER_cert(new[0].decode().strip())
    give(held)
    require_mean(town, server, *clients, held)


def test_two_servers_of_two_operators_elsewhere(town: Town, tmp_path: Path) -> None:
    roster = town.make_keys()
    for role in (0, 1):
        assert town.command("server", "keys", "--role", str(role), "--out", str(tmp_path / f"{role}")).ended() == 0
    for role in (0, 1):
        public = tmp_path / f"{1 - role}" / f"server-{1 - role}.public"
        both = ("--role", str(role), "--out", str(tmp_path / f"{role}"), "--peer", str(public), "--roster", roster)
        assert town.command("server", "keys", *both).ended() == 0
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp:127.0.0.1:{probe.getsockname()[1]}"
    one = town.command(
        *("server", "serve", "--servers", str(tmp_path / "1" / "servers.json"), "--task", "sum"),
        *("--keys", str(tmp_path / "1" / "server-1.keys"), "--minimum-cohort", "3"),
        *("--journal", str(tmp_path / "journal"), "--listen", address),
    )
    server = town.serve(
        *("--protocol", "two-servers", "--set", f"roster={roster}", "--set", f"second-server={address}"),
        *("--set", f"servers={tmp_path / '0' / 'servers.json'}"),
        *("--set", f"server-keys={tmp_path / '0' / 'server-0.keys'}"),
    )
    believed = ("--protocol", "two-servers", "--set", f"servers={tmp_path / '0' / 'servers.json'}")
    clients = [town.contribute(number, *believed) for number in range(5)]
    require_mean(town, server, *clients)
    assert one.terminate() == 0
