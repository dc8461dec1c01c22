"""Settings of a run: configuration, presets, seeds and cohorts."""
