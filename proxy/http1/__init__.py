"""HTTP/1.1 as the client speaks it: one noun per file."""
