"""Distributed point functions: trees of seeds, their generation and evaluation, and sums over blocks."""
