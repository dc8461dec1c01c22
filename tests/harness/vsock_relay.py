"""A relay in an enclave's machine between a virtio port and the service's vsock, by the guest's own loopback.

A machine without ``/dev/vhost-vsock`` has no other way to reach a service that listens at vsock.
"""

from __future__ import annotations

from pathlib import Path

from secagg.enclave_image.initramfs import INIT, archive
from secagg.enclave_image.packages import PROGRAM, Entry, Files, expanded, locked_packages, unpacked

PORT = "relay"
_DRIVER = "kernel/net/vmw_vsock/vsock_loopback.ko.xz"
_LOCAL = 1
"""The context of a machine itself."""
RELAY = f"""
import os, select, socket, time

def port():
    while True:
        time.sleep(0.2)
        for entry in os.listdir("/sys/class/virtio-ports") if os.path.exists("/sys/class/virtio-ports") else ():
            with open(f"/sys/class/virtio-ports/{{entry}}/name") as name:
                if name.read().strip() == "{PORT}":
                    return os.open(f"/dev/{{entry}}", os.O_RDWR)

def service():
    while True:
        peer = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        try:
            peer.connect(({_LOCAL}, 5000))
            return peer
        except OSError:
            peer.close()
            time.sleep(0.2)

def relay():
    outside = port()
    while True:
        sent = os.read(outside, 1 << 16)
        if not sent:
            time.sleep(0.05)
            continue
        with service() as inside:
            print("relay: connected to", inside.getpeername(), flush=True)
            inside.sendall(sent)
            while sent:
                for one in select.select([outside, inside], [], [])[0]:
                    sent = os.read(outside, 1 << 16) if one is outside else inside.recv(1 << 16)
                    if one is outside:
                        inside.sendall(sent)
                    else:
                        rest = memoryview(sent)
                        while rest:
                            rest = rest[os.write(outside, rest):]

if os.fork() == 0:
    try:
        relay()
    finally:
        os._exit(1)
"""


def with_relay(initramfs: bytes, inputs: Path) -> bytes:
    """Return an image's initramfs with the driver of vsock's loopback, and a first process that starts the relay."""
    driver = Files()
    for name, content in locked_packages(inputs / "lock", inputs):
        if name.startswith("linux-image"):
            driver.update(unpacked(name, content))
    (packed,) = (entry for path, entry in driver.items() if path.endswith(_DRIVER))
    start = INIT.replace("from secagg.crypto.entropy", f"{RELAY}\nfrom secagg.crypto.entropy")
    loopback = Entry(expanded(packed.content))
    return initramfs + archive({"init": Entry(start.encode(), PROGRAM), "lib/modules/99-loopback.ko": loopback})
