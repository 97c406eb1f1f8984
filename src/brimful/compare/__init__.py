"""One job in several precision recipes: trained side by side, and told apart."""
