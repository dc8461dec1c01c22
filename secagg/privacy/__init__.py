"""Noise that protocols share: sensitivities, samplers, what clients add, and the epsilon of what is released."""
