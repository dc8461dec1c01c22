"""Builds machine images that only run the enclave's program, and computes what hardware measures of them."""
