"""An audit of a probe from one end to the other, in the session's store."""

from pathlib import Path

from tasks.audits.catalogue import ASK, JUDGE, PROBES
from tasks.audits.respond import RespondConfig, respond
from tasks.audits.score import ScoreConfig, score
from tasks.contract import external
from tasks.measures.scorers import ScorerConfig


def stages_of(name, folder, config, corpus=(None, None, None), scorer=None, pretrained=None):
    """The artifacts of ask, respond, score and judge, and the samples and findings of the last.
    ``corpus``: lexicons, plants and documents."""
    checkpoint = external(Path(folder), "checkpoint")
    asked = ASK[name](checkpoint, *corpus, config)
    answered = respond(checkpoint, asked, RespondConfig())
    (probe,) = [probe for probe in PROBES if probe.name == name]
    settings = ScoreConfig(scorer=scorer or ScorerConfig())
    scored = score(asked, answered, settings) if probe.scored else None
    judged = JUDGE[name](asked, answered, scored, checkpoint, pretrained, config)
    tables = judged["samples"].read(), judged["findings"].read()
    return asked, answered, scored, judged, tables
