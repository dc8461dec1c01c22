"""Launch flags of each format, which the host chooses, and those that a policy tolerates.

A host can launch a measured program in ways that its measurement does not show. A flag that no table here knows is
refused with the evidence. The others are judged by the policy: as pinned, or by the strict default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .claims import EvidenceFormat, invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The bits of one field, the lowest first."""

    required: int
    """Set, unless the field is pinned."""
    tolerated: int
    """Set or not, without a pin: they change nothing that a client relies on, or make the launch stricter."""
    known: int
    """Bits that have a meaning; the others are reserved."""

    def admit(self, value: bytes) -> bool:
        """Tell whether a field that is not pinned keeps to the default."""
        bits = int.from_bytes(value, "little")
        return bits & self.required == self.required and not bits & ~(self.required | self.tolerated)


def bits(*places: int) -> int:
    """Return the number in which these bits are set."""
    return sum(1 << place for place in places)


_PLAIN_REGISTERS: Final = bits(2, 5, 6, 7, 9, 17, 18, 19)
"""AVX, AVX-512 in three parts, PKRU, AMX in two, APX: registers for computing."""
_CET: Final = bits(11, 12)

FLAGS: Final[Mapping[EvidenceFormat, Mapping[str, Flags]]] = MappingProxyType(
    {
        EvidenceFormat.NITRO: {},
        # [AMD 56860]: ABI version, 16 SMT, 17 one, 18 migration agent, 19 debug, 20 single socket, 21 CXL,
        # 22 AES-256-XTS, 23 no RAPL, 24 hidden ciphertext, 25 no page swap. Of a platform: 0 SMT, 1 TSME, 2 ECC,
        # 3 no RAPL, 4 hidden ciphertext, 5 no aliases in memory, 6 IOMMU writes are safe (Turin), 7 trusted I/O.
        EvidenceFormat.SNP: {
            "POLICY": Flags(
                required=bits(17),
                tolerated=bits(*range(17), 20, 22, 23, 24, 25),
                known=bits(*range(26)),
            ),
            "PLATFORM_INFO": Flags(
                required=bits(5),
                tolerated=bits(0, 1, 2, 3, 4, 6),
                known=bits(*range(8)),
            ),
        },
        # Intel's TDX: 0-7 debug, 27 LASS, 28 SEPT_VE_DISABLE, 29 migratable, 30 PKS, 31 KL, 62 TPA, 63 PERFMON; XFAM:
        # 8 PT, 14 user interrupts, 15 LBR, 16 HWP.
        EvidenceFormat.TDX: {
            "ATTRIBUTES": Flags(
                required=bits(28),
                tolerated=bits(27),
                known=bits(*range(8), 27, 28, 29, 30, 31, 62, 63),
            ),
            "XFAM": Flags(
                required=bits(0, 1),
                tolerated=_PLAIN_REGISTERS | _CET,
                known=bits(0, 1, 8, 14, 15, 16) | _PLAIN_REGISTERS | _CET,
            ),
        },
        # Intel's SGX: 0 INIT, 1 debug, 2 64 bits, 4 provisioning key, 5 launch key, 6 CET, 7 KSS, 10 AEX notify. In
        # XFRM: 3 and 4 MPX. MISCSELECT: 0 exceptions, 1 control protection.
        EvidenceFormat.SGX: {
            "ATTRIBUTES": Flags(
                required=bits(0, 2),
                tolerated=bits(6, 7, 10),
                known=bits(0, 1, 2, 4, 5, 6, 7, 10),
            ),
            "XFRM": Flags(
                required=bits(0, 1),
                tolerated=_PLAIN_REGISTERS | _CET | bits(3, 4),
                known=bits(0, 1, 3, 4) | _PLAIN_REGISTERS | _CET,
            ),
            "MISCSELECT": Flags(required=0, tolerated=0, known=bits(0, 1)),
        },
    }
)


def require_known_flags(kind: EvidenceFormat, fields: Mapping[str, bytes]) -> None:
    """Refuse a reserved bit: nobody knows what it lets a host do.

    Raises:
        PeerMisbehaved: with reason ``attestation_invalid``.
    """
    for name, flags in FLAGS[kind].items():
        unknown = int.from_bytes(fields[name], "little") & ~flags.known
        if unknown:
            raise invalid(f"reserved bits of {name} are set in {kind} evidence ({unknown:#x}); nobody knows their use")


def require_zero(kind: EvidenceFormat, reserved: Mapping[str, bytes]) -> None:
    """Refuse reserved bytes that are not zero.

    Raises:
        PeerMisbehaved: with reason ``attestation_invalid``.
    """
    for name, value in reserved.items():
        if any(value):
            raise invalid(f"{name} of {kind} evidence is reserved and not zero")
