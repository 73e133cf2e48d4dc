"""Work that no turn waits for, and the models that are asked for it."""
