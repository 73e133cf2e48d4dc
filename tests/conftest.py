"""Makes what suites share importable by its plain name: pytest puts this folder on the path."""
