"""Sockets between processes of one platform: frames, one connection, one service."""
