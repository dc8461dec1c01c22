"""A Flower app with secure aggregation."""
