"""Scripts that stand where a program has none of its own: run on the pretend GPU, not imported."""
