"""Session stores: one store over a driver for SQLite, PostgreSQL, Redis or the process."""
