"""Sums on many machines: a storage holds the uploads' pieces, and workers add and open each piece exactly once."""
