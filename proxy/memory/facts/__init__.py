"""Facts about users: extracted from their turns, corrected, and put into prompts."""
