"""Clients that hold: the keys that they publish, and what a holder keeps between two messages."""
