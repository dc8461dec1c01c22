"""Federated learning through real secure aggregation: data, models, engines, and the driver that puts them together.

The extra ``train`` holds what it needs beside the library. Nothing outside of this package imports torch.
"""
