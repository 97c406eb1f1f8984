"""Searching: the space of strategies, the fastest that fits, and why. Knows no torch."""
