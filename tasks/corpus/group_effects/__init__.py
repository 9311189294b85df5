"""What curation does to people: what became of each document, and sentences in which only the
group changes.

Imports what the room above may, and its kernels of copies and splits.
"""

#: Actions of a ledger with which a document leaves.
REMOVING_ACTIONS = ("removed", "quarantined")
