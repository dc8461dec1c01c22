"""A Flower app with PyTorch, BatchNorm and secure aggregation."""
