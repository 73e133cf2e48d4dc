"""How a window and an answer become part of a session."""
