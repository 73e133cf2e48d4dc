"""One turn, from the client's request to the record of its answer."""
