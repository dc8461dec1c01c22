"""Primitives: rings, fields, sharing, keys, sealing, masks, labels, secrets, and the one door to randomness."""
