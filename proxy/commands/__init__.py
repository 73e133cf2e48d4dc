"""The commands of ``turnkeeper``: a file each, named as the command."""
