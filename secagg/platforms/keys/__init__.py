"""Files of identities, of the pair of servers, and of the evidence that a client accepts."""
