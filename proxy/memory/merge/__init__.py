"""Merges windows and answers into sessions."""
