"""Encodes and reads collateral and endorsements, which the host relays and each client verifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Final

from secagg.declared import Message, repeated, variable
from secagg.errors import InvalidParameters
from secagg.wire import MessageKind

from .attestation import Collateral, EvidenceFormat, IntelCollateral, SnpCollateral
from .attestation.claims import malformed
from .client import MOST_COLLATERAL_BYTES

ENDORSEMENT: Final = "endorsement"
KINDS: Final[Mapping[EvidenceFormat, type[SnpCollateral | IntelCollateral]]] = MappingProxyType(
    {EvidenceFormat.SNP: SnpCollateral, EvidenceFormat.TDX: IntelCollateral, EvidenceFormat.SGX: IntelCollateral}
)


@dataclass(frozen=True, slots=True)
class RelayedCollateral(Message):
    """Collateral for a vendor's evidence, and an endorsement."""

    kind: ClassVar = MessageKind.ENCLAVE_COLLATERAL
    parts: Annotated[tuple[bytes, ...], repeated(variable(MOST_COLLATERAL_BYTES), 6, size=1)]
    """The fields of ``SnpCollateral`` or ``IntelCollateral`` in order; a missing revocation list is empty."""
    endorsement: Annotated[bytes, variable(MOST_COLLATERAL_BYTES)] = b""


def encode_collateral(collateral: Collateral, endorsement: bytes = b"") -> bytes:
    """Encode collateral and an endorsement for clients; empty if there is neither."""
    if collateral is None and not endorsement:
        return b""
    parts = () if collateral is None else tuple(getattr(collateral, part.name) or b"" for part in fields(collateral))
    made = RelayedCollateral(parts, endorsement).encode()
    if len(made) > MOST_COLLATERAL_BYTES:
        raise InvalidParameters(f"collateral has {len(made)} bytes; clients accept at most {MOST_COLLATERAL_BYTES}")
    return made


def read_endorsement(folder: Path | str) -> bytes:
    """Return the endorsement that `secagg enclave endorse` wrote to a folder; empty if there is none."""
    file = Path(folder) / ENDORSEMENT
    return file.read_bytes() if file.exists() else b""


def read_collateral(folder: Path | str) -> Collateral:
    """Read a folder that has one file per field of ``SnpCollateral`` or ``IntelCollateral``, named after the field.

    AMD's revocation list is optional; with an endorsement, all files are. Hidden files are ignored.

    Raises:
        InvalidParameters: the folder cannot be read, or has missing or unknown files.
    """
    try:
        parts = {file.name: file.read_bytes() for file in Path(folder).iterdir() if not file.name.startswith(".")}
    except OSError as error:
        raise InvalidParameters(f"cannot read the collateral folder {folder}: {error.strerror}") from None
    for name, content in parts.items():
        if content.startswith(b"-----BEGIN") and not name.endswith("_chain"):
            raise InvalidParameters(f"{folder}/{name} is PEM; convert it: openssl x509 (or crl) -outform DER")
    if parts.pop(ENDORSEMENT, None) is not None and not parts:
        return None
    needed = list[str]()
    for kind in (SnpCollateral, IntelCollateral):
        names = {part.name for part in fields(kind)}
        needed.append(", ".join(sorted(names)))
        if names - {"revocation_list"} <= parts.keys() <= names:
            return kind(**parts)
    raise InvalidParameters(
        f"{folder} contains {', '.join(sorted(parts)) or 'nothing'}; SEV-SNP collateral is {needed[0]}; TDX and SGX "
        f"collateral is {needed[1]}"
    )


def decode_collateral(message: bytes, form: EvidenceFormat) -> tuple[Collateral, bytes]:
    """Decode the collateral and endorsement relayed with evidence of this format, without verifying them.

    Raises:
        MalformedMessage: this is not collateral for the format.
    """
    if not message:
        return None, b""
    relayed = RelayedCollateral.decode(message)
    parts, kind = relayed.parts, KINDS.get(form)
    if not parts:
        return None, relayed.endorsement
    if kind is None or len(parts) != len(fields(kind)):
        raise malformed(f"collateral for {form} evidence does not have {len(parts)} parts")
    named: dict[str, bytes | None] = dict(zip((each.name for each in fields(kind)), parts, strict=True))
    if kind is SnpCollateral:
        named["revocation_list"] = named["revocation_list"] or None
    made: Collateral = kind(**named)  # type: ignore[arg-type] # named after the class's fields
    return made, relayed.endorsement
