"""The one name by which the fixtures load this folder."""

from . import authority, intel, nitro, snp

__all__ = ["authority", "intel", "nitro", "snp"]
