"""``secagg serve``, ``secagg contribute`` and ``secagg tunnel``: sums over HTTP, and TLS between operators."""
