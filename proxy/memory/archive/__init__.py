"""The archive: every turn as it was heard, facts and documents, and their search."""
