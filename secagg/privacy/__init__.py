"""Noise for all protocols: sensitivities, samplers, clients' noise, and the epsilon of releases."""
