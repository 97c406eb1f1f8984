"""What is said: jobs, strategies, plans, results, and the words for them. Nothing is computed."""
