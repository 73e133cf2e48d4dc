"""The web page: conversations, turns, users, the playground and the server's health."""
