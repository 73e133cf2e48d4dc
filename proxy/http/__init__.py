"""A request's body, a reply, and a client that leaves."""
