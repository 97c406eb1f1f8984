"""What people are shown first: the answer to one question, in at most twelve lines."""
