"""Provide methods of building requests and computing findings that several probes share.

Methods import ``tasks.audits``, ``judging`` and ``audited_models``; from probes only types.
"""
