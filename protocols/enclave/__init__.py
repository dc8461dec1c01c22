"""The enclave variants: sums and histograms made in a small trusted part, and how a client knows what runs there."""
