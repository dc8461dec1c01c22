"""The gates of ``proofs/check``: each looks at one kind of evidence, and says what to change where it is weaker."""
