"""What a server tells its clients in place of the model: decoded sums as few bits, and a model that they move."""

from .coder import Sums, decode_sums, encode_sums, longest
from .held_model import HeldModel, ToldSum

__all__ = ["HeldModel", "Sums", "ToldSum", "decode_sums", "encode_sums", "longest"]
