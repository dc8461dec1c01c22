"""Index sharing with a dealer."""
