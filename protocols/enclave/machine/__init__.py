"""The machine around the trusted part: its first process, where it listens, and who vouches for its keys."""
