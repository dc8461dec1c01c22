"""Planning: the costs of each protocol and scheme for a model and a cohort, and which of them to choose."""
