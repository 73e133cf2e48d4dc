"""A port that is served: the processes, the sockets and the protocol."""
