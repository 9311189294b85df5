"""Count what the profile reports, and define its tables.

Imports the contract, and from ``tasks.corpus`` only identities and selection rules.
"""
