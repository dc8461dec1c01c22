"""The parts that import Flower: the client's mod, the server's grid, and their rounds."""
