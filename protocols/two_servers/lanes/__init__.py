"""Arithmetic of one lane: prime fields, groups, the extension field, and exact products."""
