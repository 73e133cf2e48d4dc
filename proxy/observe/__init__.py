"""Observation of turns: log, metrics, feed and spans."""
