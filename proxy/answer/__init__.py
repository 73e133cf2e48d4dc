"""Answers as bytes: server-sent events, the answer filters that change them, and transcripts."""
