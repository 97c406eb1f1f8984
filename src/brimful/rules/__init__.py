"""Published rules of thumb, each checked on a user's model and GPU. Knows no torch."""
