"""A secure sum as a platform sees it: roles, a driver, certificates, ledgers, frames and connections."""
