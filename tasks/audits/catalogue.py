"""The audits that are made of probes, in the order of the card: the only place that names them all.

A new probe is a file in ``probes/`` and a line here.
"""

from __future__ import annotations

from tasks.audits.probe import ask_of, judge_of
from tasks.audits.probes import bias, toxicity

PROBES = (toxicity.PROBE, bias.PROBE)

ASK = {probe.name: ask_of(probe) for probe in PROBES}
JUDGE = {probe.name: judge_of(probe) for probe in PROBES}
