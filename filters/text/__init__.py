"""Text as it streams: what answer filters look for and change, a piece at a time."""
