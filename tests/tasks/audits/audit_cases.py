"""Give each audit small settings and inputs with which its stages can run in a test.

The cases come from the registry, so a new probe has one: its default settings with a small corpus.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hallmark.tasks.audits.probes.amplification import AmplificationConfig
from hallmark.tasks.audits.probes.associations import AssociationsConfig
from hallmark.tasks.audits.probes.bbq import BbqConfig
from hallmark.tasks.audits.probes.bias import BiasConfig
from hallmark.tasks.audits.probes.bold import BoldConfig
from hallmark.tasks.audits.probes.extraction import ExtractionConfig
from hallmark.tasks.audits.probes.honest import HonestConfig
from hallmark.tasks.audits.probes.membership import MembershipConfig
from hallmark.tasks.audits.probes.misuse import MisuseConfig
from hallmark.tasks.audits.probes.stereoset import StereosetConfig
from hallmark.tasks.audits.probes.winobias import WinobiasConfig
from hallmark.tasks.audits.probes.winogender import WinogenderConfig
from hallmark.tasks.audits.registry import PROBES
from hallmark.tasks.contract import StageConfig
from hallmark.tasks.corpus.plant_canaries import PlantCanariesConfig, plant_canaries
from hallmark.tasks.measures.occupations import list_occupations
from tests.tasks.audits.audit_runs import write_json_lines
from tests.tasks.corpora import given

#: As many as simulated controls need clusters, and one more.
TRADES = [
    *("baker", "smith", "weaver", "miller", "potter", "glazier"),
    *("cooper", "tanner", "brewer", "saddler", "cobbler", "fletcher"),
]
WOMEN = {trade: 20.0 if n % 2 else 80.0 for n, trade in enumerate(TRADES)}


class AuditInputs(NamedTuple):
    """Settings of an audit, and further arguments of ``run_audit_stages``."""

    config: StageConfig
    options: dict[str, Any]


def write_same_length_pairs(folder):
    """Write pairs that differ in bytes but not in tokens: "he" and "she" are one token each."""
    rows = [
        {
            "stereo": f"The word was {'she' if n % 3 else 'he'} {n}",
            "category": f"c{n % 3}",
            "anti": f"The word was {'he' if n % 3 else 'she'} {n}",
            "template": f"t{n}",
        }
        for n in range(60)
    ]
    config = BiasConfig(pairs=write_json_lines(folder / "pairs.jsonl", rows))
    return AuditInputs(config, {})


def write_stereoset_items(folder):
    rows = [
        {
            "type": kind,
            "target": f"term {t}",
            "bias_type": "trade" if t % 2 else "place",
            "context": f"Here {t} is {n}."
            if kind == "intersentence"
            else f"Term {t} is BLANK {n}.",
            "stereotype": f"Term {t} is late {n}.",
            "anti-stereotype": f"Term {t} is fairly early.",
            "unrelated": f"Term {t} is of the colour blue {n}.",
        }
        for t in range(12)
        for n in range(3)
        for kind in ("intrasentence", "intersentence")
    ]
    return AuditInputs(StereosetConfig(items=write_json_lines(folder / "s.jsonl", rows)), {})


def write_winobias_sentences(folder):
    """Write pairs in which most of the stereotypical sentences have the shorter pronoun."""
    lines = []
    for n in range(132):
        sender, recipient = TRADES[n % 12], TRADES[(n + 1 + n // 12) % 12]
        text = f"{n + 1} [The {sender}] wrote to the {recipient} because [%s] needed help {n}."
        sentences = (text % "he", text % "she")
        lines.append(sentences if n % 3 else sentences[::-1])
    for side, name in enumerate(("pro.txt", "anti.txt")):
        (folder / name).write_text("\n".join(line[side] for line in lines) + "\n")
    config = WinobiasConfig(
        pro_stereotypical=[folder / "pro.txt"], anti_stereotypical=[folder / "anti.txt"]
    )
    return AuditInputs(config, {})


def write_winogender_sentences(folder):
    lines = ["sentid\tsentence"]
    for trade in TRADES:
        for guest, answer in product(("guest", "pupil"), (0, 1)):
            for gender, pronoun in (("male", "he"), ("female", "she"), ("neutral", "they")):
                sentence = f"The {trade} told the {guest} that {pronoun} had won {answer}."
                lines.append(f"{trade}.{guest}.{answer}.{gender}.txt\t{sentence}")
    (folder / "sentences.tsv").write_text("\n".join(lines) + "\n")
    rows = "".join(f"{t}\t{w}\t{w}\t2015\n" for t, w in WOMEN.items())
    head = "occupation\tbergsma_pct_female\tbls_pct_female\tbls_year\n"
    (folder / "women.tsv").write_text(head + rows)
    sentences, women = folder / "sentences.tsv", folder / "women.tsv"
    return AuditInputs(WinogenderConfig(sentences=sentences, occupations=women), {})


def write_bbq_questions(folder):
    """Write questions whose three answers have equally many bytes."""
    rows = []
    for n in range(40):
        for polarity in ("neg", "nonneg"):
            for condition in ("ambig", "disambig"):
                right = 2 if condition == "ambig" else n % 2
                info = [["a", "old"], ["b", "nonOld"], ["c", "unknown"]]
                rows.append(
                    {
                        "question_index": str(n),
                        "question_polarity": polarity,
                        "context_condition": condition,
                        "category": "Age",
                        "label": right,
                        "answer_info": {f"ans{i}": pair for i, pair in enumerate(info)},
                        "additional_metadata": {"stereotyped_groups": ["old"]},
                        "context": f"Two met in house {n}.",
                        "question": f"Who was late {n}?",
                        "ans0": "0",
                        "ans1": "1",
                        "ans2": "2",
                    }
                )
    return AuditInputs(BbqConfig(items=[write_json_lines(folder / "q.jsonl", rows)]), {})


def write_honest_templates(folder):
    rows = ["template_masked\traw\tidentity\tnumber\tcategory\ttype"] + [
        f"{name} is {sentence} [M].\t{sentence}\t{name}\tsingular\t{group}\tkind"
        for sentence in ("very", "so", "always", "never")
        for name, group in (
            ("she", "female"),
            ("an aunt", "female"),
            ("a girl", "female"),
            ("he", "male"),
            ("an uncle", "male"),
            ("a boy", "male"),
        )
    ]
    (folder / "templates.tsv").write_text("\n".join(rows))
    (folder / "words.txt").write_text("grumpish\nblatherskite")
    config = HonestConfig(templates=[folder / "templates.tsv"], lexicon=folder / "words.txt")
    return AuditInputs(config, {})


def plant_canary_texts():
    config = PlantCanariesConfig(
        enabled=True,
        secrets_per_count=6,
        passages_per_count=0,
        records_per_count=2,
        sentences_per_group=40,
    )
    return plant_canaries(
        given([f"text {i} of the town" for i in range(50)], kind="split"), config
    )["canaries"]


def plant_associations(folder):
    return AuditInputs(AssociationsConfig(), {"corpus": (None, plant_canary_texts(), None)})


def plant_secrets(folder):
    config = ExtractionConfig(reference_secrets=200, prefix_tokens=(4, 8), suffix_tokens=8)
    return AuditInputs(config, {"corpus": (None, plant_canary_texts(), None)})


def build_membership_documents(folder):
    texts = [
        f"Document {n} speaks of the harbour, of lamps and of boat {n * 7}." for n in range(60)
    ]
    splits = ["train" if n % 2 else "holdout" for n in range(60)]
    documents = given(texts, splits=splits, kind="split")["documents"]
    config = MembershipConfig(documents_per_split=30, max_tokens=8)
    return AuditInputs(config, {"corpus": (None, None, documents)})


def write_bold_prompts(folder):
    groups = {
        group: {f"{group} {n}": [f"{group} {n} was {i}" for i in range(2)] for n in range(10)}
        for group in ("women", "men", "others")
    }
    (path := folder / "gender_prompt.json").write_text(json.dumps(groups))
    return AuditInputs(BoldConfig(prompts=[path], max_new_tokens=4, permutations=99), {})


def write_misuse_prompts(folder):
    rows = [
        {"prompt": f"He wrote {n}", "category": f"c{n % 2}", "continuation": "and went"}
        for n in range(6)
    ]
    config = MisuseConfig(
        prompts=[write_json_lines(folder / "prompts.jsonl", rows)],
        continuations_per_prompt=2,
        max_new_tokens=4,
    )
    return AuditInputs(config, {})


def write_texts_about_occupations(folder):
    """Build a corpus in which each occupation goes with one gender three times out of four."""
    texts = [
        f"The {occupation} said that {'she' if (i % 4 == 0) == bool(n % 2) else 'he'} met us {i}."
        for n, occupation in enumerate(list_occupations()[:12])
        for i in range(24)
    ]
    documents = given(texts, splits=["train"] * len(texts), kind="split")["documents"]
    config = AmplificationConfig(min_gendered_mentions=4, unprompted_texts=40)
    return AuditInputs(config, {"corpus": (None, None, documents)})


class AuditCase(NamedTuple):
    """An audit, and a function that writes its files to a folder and returns its inputs."""

    audit: str
    write_inputs: Callable[[Path], AuditInputs]


def make_default_case(probe):
    """Make a case of a probe with its default settings and a small corpus."""

    def write_inputs(folder):
        texts = [f"The nurse said that she met the engineer {i}. He was late." for i in range(40)]
        splits = ["train", "holdout", "validation", "train"] * 10
        documents = given(texts, splits=splits, kind="split")["documents"]
        return AuditInputs(probe.config_class(), {"corpus": (None, None, documents)})

    return AuditCase(probe.name, write_inputs)


#: Audits whose default settings give no items, or too few for controls, on a small corpus.
INPUT_WRITERS_BY_AUDIT = {
    "stereoset": write_stereoset_items,
    "winobias": write_winobias_sentences,
    "winogender": write_winogender_sentences,
    "bbq": write_bbq_questions,
    "amplification": write_texts_about_occupations,
    "honest": write_honest_templates,
    "associations": plant_associations,
    "extraction": plant_secrets,
    "membership": build_membership_documents,
    "bold": write_bold_prompts,
    "misuse": write_misuse_prompts,
}

#: Cases by name: one per audit, and further ones.
CASES = {
    probe.name: AuditCase(probe.name, INPUT_WRITERS_BY_AUDIT[probe.name])
    if probe.name in INPUT_WRITERS_BY_AUDIT
    else make_default_case(probe)
    for probe in PROBES
} | {"pairs of equal length": AuditCase("bias", write_same_length_pairs)}
