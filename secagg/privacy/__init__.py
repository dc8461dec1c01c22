"""Noise that protocols share: sensitivities, samplers, clients' noise, and the epsilon of releases."""
