"""The paper's models and printed tables, beside what this library computes."""
