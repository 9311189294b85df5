"""The model card of a checkpoint, after Mitchell et al., "Model Cards for Model Reporting" (2019).

It serves a checkpoint of ours with its training and its corpus, and a foreign one that came
with neither: what could not be traced is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from reports.page.document import (
    Block,
    Bullets,
    Callout,
    Code,
    Document,
    Facts,
    Grid,
    Inline,
    Paragraph,
    Parts,
    Section,
    stated,
)
from reports.page.evidence import publish
from reports.page.figures import FIGURES, Book
from reports.page.masking import OFFENSIVE, Masker
from reports.page.rendering import LIBRARIES, TEMPLATES
from reports.sections.analyses import analyses, unscored
from reports.sections.checkpoint import parameters, settings
from reports.sections.composition import plants, plants_callout, sources
from reports.sections.corpus_figures import PROFILE, READ, CorpusFigures, masker_of
from reports.sections.coverage import coverage, left_out, read_until, step_of
from reports.sections.findings import Findings, natural, select_findings, title, words
from reports.sections.inside import inside
from reports.sections.personal import in_use
from reports.sections.rates import RATES, Rates, unmeasured
from reports.sections.standing import standing
from reports.sections.tokenizer import tokenization
from reports.sections.training import EARLIER, continued_from, samples, training
from tasks.contract import Artifact, StageConfig, Work, stage


class ModelCardConfig(StageConfig):
    """What only a person knows about the model. Left out, the card says "not stated"."""

    title: str = Field("Untitled model", description="the name of the model")
    developers: str | None = Field(None, description="who made it")
    version: str | None = Field(None, description="its version and date")
    licence: str | None = Field(None, description="the licence of the weights")
    citation: str | None = Field(None, description="how to cite it")
    contact: str | None = Field(None, description="where questions and complaints go")
    intended_use: str | None = Field(None, description="what it is for")
    intended_users: str | None = Field(None, description="for whom it is")
    out_of_scope: str | None = Field(None, description="what it must not be used for")
    ethics: str | None = Field(None, description="considerations beyond what was measured")
    caveats: str | None = Field(None, description="recommendations beyond what was measured")
    rows_shown: int = Field(200, ge=1, le=5000, description="rows on a page of evidence")
    lines_shown: int = Field(
        40,
        ge=1,
        le=1000,
        description="lines of a table on the card; groups of people always have theirs",
    )
    mask_from: float = Field(
        OFFENSIVE, ge=0, le=1, description="texts with this toxicity or more are not shown"
    )


@dataclass
class Card:
    """Makes the figures of a model card, section by section."""

    book: Book
    checkpoint: Artifact
    pretrained: Artifact | None
    tokenizer: Artifact | None
    findings: Findings
    corpus: dict[str, Artifact]
    maps: Artifact | None
    written: Artifact | None
    policy: Artifact | None
    failures: Artifact | None
    rates: dict[str, Artifact]
    masker: Masker
    config: ModelCardConfig

    def head(self) -> list[Block]:
        blocks = standing(self.findings, self.policy, self._failed(), self.findings.outdone(),
                          self.read(), self.masker.whole)  # fmt: skip
        if self.corpus_figures:
            blocks.append(plants_callout(self.corpus_figures))
        elif not self.corpus:
            blocks.append(
                Callout(
                    "note",
                    [
                        "The checkpoint came without its training corpus: the documents that the "
                        "model was trained on are not known here."
                    ],
                )
            )
        blocks += [self.findings.summary(), *unscored(self.findings)]
        if any(row["control"] for rows in self.findings.by_audit.values() for row, _ in rows):
            blocks.append(self.findings.controls())
        return blocks

    def read(self) -> Parts:
        """How much of which text the model has read."""
        step = step_of(self.pretrained, self.checkpoint.content)
        if step is not None:
            return read_until(self.book, step, continued_from(self.pretrained))
        if known := self.corpus_figures:
            documents = known.sum("sources", "documents", "documents", "documents for training",
                                  split="train")  # fmt: skip
            return ["A corpus of ", documents, "; how much of each was not kept."]
        if self.corpus:
            return ["Not known: the corpus has no profile in this store."]
        return ["Not known: it came without its corpus."]

    def _failed(self) -> dict[str, str]:
        """Why, by audit, masked."""
        rows = self.failures["failures"].read().to_pylist() if self.failures else []
        return {row["audit"]: self.masker.whole(row["why"]) for row in rows}

    def details(self) -> Section:
        config = self.config
        section = Section("Model details")
        pairs: list[tuple[str, Parts]] = [
            ("Developed by", stated(config.developers)),
            ("Version and date", stated(config.version)),
            ("Licence", stated(config.licence)),
            ("Citation", stated(config.citation)),
            ("Contact", stated(config.contact)),
            ("Checkpoint, content digest", [Code(self.checkpoint.content)]),
            ("Parameters", parameters(self.book, self.checkpoint)),
        ]
        section.add(Facts(pairs))
        known = settings(self.checkpoint)
        if known:
            # Cut only after masking: of a secret that a cut divides the rest would be shown.
            shown: list[list[Inline]] = [[k, Code(self.masker.whole(v)[:120])] for k, v in known]
            rows = shown[: config.lines_shown]
            sha256 = self.checkpoint.manifest["files"]["config.json"]["sha256"]
            note = f"From config.json of the checkpoint, SHA-256 {sha256}."
            if len(known) > len(rows):
                note = f"The first {len(rows)} of {len(known)} settings. {note}"
            section.add(Grid("Architecture", ["setting", "value"], rows, note=note))
        else:
            section.add(Paragraph(["The checkpoint has no config.json."]))
        kept = continued_from(self.pretrained) is not None
        section.sections = [
            tokenization(self.book, self.checkpoint, self.tokenizer, kept, config.lines_shown),
            training(self.book, self.pretrained, self.checkpoint.content, config.lines_shown),
            samples(self.book, self.written, self.masker),
        ]
        return section

    def use(self) -> Section:
        config = self.config
        pairs = [
            ("Intended use", stated(config.intended_use)),
            ("Intended users", stated(config.intended_users)),
            ("Out of scope", stated(config.out_of_scope)),
        ]
        return Section("Intended use", [Facts(pairs)])

    def factors(self) -> Section:
        """The groups and conditions for which figures are given apart."""
        section = Section("Factors")
        rows: list[list[Inline]] = []
        for name, found in self.findings.by_audit.items():
            parts = {
                row["slice"]: (row, figure)
                for row, figure in found
                if row["slice"] and not row["control"] and figure.value is not None
            }
            if parts:
                shown = [row["slice"] for row, _ in select_findings([*parts.values()], 12)]
                rest = f" and {len(parts) - len(shown)} more" * (len(shown) < len(parts))
                named = ", ".join(sorted(shown, key=natural)) + rest
                rows.append([title(name), f"{len(parts):,}", named])
        if rows:
            columns = ["audit", "parts", "which"]
            section.add(Grid("Parts measured apart", columns, rows, frozenset({1})))
        section.add(
            Paragraph(
                [
                    "The audits measured no other group, language, dialect or setting. That a "
                    "group is missing here says nothing about how the model treats it."
                ]
            )
        )
        return section

    def metrics(self) -> Section:
        section = Section("Metrics")
        rows: list[list[Inline]] = []
        for name, found in self.findings.by_audit.items():
            seen: dict[str, str] = {}
            # Of a metric that has a figure, not why another part of it has none.
            for row, _ in sorted(found, key=lambda each: each[1].value is None):
                if not row["control"]:
                    seen.setdefault(row["metric"], row["method"])
            rows += [[words(m), title(name), how] for m, how in seen.items()]
        if rows:
            columns = ["metric", "audit", "method, of the first"]
            section.add(Grid("How each was measured", columns, rows))
        else:
            section.add(Paragraph(["No audit measured the model."]))
        return section

    def evaluation_data(self) -> Section:
        section = Section("Evaluation data")
        rows: list[list[Inline]] = []
        for name, artifact in self.findings.audits.items():
            for table in sorted(artifact.tables):
                if table not in ("findings", "accounts"):
                    figure = self.book.figure(
                        f"{name}-{table}-rows", f"rows of {table}, {name}", "rows",
                        (f"audit_{name}", table), aggregate="count",
                    )  # fmt: skip
                    rows.append([title(name), Code(table), figure])
        if rows:
            columns = ["audit", "table", "rows"]
            note = "One row a prompt and continuation, a pair, or a sequence."
            section.add(Grid("What was scored", columns, rows, frozenset({2}), note))
        elif self.findings.audits:
            said = "The audits that ran left no table of what was scored."
            section.add(Paragraph([said]))
        else:
            section.add(Paragraph(["No audit ran."]))
        return section

    @property
    def corpus_figures(self) -> CorpusFigures | None:
        """Makes figures of the training corpus, where its profile is known."""
        if PROFILE not in self.corpus:
            return None
        return CorpusFigures(self.book, self.corpus, self.config.lines_shown)

    def training_data(self) -> Section:
        section = Section("Training data")
        known = self.corpus_figures
        if known is None:
            text = "The corpus is not known." if not self.corpus else (
                "The corpus has no profile in this store; its documents are known to the audits."
            )  # fmt: skip
            section.add(Paragraph([text]))
            return section
        split = {"split": "train"}
        documents, size = (
            known.sum("sources", column, unit, f"{unit} for training", **split)
            for column, unit in (("documents", "documents"), ("bytes", "bytes of text"))
        )
        section.add(
            Paragraph(["Made for training: ", documents, " with ", size, ". Their datasheet says "
                       "the rest."])
        )  # fmt: skip
        step = step_of(self.pretrained, self.checkpoint.content)
        if self.pretrained is not None and step is not None:
            section.add(coverage(self.book, self.pretrained, step, self.config.lines_shown))
        if "leave_out" in self.corpus:
            section.add(left_out(self.book, self.corpus["leave_out"]))
        start = continued_from(self.pretrained)
        if start is not None:
            section.add(Paragraph(["Training continued from ", Code(start), f". {EARLIER}"]))
        section.sections = [sources(known, **split), plants(known)]
        return section

    def ethics(self) -> Section:
        items: list[Parts] = [["The texts behind toxicity and bias figures are offensive."]]
        if self.masker.notice:
            items.append(["Nothing is masked on these pages."])
        else:
            items += [
                [
                    "What a model wrote, and text of the corpus, is shown where a scorer found it "
                    "harmless, and nowhere else; sentences of the bias probe are shown as written."
                ],
                ["Personal data and planted secrets are masked on every page."],
            ]
        if self.corpus:
            known = CorpusFigures(self.book, self.corpus, self.config.lines_shown)
            items.append([f"The training text: {in_use(known)}"])
        facts = Facts([("Stated by the developers", stated(self.config.ethics))])
        return Section("Ethical considerations", [facts, Bullets(items)])

    def caveats(self) -> Section:
        unknown = sum(f.value is None for rows in self.findings.by_audit.values() for _, f in rows)
        scorers = sorted(
            {r["scorer"] for rows in self.findings.by_audit.values() for r, _ in rows} - {""}
        )
        items: list[Parts] = []
        if unknown:
            items.append([f"Figures that could not be measured: {unknown}; each says why."])
        if scorers:
            items.append(
                [
                    f"Texts were scored by {', '.join(scorers)}: their figures have the errors of "
                    "these scorers, and must not be compared with figures by other scorers."
                ]
            )
        items.append(
            ["Intervals tell what chance would do to these prompts, pairs and plants. They do "
             "not cover that other prompts might have been written."]
        )  # fmt: skip
        items += unmeasured(self.rates)
        facts = Facts([("Stated by the developers", stated(self.config.caveats))])
        return Section("Caveats and recommendations", [facts, Bullets(items)])

    def known_rates(self) -> dict[str, Rates]:
        """How often audits are wrong, by the audits that a study measured in this version."""
        if not self.rates:
            return {}
        return dict.fromkeys(self.rates, Rates(self.book, self.book.artifacts[RATES]))

    def document(self) -> Document:
        return Document(
            self.config.title,
            "Model card",
            self.head(),
            [
                self.details(), self.use(), self.factors(), self.metrics(),
                self.evaluation_data(), self.training_data(),
                analyses(self.findings, self.config.lines_shown, self.known_rates()),
                inside(self.book, self.maps, self.masker), self.ethics(), self.caveats(),
            ],
        )  # fmt: skip


@stage(
    tables={"figures": FIGURES},
    code=TEMPLATES,
    libraries=LIBRARIES,
    reads={"corpus": READ},
)
def model_card(
    checkpoint: Artifact,
    pretrained: Artifact | None,
    tokenizer: Artifact | None,
    audits: dict[str, Artifact],
    corpus: dict[str, Artifact],
    maps: Artifact | None,
    written: Artifact | None,
    policy: Artifact | None,
    failures: Artifact | None,
    rates: dict[str, Artifact],
    config: ModelCardConfig,
    work: Work,
) -> None:
    """``audits`` by name ("bias"); ``corpus`` the corpus stages by label, empty if unknown.

    ``pretrained`` is None for a checkpoint that came without its log, ``tokenizer`` what
    train_tokenizer left for it, ``maps`` what attention_maps left, ``written`` what score_samples
    left of the texts written during training, ``policy`` what its rules say of the findings,
    ``failures`` what of the examination could not be made, ``rates`` what a study
    left, by the audits that it measured in this version.
    """
    write(
        checkpoint, pretrained, tokenizer, audits, corpus, maps, written, policy, failures, rates,
        config, work, masker_of(corpus, config.mask_from),
    )  # fmt: skip


def write(
    checkpoint: Artifact,
    pretrained: Artifact | None,
    tokenizer: Artifact | None,
    audits: dict[str, Artifact],
    corpus: dict[str, Artifact],
    maps: Artifact | None,
    written: Artifact | None,
    policy: Artifact | None,
    failures: Artifact | None,
    rates: dict[str, Artifact],
    config: ModelCardConfig,
    work: Work,
    masker: Masker,
) -> None:
    """The stage's work, with any masker."""
    artifacts = {"checkpoint": checkpoint, **corpus}
    artifacts |= {f"audit_{name}": artifact for name, artifact in audits.items()}
    if pretrained is not None:
        artifacts["pretrain"] = pretrained
    if tokenizer is not None:
        artifacts["train_tokenizer"] = tokenizer
    if maps is not None:
        artifacts["attention_maps"] = maps
    if written is not None:
        artifacts["score_samples"] = written
    if rates:
        artifacts[RATES] = next(iter(rates.values()))
    book = Book(artifacts)
    findings = Findings(book, audits)
    card = Card(
        book, checkpoint, pretrained, tokenizer, findings, corpus, maps, written, policy, failures,
        rates, masker, config,
    )  # fmt: skip
    document = card.document()
    publish(document, book, work, "model_card", corpus, masker, config.rows_shown)
