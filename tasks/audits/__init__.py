"""A model to findings: the audits, their items and their statistics.

An audit made of a probe (``probe.py``; one file each in ``probes/``, named in ``about.py``) goes in
stages: ``ask`` writes items and requests, ``respond`` alone asks a model, ``score`` asks scorers,
``trace`` looks for what was written in the training text, ``judge`` draws the findings. What goes
from one to the next is in ``exchange.py``.

    subjects   the models under audit
    probes     the audits
    methods    what several probes share
    judging    values to findings, their comparison, the policy's verdicts
    ability    what a model can do, beside the harm it may do
    proofs     how often audits are wrong, and findings taken away with their documents

Its stages import the contract, the measures and ``model``, nothing of corpus and training.
"""
