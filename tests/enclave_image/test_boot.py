"""An image from Debian's packages: built twice, booted in QEMU without an accelerator, tested with every kind of sum.

``make enclave-boot`` downloads the packages and puts their folder into ``SECAGG_ENCLAVE_INPUTS``.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from secagg.enclave_image.image import COMMAND_LINE, CONTENTS, INITRAMFS, KERNEL
from secagg.errors import Reason
from secagg.protocols.enclave.remote_enclave import EnclaveLost, RemoteEnclave
from secagg.session.frames import decode_refusal, receive_frame
from tests.harness.enclave_buffers import EnclaveSetup
from tests.harness.enclave_forms import plain_sum, released_by, released_here, require_same, setups
from tests.harness.vsock_relay import PORT, with_relay

pytestmark = pytest.mark.enclave_boot

WITHIN = 180
FILES = (KERNEL, INITRAMFS, COMMAND_LINE, CONTENTS)
VALUES = 10**6


def build(out: Path, zone: str = "UTC", umask: int = 0o22, listen: str = "virtio:secagg") -> None:
    inputs = Path(os.environ["SECAGG_ENCLAVE_INPUTS"])
    command = ["secagg", "enclave", "image", "--lock", str(inputs / "lock"), "--inputs", str(inputs), "--out", str(out)]
    command += ["--evidence", "simulated", "--memory", "192", "--listen", listen]
    environment = {**os.environ, "TZ": zone}
    subprocess.run(command, check=True, cwd=out.parent, env=environment, umask=umask)  # noqa: S603 -- our own command


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image") / "one"
    build(folder)
    return folder


def test_two_builds_give_the_same_bytes(image: Path) -> None:
    build(image.parent / "other-place", "UTC-7", 0o77)
    for name in FILES:
        assert (image / name).read_bytes() == (image.parent / "other-place" / name).read_bytes(), name


@contextmanager
def running(image: Path, listen: str, port_name: str) -> Generator[Path]:
    """Boot without a disk and a network; the only connection is a serial port."""
    port, console = image.parent / f"{image.name}.port", image.parent / f"{image.name}.console"
    command = ["qemu-system-x86_64", "-M", "q35,accel=tcg", "-cpu", "max", "-m", "512", "-smp", "1", "-nodefaults"]
    command += ["-no-user-config", "-no-reboot", "-display", "none", "-serial", f"file:{console}"]
    command += ["-kernel", str(image / KERNEL), "-initrd", str(image / INITRAMFS)]
    command += ["-append", (image / COMMAND_LINE).read_text(), "-device", "virtio-serial-pci"]
    command += ["-chardev", f"socket,id=enclave,path={port},server=on,wait=off"]
    command += ["-device", f"virtserialport,chardev=enclave,name={port_name}"]
    began = time.monotonic()
    with subprocess.Popen(command) as machine:  # noqa: S603
        try:
            while f"ready at {listen}" not in (said := console.read_text() if console.exists() else ""):
                assert machine.poll() is None, said
                assert time.monotonic() < began + WITHIN, said
                time.sleep(0.1)
            print(f"{(image / INITRAMFS).stat().st_size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s to boot")  # noqa: T201
            assert "Missing protections" not in said, "no protection is missing"
            yield port
        finally:
            machine.kill()


@pytest.fixture(scope="module")
def booted(image: Path) -> Iterator[Path]:
    with running(image, "virtio:secagg", "secagg") as port:
        yield port


@pytest.mark.parametrize("setup", [pytest.param(setup, id=name) for name, setup in setups()])
def test_a_session_of_every_kind_runs_in_the_machine(booted: Path, setup: EnclaveSetup) -> None:
    with RemoteEnclave(f"unix:{booted}", timeout=WITHIN) as remote:
        require_same(setup, released_by(remote, setup), released_here(setup))


def test_a_million_values_are_summed(booted: Path) -> None:
    setup, began = plain_sum(VALUES), time.monotonic()
    with RemoteEnclave(f"unix:{booted}", timeout=WITHIN) as remote:
        there = released_by(remote, setup)
    print(f"{time.monotonic() - began:.1f} s for {VALUES} values of {there.contributors} clients")  # noqa: T201
    require_same(setup, there, released_here(setup))
    assert np.any(there.values[0])


def test_a_broken_frame_ends_an_epoch_but_not_the_machine(booted: Path) -> None:
    setup = plain_sum(10)
    with RemoteEnclave(f"unix:{booted}", timeout=WITHIN) as remote:
        connection = remote._connection.connect()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        connection.sendall((1 << 62).to_bytes(8, "big") + b"x" * 100)
        refused = decode_refusal(receive_frame(connection, 1 << 20))
    assert refused.reason is Reason.LENGTH_OVER_LIMIT
    time.sleep(1)  # The next host gets the port once the machine has noticed that the last one left.
    with RemoteEnclave(f"unix:{booted}", timeout=WITHIN) as remote:
        try:
            there = released_by(remote, setup)
        except EnclaveLost:
            pytest.fail("the next host is served")
    require_same(setup, there, released_here(setup))


def test_a_session_of_every_kind_runs_over_vsock(tmp_path: Path) -> None:
    """Uses the loopback inside the machine, because most test machines have no vsock."""
    image = tmp_path / "image"
    build(image, listen="vsock:5000")
    initramfs = image / INITRAMFS
    initramfs.write_bytes(with_relay(initramfs.read_bytes(), Path(os.environ["SECAGG_ENCLAVE_INPUTS"])))
    with running(image, "vsock:5000", PORT) as port:
        for _, setup in [*setups(), ("many", plain_sum(VALUES))]:
            with RemoteEnclave(f"unix:{port}", timeout=WITHIN) as remote:
                require_same(setup, released_by(remote, setup), released_here(setup))
            time.sleep(1)  # The next host gets the port once the machine has noticed that the last one left.
        assert "relay: connected to (1, 5000)" in (tmp_path / "image.console").read_text()
