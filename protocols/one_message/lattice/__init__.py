"""Masks from ring learning with errors: sampling, products, packing and the estimate of their security."""
