"""Stand-ins for what a test or an experiment must control: coins that repeat, a cohort in one process, a network.

Nothing here protects anybody. Names contain ``Insecure`` where production use would be dangerous.
"""
