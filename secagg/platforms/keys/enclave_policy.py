"""Which programs a node's operator accepts in an enclave: a file of measurements, which never comes from the server.

    {"format": "nitro", "accepted": [{"PCR0": "<96 hexadecimal digits>", "PCR1": "...", "PCR2": "..."}]}

AWS Nitro documents need nothing besides, which is why a file suffices. SEV-SNP, TDX and SGX evidence needs the vendors'
collateral, which an operator fetches; give ``SecAggMod(enclave_judge=HardwareJudge(...))`` for those.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from secagg.errors import InvalidParameters
from secagg.protocols.enclave import EvidenceFormat, HardwareJudge, PinnedMeasurement, Policy, Verifier


def load_judge(path: Path) -> HardwareJudge:
    """Read a policy, and return the judge that keeps to it.

    Raises:
        InvalidParameters: there is no such file, or it is not a policy for Nitro documents.
    """
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if fields["format"] != EvidenceFormat.NITRO.value:
            raise InvalidParameters(
                f"{path} is for {fields['format']!r} evidence, which needs collateral; a file can pin nitro alone, and "
                "SecAggMod(enclave_judge=...) takes the others"
            )
        accepted = tuple(
            PinnedMeasurement(EvidenceFormat.NITRO, {name: bytes.fromhex(value) for name, value in pinned.items()})
            for pinned in fields["accepted"]
        )
        return HardwareJudge(policy=Policy(accepted=accepted), verifier=Verifier())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParameters(
            f"{path} is not a readable enclave policy ({error}); it names a format and the measurements it accepts"
        ) from None
