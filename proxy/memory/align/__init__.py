"""Aligns the lines of a window with the entries of a session."""
