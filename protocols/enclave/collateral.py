"""Collateral and endorsements that a host relays to clients, who verify all of it."""

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
    {
        EvidenceFormat.SNP: SnpCollateral,
        EvidenceFormat.TDX: IntelCollateral,
        EvidenceFormat.SGX: IntelCollateral,
    }
)


@dataclass(frozen=True, slots=True)
class RelayedCollateral(Message):
    """What a vendor's evidence is verified with."""

    kind: ClassVar = MessageKind.ENCLAVE_COLLATERAL
    parts: Annotated[tuple[bytes, ...], repeated(variable(MOST_COLLATERAL_BYTES), 6, size=1)]
    """The fields of ``SnpCollateral`` or of ``IntelCollateral``, in their order; an absent revocation list is empty."""
    endorsement: Annotated[bytes, variable(MOST_COLLATERAL_BYTES)] = b""


def encode_collateral(collateral: Collateral, endorsement: bytes = b"") -> bytes:
    """Return what a host relays; nothing for none."""
    if collateral is None and not endorsement:
        return b""
    parts = () if collateral is None else tuple(getattr(collateral, part.name) or b"" for part in fields(collateral))
    made = RelayedCollateral(parts, endorsement).encode()
    if len(made) > MOST_COLLATERAL_BYTES:
        raise InvalidParameters(f"clients take {MOST_COLLATERAL_BYTES} bytes of collateral; this has {len(made)}")
    return made


def read_endorsement(folder: Path | str) -> bytes:
    """Return what `secagg enclave endorse` wrote to a folder; nothing if that is not there."""
    file = Path(folder) / ENDORSEMENT
    return file.read_bytes() if file.exists() else b""


def read_collateral(folder: Path | str) -> Collateral:
    """Read a folder with a file for each field of ``SnpCollateral`` or ``IntelCollateral``, named as the field.

    AMD's revocation list may be missing, and all of them beside an endorsement. Hidden files are ignored.

    Raises:
        InvalidParameters: the folder cannot be read, or holds something else.
    """
    try:
        parts = {file.name: file.read_bytes() for file in Path(folder).iterdir() if not file.name.startswith(".")}
    except OSError as error:
        raise InvalidParameters(f"{folder} is no readable folder of collateral: {error.strerror}") from None
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
        f"{folder} holds {', '.join(sorted(parts)) or 'nothing'}; the collateral of SEV-SNP is {needed[0]}; that of "
        f"TDX and SGX {needed[1]}"
    )


def decode_collateral(message: bytes, form: EvidenceFormat) -> tuple[Collateral, bytes]:
    """Read what a host relayed with evidence of this form, and the endorsement; nothing of it is verified yet.

    Raises:
        MalformedMessage: it is no collateral of this form.
    """
    if not message:
        return None, b""
    relayed = RelayedCollateral.decode(message)
    parts, kind = relayed.parts, KINDS.get(form)
    if not parts:
        return None, relayed.endorsement
    if kind is None or len(parts) != len(fields(kind)):
        raise malformed(f"{len(parts)} parts are no collateral of {form} evidence")
    named: dict[str, bytes | None] = dict(zip((each.name for each in fields(kind)), parts, strict=True))
    if kind is SnpCollateral:
        named["revocation_list"] = named["revocation_list"] or None
    made: Collateral = kind(**named)  # type: ignore[arg-type] # as the class has them
    return made, relayed.endorsement
