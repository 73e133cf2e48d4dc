"""From a YAML file to settings, and from settings to what runs."""
