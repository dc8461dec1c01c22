"""LightSecAgg: masks that are shared in coded pieces, so that a dropout costs nothing more than its pieces."""
