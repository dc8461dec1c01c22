"""The measured part: the code that runs inside the enclave and sees uploads."""
