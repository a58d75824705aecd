"""From results to statements: statistics of returns over seeds and tasks."""
