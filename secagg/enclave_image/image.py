"""Image of an enclave's machine: kernel, initramfs and command line, which together are the whole program."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters

from .initramfs import archive, compiled, environment_of, interpreter_of, selected, with_start, write_tree
from .packages import PACKAGES, Entry, Files, add, expanded, locked_packages, require_tree, unpacked

KERNEL, INITRAMFS, COMMAND_LINE, CONTENTS = "vmlinuz", "initramfs", "cmdline", "contents.json"
"""File names in an image's folder."""
PROTECTED: Final = "console=ttyS0 quiet panic=-1 acpi=off module.sig_enforce=1 lockdown=confidentiality"
BARE_KERNEL: Final = "bzImage"
"""A locked file of this name is the kernel, with drivers built in; locked files ``*.ko`` are its other drivers."""
_DRIVERS: Final = (
    "fs/configfs/configfs",
    "drivers/virtio/virtio_mmio",
    "net/vmw_vsock/vsock",
    "net/vmw_vsock/vmw_vsock_virtio_transport_common",
    "net/vmw_vsock/vmw_vsock_virtio_transport",
    "drivers/virt/coco/tsm",
    "drivers/virt/coco/sev-guest/sev-guest",
    "drivers/virt/coco/tdx-guest/tdx-guest",
    "drivers/misc/nsm",
)
"""Kernel drivers in loading order. virtio-rng is omitted: its randomness would come from the host."""
_WORD: Final = re.compile(r"[\w:./-]+", re.ASCII)
"""A value without spaces and quotes, which could add kernel parameters."""
_TRACE: Final = """
import sys
sys.path.append(sys.argv[1])
from secagg.crypto.entropy import SystemCoins
from secagg.protocols.enclave.machine import boot
from secagg.protocols.enclave.machine.self_test import test_itself
test_itself(SystemCoins())
print(*sorted(sys.modules), sep="\\n")
"""


@dataclass(frozen=True, slots=True)
class Image:
    """The files of an image, and the SHA-256 of each file in its initramfs."""

    kernel: bytes
    initramfs: bytes
    command_line: bytes
    contents: dict[str, str]

    def write(self, folder: Path) -> None:
        """Write the files into a folder; create the folder if needed."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / KERNEL).write_bytes(self.kernel)
        (folder / INITRAMFS).write_bytes(self.initramfs)
        (folder / COMMAND_LINE).write_bytes(self.command_line)
        (folder / CONTENTS).write_text(json.dumps(self.contents, indent=0) + "\n", encoding="utf-8")


def build_image(lock: Path, inputs: Path, words: dict[str, str]) -> Image:
    """Build an image from locked packages; every machine produces the same bytes.

    Args:
        words: settings that the service starts with, by name without ``secagg.``.
    Raises:
        InvalidParameters: a package is missing or differs from the lock, or the image's interpreter cannot run here.
    """
    for name, value in words.items():
        if not _WORD.fullmatch(value):
            raise InvalidParameters(f"{name} may only contain letters, digits and _:./-; got {value!r}")
    files, of_kernel = Files(), Files()
    for name, content in locked_packages(lock, inputs):
        if name == BARE_KERNEL or name.endswith(".ko"):
            of_kernel[name] = Entry(content)
        else:
            add(of_kernel if name.startswith("linux-image") else files, name, unpacked(name, content))
    require_tree(files)
    if f"{PACKAGES}/secagg/__init__.py" not in files:
        raise InvalidParameters(f"{lock} lists no wheel of secagg; add one")
    kernel, drivers = kernel_of(lock, of_kernel)
    chosen = compiled(selected(files, _loaded_modules(files)))
    image = with_start(chosen) | drivers
    contents = {
        path: f"-> {entry.target}" if entry.target else hashlib.sha256(entry.content).hexdigest()
        for path, entry in sorted(image.items())
    }
    protected = PROTECTED.replace("acpi=off ", "") if "acpi" in words else PROTECTED
    line = " ".join([protected, *(f"secagg.{name}={value}" for name, value in sorted(words.items()))])
    return Image(kernel, archive(image), line.encode(), contents)


def kernel_of(lock: Path, files: Files) -> tuple[bytes, Files]:
    """Return the kernel and the drivers that an enclave loads, numbered in loading order."""
    releases = {path.split("/")[3] for path in files if path.startswith("usr/lib/modules/")}
    if BARE_KERNEL in files and not releases:
        modules = [name for name in files if name != BARE_KERNEL]
        return files[BARE_KERNEL].content, {
            f"lib/modules/{at:02}-{name}": files[name] for at, name in enumerate(modules)
        }
    if len(releases) != 1 or BARE_KERNEL in files:
        many = len(releases) + (BARE_KERNEL in files)
        raise InvalidParameters(
            f"{lock} lists {many} kernels; an image needs one linux-image package or one {BARE_KERNEL}"
        )
    release, drivers = releases.pop(), Files()
    for number, name in enumerate(_DRIVERS):
        packed = files.get(f"usr/lib/modules/{release}/kernel/{name}.ko.xz")
        if packed is None:
            raise InvalidParameters(
                f"kernel {release} has no driver {name}; use Debian's cloud kernel, or lock one with built-in "
                f"drivers as {BARE_KERNEL}"
            )
        drivers[f"lib/modules/{number:02}-{posixpath.basename(name)}.ko"] = Entry(expanded(packed.content))
    return files[f"boot/vmlinuz-{release}"].content, drivers


def _loaded_modules(files: Files) -> list[str]:
    """Return the modules that the image's own interpreter loads to start and self-test the service."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_tree(files, root)
        command = [*interpreter_of(root), "-sSBP", "-c", _TRACE, str(root / PACKAGES)]
        try:
            ran = subprocess.run(command, env=environment_of(root), capture_output=True, text=True, check=True)  # noqa: S603 -- the image's own interpreter
        except OSError as error:
            raise InvalidParameters(
                f"the image's interpreter does not run on this machine ({error}); build on x86-64 Linux"
            ) from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines()[-1:]
            raise InvalidParameters(
                f"the image's service does not start: {said}; check the package versions in the lock"
            ) from None
    return ran.stdout.split()
