"""The codec of a run: schemes for its tensors, and their calibration."""
