"""Loads settings from a YAML file, and builds the runtime from them."""
