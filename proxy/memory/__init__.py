"""What is remembered of a conversation, and where it is kept."""
