"""Secure sums whose clients speak once and may leave: masks whose sum has a short key."""
