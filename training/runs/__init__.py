"""The driver: rounds, sweeps and their progress."""
