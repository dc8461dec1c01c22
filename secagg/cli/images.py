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
from secagg.protocols.enclave import EvidenceFormat, endorse, is_port, read_policy
from secagg.session.durable import PUBLIC, replace
from secagg.session.identities import load_authority


def build(options: argparse.Namespace) -> int:
    """Build an image, and print its size and digest."""
    kind, _, rest = options.listen.partition(":")
    if not (is_port(rest) if kind == "vsock" else kind == "virtio" and rest):
        raise InvalidParameters(f"an image's --listen must be vsock:PORT or virtio:NAME; got {options.listen}")
    if options.evidence == "gramine":
        raise InvalidParameters("Gramine uses no image; set --evidence to nsm, tsm or simulated")
    if options.acpi and options.evidence != "tsm":
        raise InvalidParameters("--acpi requires --evidence tsm (TDX); other hardware does not measure ACPI tables")
    words = {"listen": options.listen, "evidence": options.evidence}
    words |= {"memory": str(options.memory), "threads": str(options.threads)}
    words |= {name: "1" for name in ("heartbeat", "acpi") if getattr(options, name)}
    image = build_image(options.lock, options.inputs, words)
    image.write(options.out)
    digest = hashlib.sha256(image.initramfs).hexdigest()
    print(f"{options.out / INITRAMFS}: {len(image.contents)} files, {len(image.initramfs) / 1e6:.1f} MB, {digest}")
    return 0


def measure_nitro(options: argparse.Namespace) -> int:
    """Write an enclave image file next to its parts, and print the policy that accepts it."""
    kernel, initramfs, command_line = _parts_for(options.image, "nsm")
    made = enclave_image(kernel, command_line, [initramfs], version=secagg.__version__)
    (options.image / "image.eif").write_bytes(made)
    _print_policy(EvidenceFormat.NITRO, registers(kernel, command_line, [initramfs]))
    return 0


def measure_snp(options: argparse.Namespace) -> int:
    """Print the policy that accepts an image that QEMU boots under this firmware."""
    kernel, initramfs, command_line = _parts_for(options.image, "tsm")
    digest = launch_digest(
        _read(options.firmware, "give the firmware that QEMU boots"),
        kernel,
        initramfs,
        command_line,
        processor=options.processor,
        count=options.processors,
    )
    _print_policy(EvidenceFormat.SNP, {"MEASUREMENT": digest})
    return 0


def endorse_policy(options: argparse.Namespace) -> int:
    """Sign a policy file for a server to relay."""
    read_policy(options.policy)
    made = endorse(load_authority(options.key), options.policy.read_bytes(), days=options.days, now=datetime.now(UTC))
    replace(options.out, made.encode(), PUBLIC)
    print(f"{options.out}: number {made.number}; clients pin the endorser {made.key.hex()}")
    return 0


def parts_of(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Return kernel, initramfs and command line of an image."""
    advice = f"an image's folder has {KERNEL}, {INITRAMFS} and {COMMAND_LINE}"
    kernel, initramfs, command_line = (_read(folder / name, advice) for name in (KERNEL, INITRAMFS, COMMAND_LINE))
    return kernel, initramfs, command_line.rstrip(b"\n")


def _parts_for(folder: Path, evidence: str) -> tuple[bytes, bytes, bytes]:
    """Return the parts of an image; refuse an image for other hardware."""
    parts = parts_of(folder)
    said = [word.removeprefix("secagg.evidence=") for word in parts[2].decode().split() if "secagg.evidence=" in word]
    if said != [evidence]:
        raise InvalidParameters(
            f"{folder} was built for --evidence {', '.join(said) or 'nothing'} and cannot start on this hardware; "
            f"build it with --evidence {evidence}"
        )
    return parts


def _read(file: Path, advice: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidParameters(f"cannot read {file} ({error.strerror}); {advice}") from None


def _print_policy(form: EvidenceFormat, registers: Mapping[str, bytes]) -> None:
    accepted = {name: value.hex() for name, value in registers.items()}
    print(json.dumps({"format": form.value, "accepted": [accepted]}, indent=2))
