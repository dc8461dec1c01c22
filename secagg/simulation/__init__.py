"""Simulation for tests and experiments: repeatable coins, a cohort in one process, a network.

Nothing here protects data. Names contain ``Insecure`` where production use would be dangerous.
"""
