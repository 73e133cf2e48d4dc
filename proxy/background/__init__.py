"""Work that no caller waits for, and the models that are asked for it."""
