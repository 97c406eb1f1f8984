"""Files that are written whole, what was traced into them, and what was made of it."""
