"""The review application that ``hallmark view`` starts: its routes, and what they read."""
