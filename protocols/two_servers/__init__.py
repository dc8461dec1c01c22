"""Secure indexing with two servers that do not collude."""
