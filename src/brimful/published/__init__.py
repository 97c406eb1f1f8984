"""Published runs: what others measured, carried with its source, and predicted again."""
