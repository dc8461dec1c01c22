"""Secure sums over HTTP: a server, clients, and mutual TLS between operators."""
