"""Two operators' servers: their keys, the standing second server, and the relaying first one."""
