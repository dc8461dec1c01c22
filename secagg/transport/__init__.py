"""Secure sums over HTTP: server, clients, and mutual TLS between operators."""
