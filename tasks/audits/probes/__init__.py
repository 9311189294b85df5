"""Define the audits: each file holds one probe with its items, requests, values and measures.

Probes import ``tasks.audits``, ``methods``, ``judging`` and the tokenizer of ``audited_models``,
but no model.
"""
