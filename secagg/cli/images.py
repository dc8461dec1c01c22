"""``secagg enclave image``, ``measure`` and ``endorse``: an enclave's machine, and the policy file that pins it."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import secagg
from secagg.enclave_image.image import COMMAND_LINE, INITRAMFS, KERNEL, build_image
from secagg.enclave_image.nitro import enclave_image, registers
from secagg.enclave_image.sev_snp import launch_digest
from secagg.errors import InvalidParameters
from secagg.protocols.enclave import EvidenceFormat, endorse, read_policy
from secagg.session.durable import PUBLIC, replace
from secagg.session.identities import load_authority


def build(options: argparse.Namespace) -> int:
    """Build an image, and say what it is."""
    words = {"listen": options.listen, "evidence": options.evidence}
    words |= {"memory": str(options.memory), "threads": str(options.threads)}
    image = build_image(options.lock, options.inputs, words | ({"heartbeat": "1"} if options.heartbeat else {}))
    image.write(options.out)
    digest = hashlib.sha256(image.initramfs).hexdigest()
    print(f"{options.out / INITRAMFS}: {len(image.contents)} files, {len(image.initramfs) / 1e6:.1f} MB, {digest}")
    return 0


def measure_nitro(options: argparse.Namespace) -> int:
    """Write an enclave image file next to its parts, and print the policy that accepts it."""
    kernel, initramfs, command_line = parts_of(options.image)
    made = enclave_image(kernel, command_line, [initramfs], version=secagg.__version__)
    (options.image / "image.eif").write_bytes(made)
    _print_policy(EvidenceFormat.NITRO, registers(kernel, command_line, [initramfs]))
    return 0


def measure_snp(options: argparse.Namespace) -> int:
    """Print the policy that accepts an image that QEMU boots under this firmware."""
    kernel, initramfs, command_line = parts_of(options.image)
    digest = launch_digest(
        _read(options.firmware),
        kernel,
        initramfs,
        command_line,
        processor=options.processor,
        count=options.processors,
    )
    _print_policy(EvidenceFormat.SNP, {"MEASUREMENT": digest})
    return 0


def endorse_policy(options: argparse.Namespace) -> int:
    """Sign a policy file, for a server to relay."""
    read_policy(options.policy)
    made = endorse(load_authority(options.key), options.policy.read_bytes(), days=options.days, now=datetime.now(UTC))
    replace(options.out, made.encode(), PUBLIC)
    print(f"{options.out}: number {made.number}; clients pin the endorser {made.key.hex()}")
    return 0


def parts_of(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Return kernel, initramfs and command line of an image."""
    kernel, initramfs, command_line = (_read(folder / name) for name in (KERNEL, INITRAMFS, COMMAND_LINE))
    return kernel, initramfs, command_line.rstrip(b"\n")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidParameters(
            f"{file} cannot be read ({error.strerror}); an image's folder has {KERNEL}, {INITRAMFS} and {COMMAND_LINE}"
        ) from None


def _print_policy(form: EvidenceFormat, registers: Mapping[str, bytes]) -> None:
    accepted = {name: value.hex() for name, value in registers.items()}
    print(json.dumps({"format": form.value, "accepted": [accepted]}, indent=2))
