"""Runs on many devices: groups of processes, and what each of them does."""
