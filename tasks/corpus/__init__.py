"""Raw text to a curated corpus, a stage a module. What stages are made of has rooms below:
``reading`` the sources, ``copies`` among documents, ``figures`` of quality, ``toxicity``, the
effect on ``people``, what ``profiles`` count, and the invented ``town``.

Its stages import the contract and the measures, nothing of training and audits.
"""
