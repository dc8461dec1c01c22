"""Networks, server optimizers, and how examples are dealt out to clients."""
