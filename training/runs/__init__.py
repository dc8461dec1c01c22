"""The driver: rounds, asynchronous runs, sweeps and their progress."""
