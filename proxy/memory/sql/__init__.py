"""Sessions in SQL. SQLite and PostgreSQL differ in locking and in how they append, and in nothing else."""
