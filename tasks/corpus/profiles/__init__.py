"""What the profile counts, and the tables that it leaves.

Imports the contract, and of the room above the mentions of identities.
"""
