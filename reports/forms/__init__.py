"""The questions of the two published forms for cards, and a person's answers to them."""
