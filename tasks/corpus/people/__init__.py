"""What curation does to people: what became of each document, and sentences in which only the
group changes."""

#: Actions of a ledger with which a document leaves.
LEAVING = ("removed", "quarantined")
