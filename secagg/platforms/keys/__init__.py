"""Files of identities, and of the pair of servers."""
