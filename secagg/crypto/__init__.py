"""Primitives: rings, fields, sharing, keys, sealing, masks, labels, secrets, and the only source of randomness."""
