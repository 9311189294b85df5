"""Raw text to a curated corpus, a stage a module; ``reading`` has the readers of sources.

Its stages import the contract and the measures, nothing of training and audits.
"""
