"""The quick interface: a sum, mean or histogram in one line, and a model's session in three."""
