"""Which upstream is asked, and what becomes of one that does not answer."""
