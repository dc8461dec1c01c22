"""The machine around the trusted part: its first process, listeners and sources of evidence."""
