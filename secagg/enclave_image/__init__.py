"""Images for machines that run the enclave's program and nothing else, and what hardware will say of them."""
