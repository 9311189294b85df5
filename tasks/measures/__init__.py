"""What corpus, training and audits share: scorers, identities, languages, personal data, canaries.

No stages; imports the contract alone.
"""
