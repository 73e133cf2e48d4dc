"""Which entry of a session each line of a window is."""
