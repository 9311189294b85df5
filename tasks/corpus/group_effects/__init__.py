"""Measure how curation affects groups of people.

Determines what became of each document, and swaps the group in sentences. Imports what
``tasks.corpus`` may import, and its code for copies and splits.
"""

#: Ledger actions that remove a document.
REMOVING_ACTIONS = ("removed", "quarantined")
