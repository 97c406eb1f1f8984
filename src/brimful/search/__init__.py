"""Finding the fastest strategy that fits, and saying why the others lost."""
