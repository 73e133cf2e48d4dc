"""What is told of turns: metrics, the log, spans, the feed."""
