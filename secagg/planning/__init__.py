"""Plans: what a protocol and a scheme cost for a model and a cohort, and which of them to choose."""
