"""What corpus, training and audits share: scorers, statistics, identities, languages, personal
data, canaries.

No stages; imports the contract alone.
"""
