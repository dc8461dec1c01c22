"""The short way in: a sum, a mean or a histogram in one line, and a session for a model in three."""
