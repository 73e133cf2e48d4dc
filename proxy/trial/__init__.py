"""Requests explained and configurations tested, without a model."""
