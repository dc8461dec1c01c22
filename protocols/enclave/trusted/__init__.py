"""The measured part: what runs inside of the enclave and sees uploads."""
