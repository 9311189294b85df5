"""An audit of a probe from one end to the other, in the session's store or with known answers."""

import json
from pathlib import Path

import pyarrow as pa

from tasks.audits.answers import Answers
from tasks.audits.catalogue import ASK, JUDGE, METRICS, PROBES
from tasks.audits.exchange import REQUESTS, RESPONSES, SKIPPED, Questions
from tasks.audits.probe import Corpus
from tasks.audits.refer import refer
from tasks.audits.respond import RespondConfig, respond, respond_untrained
from tasks.audits.score import ScoreConfig, score
from tasks.audits.subjects.reader import open_reader
from tasks.contract import external
from tasks.measures.scorers import ScorerConfig


def stages_of(name, folder, config, corpus=(None, None, None), scorer=None, pretrained=None,
              traced=None, reference=None, also=()):  # fmt: skip
    """The artifacts of ask, respond, score and judge, and the values and findings of the last.
    ``corpus``: lexicons, plants and documents."""
    checkpoint = external(Path(folder), "checkpoint")
    asked = ASK[name](checkpoint, *corpus, config)
    answered = respond(checkpoint, asked, RespondConfig())
    (probe,) = [probe for probe in PROBES if probe.name == name]
    settings = ScoreConfig(scorer=scorer or ScorerConfig(), also=also).of(probe.heads)
    scored = score(asked, answered, settings) if probe.scored else None
    untrained = floor = None
    if probe.floor(config):
        untrained = respond_untrained(checkpoint, asked, RespondConfig())
        floor = score(None, untrained, settings)
    referred = None
    if reference:
        referred = refer(external(Path(reference), "checkpoint"), asked, answered, RespondConfig())
    dated = ({"0": checkpoint}, {"0": pretrained}) if pretrained else (None, None)
    judged = JUDGE[name](asked, answered, scored, *dated, untrained, floor,
                         traced, referred, config)  # fmt: skip
    tables = judged["values"].read(), judged["findings"].read()
    assert not unnamed(name, tables[1].to_pylist())
    return asked, answered, scored, judged, tables


def scripted(name, folder, config, says, plants=None, lexicons=None):
    """What a probe makes of answers that are known: ``says(item, target)`` is the log p of a target
    in nats. The table behind its findings, and these by metric and slice."""
    (probe,) = [probe for probe in PROBES if probe.name == name]
    reader, questions = open_reader(Path(folder)), Questions()
    probe.ask(questions, reader, Corpus(lexicons, plants), config)
    requests = {row["request"]: row for row in questions.requests}
    answers = [
        {"request": name, "draw": draw, "log_p": [says(questions.items[row["item"]], draw)]}
        for name, row in requests.items()
        for draw in range(len(row["targets"]))
    ]
    given = Answers(
        pa.Table.from_pylist([*questions.items.values()], schema=probe.items),
        pa.Table.from_pylist(questions.requests, schema=REQUESTS),
        pa.Table.from_pylist(answers, schema=RESPONSES),
        reader=pa.table({"kind": [reader.kind], "begin": [reader.begin]}),
        skipped=pa.Table.from_pylist(questions.skipped, schema=SKIPPED),
    )
    rows, found = probe.judged(given, config)
    made = {(row["metric"], row["slice"]): row for row in found}
    assert len(made) == len(found)
    assert not unnamed(name, found)
    return rows, made


def unnamed(audit, findings):
    """The metrics of findings that no policy could name, though they are no controls."""
    return {row["metric"] for row in findings if not row["control"]} - {*METRICS[audit]}


def written(path, rows):
    """A JSON Lines file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
