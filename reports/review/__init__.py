"""Reviews of cards: what a reviewer signs, whether the signature holds, and releases.

``evidence_hash`` hashes the tables of a card. ``statements`` defines what a reviewer decides about
that hash, ``signatures`` checks the SSH signature of a statement, ``review_store`` keeps both, and
``approval`` combines all reviews of a card. ``release_folder`` checks a release without a store.
"""
