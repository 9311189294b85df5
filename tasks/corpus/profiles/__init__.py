"""What the profile counts, and the tables that it leaves."""
