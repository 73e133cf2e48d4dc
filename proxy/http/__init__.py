"""HTTP requests and replies, and the router of paths to handlers."""
