"""Count what the profile reports, and define its tables.

Imports the contract, and from ``tasks.corpus`` only identities, selection rules and
the sentences of ``group_effects``.
"""
