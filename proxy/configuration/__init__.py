"""From a YAML file to settings, or to all that is wrong with it."""
