"""What a run would do and come to, before it is run: nothing is trained, nothing is written to the
store, no Prefect server is started.

The pipeline's own functions run under a plan in place of the stages. Where the store cannot answer
for the corpus, the first records of the sources go through the real stages in a temporary store: if
they are all there is, with the config as it is, and then figures and errors are those of the run;
else without planting, and figures are estimates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.config import ROOT_KEYS, Config, load
from flows.examining import check_files, check_items
from flows.forecast import costs
from flows.forecast.concerns import Concern, concerns
from flows.forecast.figures import (
    UNKNOWN,
    Figure,
    Grown,
    corpus_figures,
    source_figures,
    vocabulary_of,
)
from flows.forecast.planning import Plan, ReadOnly, Unknown, newest_of
from flows.forecast.sampling import BUDGET, Sample, take_sample
from flows.growing import check_earlier, check_preferred, earlier_of
from flows.pipeline import audited, curate, examine, train, up_to
from flows.recording import check_layer, check_start, check_until
from flows.rules import check_policy
from flows.runs import find_artifact, store_uri
from tasks.audits.about import AUDITS
from tasks.contract import (
    Artifact,
    Event,
    Finished,
    HallmarkError,
    Session,
    Store,
    UsageError,
    open_session,
)
from tasks.corpus.plant import PlantConfig
from tasks.corpus.toxicity.actions import explain_action
from tasks.measures.scorers import HEADS, ScorerConfig, needs_download

Report = dict[str, Any]

#: The stages that a sample goes through: those before the training.
SECTIONS = [name for name in Config.model_fields if name not in ROOT_KEYS]
TRIED = SECTIONS[: SECTIONS.index("pretrain")]
#: What a figure of the corpus rests on is known when these are.
CORPUS = ("ingest", "plant", "pack")


def forecast(
    config: str,
    overrides: Sequence[str] = (),
    until: str | None = None,
    start: str | None = None,
    store: str | None = None,
    budget: int = BUDGET,
) -> Report:
    """A JSON value. ``budget``: bytes of text that a sample takes at most."""
    settings = load(config, overrides)
    check_until(until, settings)
    check_policy(settings)
    if start is None:
        check_layer(settings)
    uri = store_uri(store or settings.store)
    with tempfile.TemporaryDirectory(prefix="hallmark-dry-run-") as name:
        folder = Path(name)
        opened, there = _store(uri, folder)
        check_earlier(opened, settings)
        check_preferred(opened, settings)
        checkpoint = check_start(start, settings, until, opened) if start is not None else None
        made = Forecast(settings, opened, folder, until, checkpoint, budget)
        made.look()
        report = made.report()
    where = uri if there else f"{uri} (not there yet)"
    return {"config": config, "store": where, "until": until, "start": start} | report


def _store(uri: str, folder: Path) -> tuple[Store, bool]:
    """The store to look into, and whether it is there; else an empty one that goes again."""
    local = Path(uri.removeprefix("file://"))
    if "://" not in str(local) and not local.exists():
        return ReadOnly(folder / "empty"), False
    return ReadOnly(uri, create=False), True


def describe_toxicity_rules(config: Config) -> list[str]:
    """Return the action of each rule over a toxicity score, and why it applies."""
    kind = config.score_toxicity.scorer.kind
    return [
        f"select_scored.rules.{rule.name}: action {rule.action}, "
        + explain_action(rule.action, kind)
        for rule in config.select_scored.rules
        if rule.signal in HEADS
    ]


class Forecast:
    """Looks at a run before it is run; everything it makes lies in ``folder``, and goes with it."""

    def __init__(
        self,
        config: Config,
        store: Store,
        folder: Path,
        until: str | None,
        start: Artifact | None,
        budget: int,
    ) -> None:
        self.config, self.store, self.folder = config, store, folder
        self.until, self.start, self.budget = until, start, budget
        self.earlier = earlier_of(store, config)
        self.sample: Sample | None = None
        self.grown: Grown | None = None
        # Of each stage: what it takes in any case, and on the sample besides.
        self.fixed_seconds: dict[str, float] = {}
        self.tried_seconds: dict[str, float] = {}
        self.notes = describe_toxicity_rules(config)
        self.problems: list[Concern] = []

    # Looking ---------------------------------------------------------------------------------

    def look(self) -> None:
        self.plan = self._planned(Plan(self.store), self.config)
        self.known = self.plan.known
        wanted = [label for label in CORPUS if any(row.label == label for row in self.plan.rows)]
        if all(label in self.plan.known for label in wanted) or self.plan.failures:
            return
        try:
            self.sample = take_sample(self.config.ingest, self.folder, self.budget)
        except HallmarkError as error:
            self.problems.append(Concern(f"stage ingest: {error}", sure=True))
            return
        if self.sample.whole:
            trial = Store(self.folder / "trial")
            trial.keep_secret(self.store.secret)  # else what depends on it would differ
            self.plan = self._planned(Plan(self.store, Session(trial), TRIED), self.config)
            self.known = self.plan.known
            if self._fails("plant"):
                self._leave_planting_out(Session(trial))
        elif not self.sample.documents:
            self.notes.append("nothing of the sources could be read here, so nothing is estimated")
        unknown = any(label not in self.plan.known for label in wanted)
        if unknown and not self.plan.failures and self.sample.documents:
            self._grow(self.sample)

    def _fails(self, label: str) -> bool:
        return any(row.label == label and row.state == "fails" for row in self.plan.rows)

    def _leave_planting_out(self, trial: Session) -> None:
        """See what else would fail once that is put right."""
        config = self.config.model_copy(update={"plant": self._no_planting()})
        plan = self._planned(Plan(self.store, trial, TRIED), config)
        self.known = plan.known
        self.problems += [Concern(why, sure=True) for why in plan.failures]
        self.notes.append("since plant fails, figures are those without planting")

    def _no_planting(self) -> PlantConfig:
        return self.config.plant.model_copy(update={"enabled": False})

    def _planned(self, plan: Plan, config: Config) -> Plan:
        """The whole pipeline under a plan."""
        session = Session(self.store, until=self.until, plan=plan)
        with open_session(session), suppress(Finished):
            corpus = curate(config, self.earlier)
            trained = train(config, corpus, self.start, self.earlier)
            pretrained = trained["pretrain"]
            examine(config, self._last(pretrained), tuple(AUDITS), corpus, pretrained, self.earlier)
        return plan

    def _last(self, pretrained: Artifact | Unknown) -> Any:
        """The last checkpoint of a training, as far as it is known."""
        if isinstance(pretrained, Unknown):
            return Unknown("pretrain")
        names = pretrained["checkpoints"].read(["artifact"])["artifact"].to_pylist()
        return find_artifact(self.store, names[-1])

    def _grow(self, sample: Sample) -> None:
        """Run the stages before the training on the sample, without planting."""
        update: dict[str, Any] = {
            "ingest": sample.config(self.config.ingest),
            "plant": self._no_planting(),
        }
        # The recall of a cascade is measured on the corpus: a sample of it shows too little.
        score = self.config.score_toxicity.model_copy(update={"cascade": None})
        update["score_toxicity"] = score
        if self.config.score_toxicity.cascade:
            self.notes.append(
                "on the sample every document was scored: whether the cascade of score_toxicity is "
                "refused, and the time that it saves, only the corpus shows"
            )
        swaps = self.config.effects
        if needs_download(swaps.scorer):
            update["effects"] = swaps.model_copy(update={"scorer": ScorerConfig()})
        if needs_download(score.scorer):
            update["score_toxicity"] = score.model_copy(update={"scorer": ScorerConfig()})
            self.notes.append(
                "the weights of Detoxify are not on this machine: on the sample the embedded "
                "scorer stood in, so the documents that select_scored keeps and the time of "
                "score_toxicity are not those of Detoxify"
            )
        config = self.config.model_copy(update=update)
        few = sample.few(self.folder / "few").config(self.config.ingest)
        little = config.model_copy(update={"ingest": few})
        # Once with what is opened at first, once without.
        first, again = (self._tried(little, f"few-{turn}")[1] for turn in (1, 2))
        made, took, problem = self._tried(config, "sample")
        self.problems += [Concern(f"on the sample: {problem}")] if problem else []
        for label, seconds in took.items():
            self.fixed_seconds[label] = first.get(label, 0.0)
            self.tried_seconds[label] = max(0.0, seconds - again.get(label, 0.0))
        if {"ingest", "split", "plant", "pack"} <= made.keys():
            self.grown = Grown(sample, made)

    def _tried(
        self, config: Config, name: str
    ) -> tuple[dict[str, Artifact], dict[str, float], HallmarkError | None]:
        """What the stages before the training leave, in a store of their own, what each took, and
        why they came to no end."""
        made: dict[str, Artifact] = {}
        took: dict[str, float] = {}

        def listen(event: Event) -> None:
            if event.artifact and event.kind in ("done", "cached"):
                made[event.label] = event.artifact
                took[event.label] = event.seconds

        session = Session(Store(self.folder / name), listener=listen, until="pack")
        try:
            with open_session(session), suppress(Finished):
                train(config, curate(config, self.earlier), self.start)
        except HallmarkError as error:
            return made, took, error
        return made, took, None

    # Reporting -------------------------------------------------------------------------------

    def report(self) -> Report:
        known, sample = self.known, self.sample
        earlier = [addition["plant"] for addition in self.earlier]
        figures = corpus_figures(self.config, known, self.grown, earlier)
        vocabulary, filled = self._vocabulary()
        training = self._training(figures, vocabulary)
        self._check_audits()
        self._time()
        audited = any(row.label == "audit_capability" for row in self.plan.rows)
        found = [Concern(why, sure=True) for why in self.plan.failures] + self.problems
        kept = self.start is None
        found += concerns(self.config, figures, vocabulary if kept else UNKNOWN,
                          filled if kept else None, audited)  # fmt: skip
        return {
            "stages": [row.to_json() for row in self.plan.rows],
            "sample": sample and {
                "documents": sample.documents,
                "bytes": sample.text,
                "whole": sample.whole,
                "growth": sample.growth,
            },
            "sources": source_figures(known, self.grown, sample),
            "corpus": {name: figure.to_json() for name, figure in figures.items()},
            "vocabulary": vocabulary.to_json(),
            "training": training,
            "seconds": self._total(),
            "notes": self.notes,
            "warnings": [c.to_json() for c in found],
            "will_fail": any(c.sure for c in found),
        }  # fmt: skip

    def _check_audits(self) -> None:
        """See whether the files of audits are there and hold what they ask about."""
        names = up_to(self.until) if audited(self.until) else ()
        made = {**(self.grown.made if self.grown else {}), **self.known}
        try:
            check_files(self.config, names)
            if tokenizer := self.start or made.get("train_tokenizer"):
                check_items(self.config, tokenizer, names)
        except UsageError as error:
            if all(str(error) not in why for why in self.plan.failures):
                self.problems.append(Concern(str(error), sure=True))

    def _vocabulary(self) -> tuple[Figure, float | None]:
        """Tokens of the tokenizer, and those expected where it does not seem to be filled."""
        wanted = self.config.train_tokenizer.vocab_size
        made = self.start or self.known.get("train_tokenizer")
        if made is not None:
            return Figure(vocabulary_of(made), True), None
        if self.grown is None or "train_tokenizer" not in self.grown.made:
            return Figure(wanted), None
        filled = vocabulary_of(self.grown.made["train_tokenizer"])
        if filled >= wanted:
            return Figure(wanted, True), None  # more text fills no less of it
        # Words grow with about the square root of the text (Heaps' law).
        growth = self.grown.sample.growth
        return Figure(wanted), None if growth is None else min(wanted, filled * growth**0.5)

    def _training(self, figures: dict[str, Figure], vocabulary: Figure) -> Report | None:
        row = next((row for row in self.plan.rows if row.label == "pretrain"), None)
        if row is None:
            return None
        settings = self.config.pretrain.train
        assert vocabulary.value is not None
        context = self.config.pack.context
        model = costs.model_of(self.config.pretrain.model, int(vocabulary.value), context)
        if self.start is not None:
            model = costs.started_from(self.start.directory())
        counted = costs.parameters(model)
        seen = settings.steps * settings.batch_size * context
        rows = figures["train_rows"]
        epochs = settings.steps * settings.batch_size / rows.value if rows.value else None
        report: Report = {
            "parameters": {"value": counted["total"], "exact": vocabulary.exact},
            "steps": settings.steps,
            "tokens_seen": seen,
            "epochs": {"value": epochs, "exact": rows.exact},
            "memory": costs.memory(counted, settings),
            "step": None,
        }
        if row.state == "store":
            return report
        lacking = costs.lacks(settings)
        if lacking:
            self.problems.append(
                Concern(
                    f"pretrain.train.device is {lacking}, which this machine lacks: training would "
                    f"fail here, and its time and peak of memory are not estimated; set it to auto "
                    f"or cpu, or run where there is one"
                )
            )
            return report
        report["step"] = self._step(figures, report["memory"]["total"])
        if report["step"] and row.state != "waits":
            row.seconds = report["step"]["training_seconds"]
            row.rests_on = f"estimate: {report['step']['count']} real steps"
        return report

    def _step(self, figures: dict[str, Figure], least: int) -> Report | None:
        """A few real steps on what is packed, of the corpus or of the sample."""
        made = {**(self.grown.made if self.grown else {}), **self.known}
        tokenizer = self.start or made.get("train_tokenizer")
        if tokenizer is None or "pack" not in made or not made["pack"]["train"].rows:
            return None
        settings = self.config.pretrain.train
        model = costs.model_of(
            self.config.pretrain.model, vocabulary_of(tokenizer), self.config.pack.context
        )
        if self.start is not None:
            model = costs.started_from(self.start.directory())
        try:
            steps = costs.try_steps(made["pack"], tokenizer, model, settings, self.folder)
        except HallmarkError as error:
            self.problems.append(Concern(f"stage pretrain, tried for a few steps: {error}", True))
            return None
        if steps is None:
            self.notes.append(
                f"no two training steps were done within {costs.PATIENCE:.0f} s, so the time of "
                f"training is not estimated"
            )
            return None
        most, whole = max(steps.peak, least), costs.machine_memory(steps.device)
        if most > 0.9 * whole:
            self.problems.append(
                Concern(
                    f"training takes {most / 1e9:.1f} GB of the {whole / 1e9:.1f} GB of this "
                    f"machine's {steps.device}: raise pretrain.train.accumulation, set "
                    f"pretrain.train.recompute, or lower pretrain.train.batch_size"
                )
            )
        validated = int(figures["validation_rows"].value or 0)
        seconds = costs.training_seconds(steps, settings, validated)
        return {"seconds": steps.seconds, "peak": steps.peak, "count": steps.count,
                "device": steps.device, "training_seconds": seconds}  # fmt: skip

    def _time(self) -> None:
        """Seconds of the stages that would run, and what they rest on."""
        growth = self.sample.growth if self.sample else None
        for row in self.plan.rows:
            if row.seconds is not None or row.state in ("store", "waits"):
                continue
            if row.label in self.tried_seconds and growth is not None:
                # A card is written from figures, however long the text.
                factor = 1.0 if row.label == "datasheet" else growth
                read = self.sample.seconds if self.sample and row.label == "ingest" else 0.0
                row.seconds = (self.tried_seconds[row.label] + read) * factor
                row.seconds += self.fixed_seconds[row.label]
                row.rests_on = "estimate: the sample's seconds, scaled by bytes"
            elif row.label not in (*TRIED, "pretrain"):
                newest = newest_of(self.store, row.stage)
                if newest is not None:
                    row.seconds = _seconds(newest)
                    row.rests_on = f"estimate: as {newest.name} took"

    def _total(self) -> Report:
        """Seconds of all that would run, and the stages that are not among them."""
        todo = [row for row in self.plan.rows if row.state in ("run", "unknown")]
        return {
            "value": sum(row.seconds or 0 for row in todo),
            "without": [row.label for row in todo if row.seconds is None],
        }


def _seconds(artifact: Artifact) -> float | None:
    rows = artifact.telemetry().to_pylist()
    return next((row["value"] for row in rows if row["metric"] == "seconds"), None)
