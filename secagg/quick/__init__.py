"""The quick interface: a sum, mean or histogram in one line, and a session for a model in three."""
