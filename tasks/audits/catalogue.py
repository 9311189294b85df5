"""The audits that are made of probes, in the order in which they run.

A new probe is a file in ``probes/`` and a line here; until all audits are probes, also its section
in ``flows/config.py`` and its name in the lists of audits of ``flows/pipeline.py`` and of the card.
"""

from __future__ import annotations

from tasks.audits.probe import ask_of, judge_of
from tasks.audits.probes import bias, toxicity

PROBES = (toxicity.PROBE, bias.PROBE)

ASK = {probe.name: ask_of(probe) for probe in PROBES}
JUDGE = {probe.name: judge_of(probe) for probe in PROBES}
