"""The sum of a training round: in the clear, or through a protocol."""
