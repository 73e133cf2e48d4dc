"""The server: processes, sockets, HTTP and routes."""
