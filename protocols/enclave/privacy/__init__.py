"""Sensitivity, noise budgets and accounting of the enclave's releases."""
