"""The one name by which the fixtures load this folder."""

from . import authority, intel, mutations, nitro, snp

__all__ = ["authority", "intel", "mutations", "nitro", "snp"]
