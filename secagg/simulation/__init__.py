"""Stand-ins for what a test or an experiment must control: coins today, a network with dropouts later.

Nothing here protects anybody. What would be dangerous in production has ``Insecure`` in its name.
"""
