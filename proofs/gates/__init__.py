"""The gates of ``proofs/check``: each checks one kind of evidence, and says what to change if it got weaker."""
