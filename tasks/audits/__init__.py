"""Audit a model: from items and requests to findings, their statistics and verdicts.

An audit is defined by a probe (``probe.py``; one file each in ``probes/``, which ``registry.py``
discovers) and runs in stages: ``build_requests`` writes items and requests,
``respond`` runs the model, ``score`` scores texts, ``trace`` searches the training text, and
``audit`` computes findings. ``audit_tables.py`` defines the tables between them.

    audited_models  the models under audit
    probes          the audits
    methods         methods that several probes share
    judging         findings from values, their comparison, verdicts of a policy
    ability         capability of a model, to compare with its risks
    experiments     error rates of audits, and findings after documents are removed

The stages import the contract, the measures and ``model``, but nothing of corpus and training.
"""
