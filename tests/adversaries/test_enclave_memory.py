"""What an enclave and its clients leave behind: nothing that opens an upload, and nothing that shows a secret."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg.choices import ReleaseForm
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.labels import Label
from secagg.crypto.secret import overwrite
from secagg.errors import AuthenticationFailed, Misuse, PeerError, Reason, SecAggError
from secagg.parameters import Suite
from secagg.protocols.enclave.client import seal_indices
from secagg.protocols.enclave.trusted import enclave as enclave_module
from secagg.protocols.enclave.trusted.enclave import Enclave
from secagg.protocols.enclave.trusted.histogram import HistogramAccumulator
from secagg.protocols.enclave.trusted.messages import BufferRelease, Seed, open_indices, proof_of, secret_bytes
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, crafted, model_digest
from tests.harness.made_secrets import Made, shows

trusted: Any = enclave_module
ENDS = ("release", "give_up_buffer", "destroy")
SETUP = EnclaveSetup(layout=Layout((RingSegment(20, 6), IndexSegment(256, 64))))
SEED = bytes(range(100, 132))


def kinds_left(made_secrets: Made) -> list[str]:
    return sorted(secret.kind for secret, _ in made_secrets if not secret.is_wiped)


# --- What is left -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("end", ENDS)
def test_no_key_of_an_upload_survives_the_end_of_its_buffer(suite: Suite, end: str, made_secrets: Made) -> None:
    session = InsecureEnclaveSession(replace(SETUP, suite=suite))
    session.host.open_buffer(0, bytes(32))
    uploads = [session.seal(number).sealed.encode() for number in (1, 2, 3)]
    assert kinds_left(made_secrets) == [], (
        "a client keeps nothing of what it sealed, nor an enclave the roots of its keys"
    )
    for upload in uploads:
        session.enclave.receive(upload)
    assert kinds_left(made_secrets) == ["mask_key"] * 3, "32 bytes for each upload, and nothing else"
    inside: list[HistogramAccumulator] = vars(session.enclave)["_histograms"]
    histograms = list(inside)
    counters = [histogram._counters for histogram in histograms]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert all(array.any() for array in counters)
    getattr(session.enclave, end)()
    assert kinds_left(made_secrets) == []
    assert not any(array.any() for array in counters)
    assert vars(session.enclave)["_histograms"] == []
    for histogram in histograms:
        with pytest.raises(Misuse):
            histogram.histogram(0, 1)


def test_a_refused_upload_leaves_no_key(made_secrets: Made) -> None:
    session = InsecureEnclaveSession(SETUP)
    session.host.open_buffer(0, bytes(32))
    upload = session.seal(1).sealed
    for altered in (
        replace(upload, sealed_indices=bytes(len(upload.sealed_indices))),
        replace(upload, sealed_seed=bytes(len(upload.sealed_seed))),
    ):
        with pytest.raises(PeerError):
            session.enclave.receive(altered.encode())
    packed, (own, other) = bytes(64), (session.setup.signing_key_of(f"client {number}") for number in (1, 2))
    for message in (crafted(session, packed=packed, certificate=session.certificate_of(1, own), signing_key=other),):
        with pytest.raises(PeerError):
            session.enclave.receive(message)
    assert kinds_left(made_secrets) == []


def test_opened_indices_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[bytearray]()
    genuine = trusted.open_indices

    def recording(*args: Any, **named: Any) -> bytearray:
        opened.append(genuine(*args, **named))
        return opened[-1]

    monkeypatch.setattr(trusted, "open_indices", recording)
    session = InsecureEnclaveSession(replace(SETUP, layout=Layout((RingSegment(20, 6), IndexSegment(200, 64)))))
    session.host.open_buffer(0, bytes(32))
    session.upload(2)
    with pytest.raises(PeerError):
        session.enclave.receive(crafted(session, packed=b"\xff" * 64))
    assert [bytes(buffer) for buffer in opened] == [bytes(64)] * 2


def test_what_altered_indices_decrypt_to_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend may have written plaintext before it found the tag wrong."""
    left = list[bytearray]()

    def recording(buffer: bytearray) -> None:
        buffer[:] = b"plain".ljust(len(buffer))
        overwrite(buffer)
        left.append(buffer)

    monkeypatch.setattr("secagg.protocols.enclave.trusted.messages.overwrite", recording)
    with Seed("upload_seed", SEED) as seed:
        sealed = bytearray(seal_indices(seed, bytes(32), b"i" * 40))
        sealed[0] ^= 1
        with pytest.raises(AuthenticationFailed):
            open_indices(seed, bytes(32), bytes(sealed), culprits=())
    assert left == [bytearray(40)]


@pytest.mark.parametrize("suite", Suite)
def test_a_destroyed_enclave_opens_and_signs_nothing(suite: Suite) -> None:
    session = InsecureEnclaveSession(replace(SETUP, suite=suite))
    upload = session.seal(1).sealed
    inside: dict[str, Any] = vars(session.enclave)
    pair: Any = inside["_pair"]
    key: Any = inside["_receipt_key"]
    session.enclave.destroy()
    digest, peer = upload.header.digest(session.configuration.context), upload.header.certificate.public_key
    uses: tuple[Callable[[], object], ...] = (
        lambda: pair.open("upload_secret", upload.sealed_seed, secret_bytes(session.configuration), b"info"),
        lambda: proof_of(key, peer, digest),
        lambda: key.sign(Label.ENCLAVE_RECEIPT, b""),
    )
    for use in uses:
        with pytest.raises(Misuse) as caught:
            use()
        assert caught.value.reason is Reason.ALREADY_SPENT
    assert inside["_last_release"] == b""


def test_an_enclave_without_evidence_keeps_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, keys = list[Any](), list[Any]()
    genuine, signing = trusted.sealing_pair, trusted.SigningKey

    def recording(*args: Any) -> Any:
        pairs.append(genuine(*args))
        return pairs[-1]

    def recording_key(*args: Any) -> Any:
        keys.append(signing(*args))
        return keys[-1]

    def no_hardware(_: bytes) -> object:
        raise OSError

    monkeypatch.setattr(trusted, "sealing_pair", recording)
    monkeypatch.setattr(trusted, "SigningKey", recording_key)
    configuration = InsecureEnclaveSession(SETUP).configuration
    pairs.clear()
    keys.clear()
    with pytest.raises(OSError):  # noqa: PT011 -- the driver's own
        Enclave(configuration, coins=SETUP.coins_of("enclave"), quote=no_hardware)
    with pytest.raises(Misuse) as caught:
        pairs[0].open("upload_secret", bytes(36 + 48), 36, b"info")
    assert caught.value.reason is Reason.ALREADY_SPENT
    with pytest.raises(Misuse) as caught:
        keys[0].sign(Label.ENCLAVE_RECEIPT, b"")
    assert caught.value.reason is Reason.ALREADY_SPENT


# --- What is freed on the way -----------------------------------------------------------------------------------------


@pytest.fixture
def on_the_way(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Collect the arrays that a release makes and that tell more than the release itself."""
    arrays: dict[str, list[Any]] = {"counts": [], "noise": []}
    rows, sample = HistogramAccumulator.histogram, trusted.sample

    def counts(self: HistogramAccumulator, start: int, stop: int) -> Any:
        arrays["counts"].append(rows(self, start, stop))
        return arrays["counts"][-1]

    def noise(*args: Any) -> Any:
        arrays["noise"].append(sample(*args))
        return arrays["noise"][-1]

    monkeypatch.setattr(HistogramAccumulator, "histogram", counts)
    monkeypatch.setattr(trusted, "sample", noise)
    return arrays


NOISED: Any = {"noise_multiplier": Fraction(1), "l2_bounds": (99, 99)}


@pytest.mark.parametrize(
    ("what", "setup"),
    [
        ("noise", EnclaveSetup(**NOISED)),
        ("noise", EnclaveSetup(form=ReleaseForm.HISTOGRAM, **NOISED)),
        ("counts", EnclaveSetup()),
        ("counts", EnclaveSetup(form=ReleaseForm.HISTOGRAM, **NOISED)),
    ],
)
def test_what_tells_more_than_the_release_is_overwritten(
    what: str, setup: EnclaveSetup, on_the_way: dict[str, list[Any]]
) -> None:
    session = InsecureEnclaveSession(replace(setup, oldest=1))
    session.host.open_buffer(1, model_digest(1))
    for number, version in ((1, 1), (2, 1), (3, 1), (4, 0), (5, 0), (6, 0)):
        session.upload(number, version=version)
    session.host.release()
    arrays = on_the_way[what]
    assert arrays
    assert not any(array.any() for array in arrays)


# --- What is shown ----------------------------------------------------------------------------------------------------


def everything(session: InsecureEnclaveSession) -> Iterator[object]:
    client, enclave = session.clients[0], session.enclave
    upload = session.seal(1)
    yield from (client, enclave, session.verified(), upload, vars(enclave), vars(client), vars(client)["_member"])
    yield vars(client)["_member"].signing_key
    yield upload.sealed
    for number in (2, 3, 4):
        enclave.receive(session.seal(number).sealed.encode())
    yield from (vars(enclave)["_mask_keys"], vars(enclave)["_histograms"], vars(enclave)["_pair"])
    yield BufferRelease.decode(enclave.release())


@pytest.mark.parametrize("suite", Suite)
def test_nothing_shows_a_secret(suite: Suite, made_secrets: Made) -> None:
    session = InsecureEnclaveSession(replace(SETUP, suite=suite))
    session.host.open_buffer(0, bytes(32))
    text = "".join(f"{thing!r}{thing}" for thing in everything(session))
    assert {secret.kind for secret, _ in made_secrets} >= {"upload_seed", "mask_key", "sealing_root", "indices_key"}
    assert [secret.kind for secret, held in made_secrets if shows(text, held)] == []


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_what_holds_secrets_is_not_copied(attempt: Callable[[object], object]) -> None:
    session = InsecureEnclaveSession(SETUP)
    session.host.open_buffer(0, bytes(32))
    session.upload(2)
    inside: dict[str, Any] = vars(session.enclave)
    for thing in (
        session.enclave,
        session.clients[0],
        session.verified(),
        inside["_pair"],
        inside["_receipt_key"],
        *inside["_histograms"],
    ):
        with pytest.raises(Misuse) as caught:
            attempt(thing)
        assert caught.value.reason is Reason.SECRET_EXPOSURE


@pytest.mark.parametrize("fault", ["index", "tag", "seed"])
def test_no_traceback_shows_a_secret_even_with_its_locals(fault: str, made_secrets: Made) -> None:
    session = InsecureEnclaveSession(replace(SETUP, layout=Layout((RingSegment(20, 6), IndexSegment(200, 64)))))
    session.host.open_buffer(0, bytes(32))
    packed = bytes(range(136, 200))
    message = {
        "index": crafted(session, packed=packed[:-1] + b"\xff"),
        "tag": replace(session.seal(2).sealed, sealed_indices=bytes(80)).encode(),
        "seed": replace(session.seal(3).sealed, sealed_seed=bytes(100)).encode(),
    }[fault]
    with pytest.raises(SecAggError) as caught:
        session.enclave.receive(message)
    # The first frame is the test's own, which knows every secret.
    frames = caught.tb.tb_next
    rendered = "".join(traceback.TracebackException(caught.type, caught.value, frames, capture_locals=True).format())
    assert "in receive" in rendered
    assert [secret.kind for secret, held in made_secrets if shows(rendered, held)] == []
    assert not shows(rendered, packed[:8])
    assert not shows(rendered, packed[-9:-1])
    assert str(np.frombuffer(packed, dtype=np.uint8)[:8])[1:-1] not in rendered
    assert "InvalidTag" not in rendered
