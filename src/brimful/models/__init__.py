"""What is trained: specifications, configurations and parameter counts, without torch."""
