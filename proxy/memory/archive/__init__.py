"""What was said, for good: every turn as heard, facts and documents, and how they are found again."""
