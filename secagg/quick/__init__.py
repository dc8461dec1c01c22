"""The quick interface: a sum, a mean or a histogram in one line, and a session for a model in three."""
