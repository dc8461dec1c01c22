"""The enclave variants: sums and histograms made in a small trusted part, and how a client knows what runs there.

This file imports nothing, on purpose: whatever it imported would be loaded with the trusted part. README.md says which
module has which name.
"""
