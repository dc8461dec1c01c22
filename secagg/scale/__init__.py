"""Sums on many machines: pieces lie in a storage, workers add and open ranges of them, nothing is added twice."""
