"""A model to findings: the audits, their items and their statistics; ``subjects`` are the models.

An audit made of a probe (``probe.py``, one file each in ``probes/``, named in ``catalogue.py``)
goes in four stages: ``ask`` writes items and requests, ``respond`` alone asks a model, ``score``
asks scorers, ``judge`` draws the findings. What goes from one to the next is in ``exchange.py``.

Its stages import the contract, the measures and ``model``, nothing of corpus and training.
"""
