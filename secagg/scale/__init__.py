"""Sums on many machines: a storage has the uploads' pieces, and workers add and open ranges, each exactly once."""
