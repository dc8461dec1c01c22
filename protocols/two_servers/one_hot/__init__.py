"""The one-hot check: each block of a client holds one codeword, proved to two servers."""
