"""Buffers of asynchronous uploads: several lists of one epoch, each of the clients that started from one model."""
