"""Stand-ins for what a test or an experiment must control: coins that repeat, a cohort in one process, a network.

Nothing here protects anybody. What would be dangerous in production has ``Insecure`` in its name.
"""
