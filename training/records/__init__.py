"""Records of a run: metrics and checkpoints."""
