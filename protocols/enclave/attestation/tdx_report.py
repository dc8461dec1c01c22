"""The report of a trust domain, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ATTRIBUTE_MIGRATABLE: Final = 1 << 29
UNDER_DEBUG: Final = 0xFF
SERVICE_TD_START: Final = 600


@dataclass(frozen=True, slots=True)
class TdReport:
    """The 584 bytes of TDX 1.0, or the 648 of TDX 1.5 that begin with them."""

    data: bytes

    @property
    def tcb_svn(self) -> bytes:
        """The versions of the TDX module and of what loaded it, when the trust domain was made."""
        return self.data[0:16]

    @property
    def module_signer(self) -> bytes:
        """Who signed the TDX module; zeros where it is Intel."""
        return self.data[64:112]

    @property
    def module_attributes(self) -> bytes:
        """The attributes of the TDX module."""
        return self.data[112:120]

    @property
    def attributes(self) -> int:
        """The attributes of the trust domain."""
        return int.from_bytes(self.data[120:128], "little")

    @property
    def debug(self) -> bool:
        """Whether the host may read it; every bit of the first byte is of that group."""
        return bool(self.attributes & UNDER_DEBUG)

    @property
    def migratable(self) -> bool:
        """Whether a migration service may move it to another host."""
        return bool(self.attributes & ATTRIBUTE_MIGRATABLE)

    @property
    def registers(self) -> dict[str, bytes]:
        """Everything that measures or configures the trust domain."""
        names = ("MRTD", "MRCONFIGID", "MROWNER", "MROWNERCONFIG", "RTMR0", "RTMR1", "RTMR2", "RTMR3")
        registers = {name: self.data[136 + 48 * index : 184 + 48 * index] for index, name in enumerate(names)}
        if len(self.data) > SERVICE_TD_START:
            registers["MRSERVICETD"] = self.data[SERVICE_TD_START : SERVICE_TD_START + 48]
        return registers

    @property
    def launch_fields(self) -> dict[str, bytes]:
        """The flags that the host chose at launch, and the processor features that it enabled."""
        return {"ATTRIBUTES": self.data[120:128], "XFAM": self.data[128:136]}

    @property
    def report_data(self) -> bytes:
        """What the trust domain asked to be attested."""
        return self.data[520:584]
