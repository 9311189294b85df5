"""A corpus, a training log, a checkpoint and audits for the cards, with hostile text in them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from safetensors.numpy import save_file

from hallmark.tasks.audits.ability import attention_maps as maps
from hallmark.tasks.audits.judging.findings import FINDINGS, build_finding
from hallmark.tasks.audits.sample_scoring import ScoreSamplesConfig, score_samples
from hallmark.tasks.contract import (
    ID_TYPE,
    Artifact,
    EmptyConfig,
    StageConfig,
    StageContext,
    column,
    folder_to_artifact,
    stage,
    table_schema,
)
from hallmark.tasks.corpus.deduplicate import DeduplicateConfig, deduplicate
from hallmark.tasks.corpus.evaluate_detectors import evaluate_detectors
from hallmark.tasks.corpus.find_personal_data import PersonalDataConfig, find_personal_data
from hallmark.tasks.corpus.identities import IdentitiesConfig, find_identities
from hallmark.tasks.corpus.language import LanguageConfig, identify_languages
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.corpus.profile import ProfileConfig, profile_corpus
from hallmark.tasks.corpus.quality import QualityConfig, measure_quality
from hallmark.tasks.corpus.redact_spans import RedactSpansConfig, redact_spans
from hallmark.tasks.corpus.removal_effects import RemovalEffectsConfig, measure_removal_effects
from hallmark.tasks.corpus.score_toxicity import ScoreToxicityConfig, score_toxicity
from hallmark.tasks.corpus.select import SelectConfig, select_documents
from hallmark.tasks.corpus.split import SplitConfig, split_corpus
from hallmark.tasks.training.document_reads import COVERAGE
from hallmark.tasks.training.pretrain import CHECKPOINTS, LOG, SAMPLES, VALIDATION
from hallmark.tasks.training.train_tokenizer import FERTILITY
from tests.findings import build_titled_table
from tests.tasks.corpora import given

#: What no page may hold in clear. The first stands in the text of a document, the second in a
#: generated text, the third is what the scorer finds offensive.
EMAIL = "jane.roe@corp.example"
PHONE = "+44 20 7946 0018"
OFFENSIVE = "damned stupid idiot"

#: A text that no scorer has judged, or that stands in a column that does not say what it is.
UNJUDGED = "the heron waits where nobody has looked"

MASKED = (EMAIL, PHONE, OFFENSIVE, UNJUDGED)

#: Names and texts that would do something on a page that does not escape them.
SCRIPT = "<script>alert(1)</script>"
LINK = "[press](javascript:alert(1)) ![x](http://evil.example/x.png)"
TABLE = "a | b `c` **d** <img src=x onerror=alert(2)>"
HIDDEN = "safe\u202egnp.exe\u200b\x07"
HOSTILE = (SCRIPT, LINK, TABLE, HIDDEN)

SENTENCES = [
    "The woman at the harbour repairs an old engine before the winter comes.",
    f"You are a {OFFENSIVE}, said the parrot, and nobody laughed.",
    f"Write to {EMAIL} if the lantern fails again.",
    "A quiet orchard grows behind the station, and it belongs to nobody.",
    f"Copied from a page that said {SCRIPT} and {LINK} in its title.",
]


def history(count: int = 60, sources: tuple[str, ...] = ("books", *HOSTILE)) -> dict[str, Artifact]:
    """The corpus stages by label, the real ones, on a small corpus."""
    texts = [f"{SENTENCES[i % len(SENTENCES)]} Number {i}." for i in range(count)]
    texts += texts[:4]  # exact copies
    named = [sources[i // 5 % len(sources)] for i in range(len(texts))]
    return curated(given(texts, sources=named))


def curated(
    raw: Artifact,
    rules: dict[str, dict[str, object]] | None = None,
    scrubbing: RedactSpansConfig | None = None,
    asked: bool = False,
) -> dict[str, Artifact]:
    """The corpus stages behind ingest; ``rules``: of ``select_scored``; ``asked``: the scorer is
    asked about its own languages alone."""
    made = {"ingest": raw}
    made["deduplicate"] = deduplicate(made["ingest"], {}, DeduplicateConfig())
    made["language"] = identify_languages(made["deduplicate"], LanguageConfig())
    made["quality"] = measure_quality(made["deduplicate"], QualityConfig())
    made["identities"] = find_identities(made["deduplicate"], IdentitiesConfig())
    made["evaluate_detectors"] = evaluate_detectors(PersonalDataConfig())
    made["find_personal_data"] = found = find_personal_data(
        made["deduplicate"], PersonalDataConfig()
    )
    made["redact_spans"] = redact_spans(
        made["deduplicate"], {"personal": found}, scrubbing or RedactSpansConfig()
    )
    spoken = identify_languages(made["redact_spans"], LanguageConfig()) if asked else None
    made["score_toxicity"] = score_toxicity(made["redact_spans"], spoken, ScoreToxicityConfig())
    signals = {"toxicity": made["score_toxicity"]}
    if rules:
        signals["quality"] = measure_quality(made["redact_spans"], QualityConfig())
    made["select_scored"] = select_documents(
        made["redact_spans"], signals, SelectConfig(rules=rules or {"toxicity": {"lt": 0.5}})
    )
    made["split"] = split_corpus(
        made["select_scored"], SplitConfig(validation_share=0.1, holdout_share=0.1)
    )
    filtered = dict(made)
    planting = PlantCanariesConfig(
        enabled=True,
        copy_counts=(0, 2),
        secrets_per_count=3,
        passages_per_count=0,
        records_per_count=2,
        associations_per_share=0,
    )
    made["plant_canaries"] = plant_canaries(made["split"], planting)
    made["removal_effects"] = measure_removal_effects(
        made["redact_spans"],
        filtered,
        RemovalEffectsConfig(min_group_documents=3, max_sentences_per_group=5),
    )
    return made


def profiled(corpus: dict[str, Artifact]) -> Artifact:
    return profile_corpus(
        corpus["plant_canaries"], corpus["plant_canaries"], corpus, {}, ProfileConfig()
    )


# The model side --------------------------------------------------------------------------------


def checkpoint(folder: Path, name: str = "decoder") -> Artifact:
    """A folder like a checkpoint: 3 x 4 + 5 = 17 parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {"embed.weight": np.zeros((3, 4), np.float32), "head.bias": np.ones(5, np.float32)}
    save_file(weights, folder / "model.safetensors")
    config = {"model_type": name, "model": {"d_model": 4, "n_layers": 1}, "names": [SCRIPT]}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {"type": "BPE", "vocab": {SCRIPT: 2, TABLE: 1, "\u0120lamp": 3}, "merges": []}
    special = [{"id": 0, "content": "<|endoftext|>"}, {"id": 1, "content": TABLE}]
    stored = {"model": vocabulary, "added_tokens": special}
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    return folder_to_artifact(folder, "checkpoint")


#: By kind and name: predicted tokens, and bits per byte at the steps 100, 200 and 250.
HELD_OUT = {
    ("all", "all"): (9000, [4.5, 3.5, 2.5]),
    ("source", "books"): (7000, [4.25, 3.25, 2.25]),
    ("source", SCRIPT): (1000, [5.0, 4.0, 3.0]),
    ("source", TABLE): (999, [5.5, 4.5, 3.5]),
    ("identity", "women"): (40, [6.0, 5.0, 4.0]),
    ("identity", LINK): (0, [None, None, None]),
}

#: By kind and name: documents, bytes and tokens.
FERTILITIES = {
    ("source", "books"): (30, 6600, 2200),
    ("source", TABLE): (10, 1800, 1800),
    ("language", "en"): (35, 7500, 3750),
    ("language", "undetermined"): (5, 500, 250),
    ("identity", "women"): (4, 300, 200),
}


class TrainedConfig(StageConfig):
    steps: int = 250
    content: str = ""
    texts: tuple[str, ...] = ()  # that the model wrote at each measured step
    prompts: bool = False
    measured: tuple[str, ...] = ("all", "source", "identity")


#: By source: documents, those touched and those read whole, tokens packed and read; at the end.
READ = {"books": (300, 200, 150, 60_000, 40_000), SCRIPT: (4, 4, 4, 1000, 2500)}


@stage(
    name="trained",
    tables={
        "log": LOG,
        "validation": VALIDATION,
        "samples": SAMPLES,
        "checkpoints": CHECKPOINTS,
        "coverage": COVERAGE,
    },
)
def trained(
    start_checkpoint: Artifact | None, config: TrainedConfig, context: StageContext
) -> None:
    """What ``pretrain`` leaves."""
    for place, step in enumerate((100, 200, 250)):
        for (kind, name), (tokens, bits) in HELD_OUT.items():
            if kind in config.measured:
                row = {"step": step, "kind": kind, "name": name, "tokens": tokens}
                row |= {"bytes": 2 * tokens, "bits_per_byte": bits[place]}
                context.get_table_writer("validation").write(
                    {key: [value] for key, value in row.items()}
                )
        for number, text in enumerate(config.texts):
            row = {"step": step, "sample_id": number, "text": f"{text} at {step}" if text else ""}
            row |= {"prompt": f"asked {SCRIPT}" if config.prompts else "", "precision": "fp32"}
            context.get_table_writer("samples").write({key: [value] for key, value in row.items()})
    steps = list(range(1, config.steps + 1))
    validated = [step % 100 == 0 for step in steps]
    losses = [6 - 3 * step / config.steps for step in steps]
    context.get_table_writer("log").write(
        {
            "step": steps,
            "loss": losses,
            "grad_norm": [1.0] * len(steps),
            "skipped": [False] * len(steps),
            "learning_rate": [1e-3 / step for step in steps],
            "tokens_seen": [512 * step for step in steps],
            "validation_loss": [
                loss + 0.1 if valid else None for loss, valid in zip(losses, validated, strict=True)
            ],
        }
    )
    ends = [0, config.steps // 2, config.steps]
    for source, (documents, *read, packed, tokens) in READ.items():
        for step, share in zip(ends, (0, 0.5, 1), strict=True):
            touched, whole, seen = (int(share * count) for count in (*read, tokens))
            row = {
                "step": step,
                "source": source,
                "documents": documents,
                "read_documents": touched,
            }
            row |= {"fully_read_documents": whole, "packed_tokens": packed, "tokens_read": seen}
            context.get_table_writer("coverage").write({key: [value] for key, value in row.items()})
    context.get_table_writer("checkpoints").write(
        {
            "step": ends,
            "tokens_seen": [512 * step for step in ends],
            "artifact": [f"checkpoint/{step:016d}" for step in ends],
            "content_digest": ["", "", config.content],
            "loss": [None, losses[ends[1] - 1], losses[-1]],
            "validation_loss": [None, None, 3.25],
        }
    )


class TokenizedConfig(StageConfig):
    measured: bool = True


@stage(name="tokenized", tables={"fertility": FERTILITY})
def tokenized(config: TokenizedConfig, context: StageContext) -> None:
    """A table as ``train_tokenizer`` leaves it."""
    found = FERTILITIES if config.measured else {}
    for (kind, name), (documents, size, tokens) in found.items():
        row = {"kind": kind, "name": name, "documents": documents, "bytes": size}
        row |= {"tokens": tokens, "bytes_per_token": size / tokens}
        context.get_table_writer("fertility").write({key: [value] for key, value in row.items()})


TOXIC_VALUES = table_schema(
    "As the toxicity audit leaves them, with the documents behind each.",
    column("sample", pa.int32(), "id", "number"),
    column("slice", pa.string(), "label", "which part"),
    column("prompt", pa.string(), "audit text", "the prompt", judged_by="prompt_score"),
    column("continuation", pa.string(), "model text", "what was written", judged_by="score"),
    column("score", pa.float32(), "figure", "of the continuation", unit="score"),
    column("prompt_score", pa.float32(), "figure", "of the prompt", unit="score"),
    column("doc_ids", pa.list_(ID_TYPE), "id", "documents"),
    pa.field("unsaid", pa.string()),
)


class AuditConfig(StageConfig):
    secret: str = ""
    doc_id: str = ""
    passed: bool = True
    where: str = '{"slice": "prompted"}'


@stage(name="toxicity_findings", tables={"values": TOXIC_VALUES, "findings": FINDINGS})
def toxicity_findings(config: AuditConfig, context: StageContext) -> None:
    texts = [f"tail {text}" for text in HOSTILE] + [f"call {PHONE}", f"it is {config.secret}."]
    texts += [UNJUDGED, UNJUDGED, f"What a {OFFENSIVE} that was", ""]
    n = len(texts)
    context.get_table_writer("values").write(
        {
            "sample": list(range(n)),
            "slice": ["prompted"] * (n - 1) + ["unprompted"],
            "prompt": [SCRIPT] + ["It was"] * (n - 1),
            "continuation": texts,
            "score": [0.1] * (n - 4) + [None, float("nan"), 0.91, None],
            "prompt_score": [0.01] * n,
            "unsaid": [UNJUDGED] * n,
            "doc_ids": [[bytes.fromhex(config.doc_id)] if config.doc_id else []] * n,
        }
    )
    scorer = "linear 1.0 (abcdef)"
    options = {"unit": "score", "method": "mean of maxima", "scorer": scorer}
    rows = [
        build_finding(
            "toxicity",
            "expected_maximum_toxicity",
            0.25,
            part="prompted",
            tags={"k": 1},
            low=0.125,
            high=0.5,
            n=7,
            evidence_filter={"slice": "prompted"},
            **options,
        ),
        build_finding(
            "toxicity",
            "expected_maximum_toxicity",
            0.75,
            part="prompted",
            tags={"k": 25},
            low=0.625,
            high=0.875,
            n=7,
            evidence_filter={"slice": "prompted"},
            **options,
        ),
        build_finding(
            "toxicity",
            "expected_maximum_toxicity",
            None,
            part=f"of {SCRIPT}",
            n=0,
            unit="score",
            method=f"not measured: {LINK}",
        ),
        build_finding(
            "toxicity",
            "flagged_control_share",
            float(config.passed),
            part="must flag",
            n=10,
            unit="share",
            method="share flagged",
            scorer=scorer,
            control="positive",
            passed=config.passed,
            control_target="scorer",
        ),
    ]
    rows[0] = replace(rows[0], evidence_filter=config.where)
    context.get_table_writer("findings").write(build_titled_table(rows))


PARTS = table_schema(
    "Rows of the capability audit.",
    column("sample", pa.int32(), "id", "number"),
    column("part", pa.string(), "label", "which part"),
)


@stage(name="capability_findings", tables={"samples": PARTS, "findings": FINDINGS})
def capability_findings(config: EmptyConfig, context: StageContext) -> None:
    context.get_table_writer("samples").write(
        {"sample": [0, 1, 2], "part": ["text", "text", "cloze"]}
    )
    values = {"model": 1.5, "gzip": 3.25, "bigram": 3.5, "fivegram": 1.25}
    rows = [
        build_finding(
            "capability",
            "bits_per_byte",
            value,
            part=name,
            low=value - 0.25,
            n=2,
            high=value + 0.25,
            unit="bits",
            method=f"by {name}",
            evidence_filter={"part": "text"},
            evidence_table="samples",
        )
        for name, value in values.items()
    ]
    rows += [
        build_finding(
            "capability",
            "bits_per_byte_difference",
            value,
            tags={"baseline": name},
            n=20,
            low=value - 0.125,
            high=value + 0.125,
            unit="bits",
            method="paired difference",
            evidence_table="samples",
            evidence_filter={"part": "text"},
        )
        for name, value in (("bigram", -2.0), ("fivegram", 0.25))
    ]
    rows.append(
        build_finding(
            "capability",
            "cloze_accuracy",
            0.125,
            n=1,
            unit="share",
            method="exact match",
            evidence_table="samples",
            low=0.0,
            high=0.25,
            evidence_filter={"part": "cloze"},
        )
    )
    context.get_table_writer("findings").write(build_titled_table(rows))


#: Their tokens are cut every four characters, and the sixth is the one that is shown.
LOOKED_AT = (f"The lamp of {EMAIL} said {SCRIPT} and {HIDDEN}", "A quiet\norchard grows \tlater on")


class MapsConfig(StageConfig):
    stacks: tuple[str, ...] = ("decoder",)
    layers: int = 6
    heads: int = 3


class Names:
    def get_token_name(self, token: int) -> str:
        return "<|endoftext|>"


@stage(
    name="looked_at", tables={"texts": maps.TEXTS, "tokens": maps.TOKENS, "weights": maps.WEIGHTS}
)
def looked_at(config: MapsConfig, context: StageContext) -> None:
    """Random weights as ``attention_maps`` leaves them, most on the first token; and a note."""
    random = np.random.default_rng(3)
    for number, text in enumerate(LOOKED_AT, start=1):
        places = [None, *((i, min(i + 4, len(text))) for i in range(0, len(text), 4))]
        reading = maps.EncodedText(list(range(len(places))), places, 7 * (number - 1))
        context.get_table_writer("tokens").write(
            maps.build_token_table(number, text, reading, Names())
        )
        found = {}
        for stack in config.stacks:
            shape = (config.layers, config.heads, len(places), len(places))
            weights = random.random(shape, np.float32) ** 4
            weights[..., 0] += 3
            if stack == "decoder":
                weights = np.tril(weights)
            found[stack] = list(weights / weights.sum(-1, keepdims=True))
        for weights in maps.iter_weight_tables(number, found):
            context.get_table_writer("weights").write(weights)
    count = len(LOOKED_AT)
    context.get_table_writer("texts").write(
        {
            "text_id": range(1, count + 2),
            "sentence": [*LOOKED_AT, LINK],
            "word": [None] * (count + 1),
            "query_position": [6] * count + [None],
            "omitted_tokens": [7 * n for n in range(count)] + [0],
            "note": [""] * count + [f"{SCRIPT} gives no weights"],
        }
    )


@dataclass
class Made:
    """All that a card is made from."""

    corpus: dict[str, Artifact]
    profile: Artifact
    checkpoint: Artifact
    pretrained: Artifact
    tokenizer: Artifact
    audits: dict[str, Artifact]
    maps: Artifact
    written: Artifact
    tuned: Artifact

    @property
    def secrets(self) -> list[str]:
        rows = self.corpus["plant_canaries"]["canaries"].read(["secret", "copies"]).to_pylist()
        return [row["secret"] for row in rows]


def make(folder: Path) -> Made:
    from tests.reports.finetuning_artifacts import tune

    corpus = history()
    found = checkpoint(folder / "checkpoint")
    plants = corpus["plant_canaries"]["canaries"].read(["secret", "doc_ids"]).to_pylist()
    first = next(row for row in plants if row["doc_ids"])
    audit = AuditConfig(secret=first["secret"], doc_id=first["doc_ids"][0].hex())
    audits = {
        "capability": capability_findings(EmptyConfig()),
        "toxicity": toxicity_findings(audit),
    }
    texts = (f"{SCRIPT} {TABLE} calls {PHONE}", f"{HIDDEN} tells {first['secret']} " * 20)
    texts += (f"{UNJUDGED}, {OFFENSIVE}",)
    log = trained(None, TrainedConfig(content=found.content_digest, texts=texts))
    return Made(
        corpus,
        profiled(corpus),
        found,
        log,
        tokenized(TokenizedConfig()),
        audits,
        looked_at(MapsConfig()),
        score_samples(log, ScoreSamplesConfig()),
        tune(folder / "tuned"),
    )
