"""Planning: computes the costs of each protocol and scheme for a model and a cohort, and gives advice."""
