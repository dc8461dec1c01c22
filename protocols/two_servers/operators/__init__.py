"""Sockets between the two servers, and their greeting."""
