"""One client's upload: its halves, sealed and opened, and how halves become totals."""
