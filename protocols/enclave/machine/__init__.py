"""The machine around the trusted part: its first process, where it listens, and who vouches for its keys."""

from typing import Final

PROTECTED: Final = "console=ttyS0 quiet panic=-1 acpi=off module.sig_enforce=1 lockdown=confidentiality"
"""Words of the kernel's command line that every image has."""
