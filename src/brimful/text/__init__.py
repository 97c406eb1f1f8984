"""Text on its way in and out: read as YAML, escaped for its target, written to a terminal."""
