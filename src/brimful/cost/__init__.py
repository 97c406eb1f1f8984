"""The first rung: memory and time by arithmetic. Knows no torch."""
