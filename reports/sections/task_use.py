"""Lines of Python that ask a fine-tuned model: ours, and its export to transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.contract import Artifact

Task = Mapping[str, Any]


def texts_of(task: Task) -> list[str]:
    """What a row of the task is asked with: one text, two sentences, or words."""
    if task["kind"] == "labelling":
        return ["Some", "words"]
    return ["A text.", *(["A second."] if task.get("second") else [])]


def ours(task: Task, checkpoint: str) -> str:
    """Lines that load the checkpoint of this name, with the reader that it was trained with."""
    texts = texts_of(task)
    ask = "predict_texts" if task["kind"] == "pairs" else "predict_labels"
    most = ", 40" if task["kind"] == "pairs" else ""
    kind = {"pairs": "Pairs", "classification": "Classification", "labelling": "Labelling"}
    said = "what it writes, 40 tokens at most" if most else "the likeliest labels"
    made = kind[task["kind"]]
    return f"""\
from flows import open_artifact
from model.interchange.checkpoint import load
from tasks.training.encoding import load_tokenizer
from tasks.training.task_predictions import {ask}
from tasks.training.task_rows import {made}, Row, encode

folder = open_artifact("{checkpoint}").directory()
model, tokenizer = load(folder), load_tokenizer(folder / "tokenizer.json")
rows = [Row("", 1, "", {json.dumps(texts)}, {json.dumps([""] * len(texts))})]
asked = encode(rows, {made}(), tokenizer, model.config, 0)
print({ask}(model, {"tokenizer, " if most else ""}asked{most}))  # {said}, with log-probabilities"""


def theirs(task: Task, tuned: Artifact) -> str:
    """Lines that load the export; empty where there is none."""
    if "transformers/config.json" not in tuned.manifest["files"]:
        return ""
    config = json.loads(tuned.path("transformers/config.json").read_text(encoding="utf-8"))
    model = config["architectures"][0]
    return f"""\
import torch
from flows import open_artifact
from transformers import AutoTokenizer, {model}

folder = open_artifact("{tuned.name}").directory() / "transformers"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {model}.from_pretrained(folder).eval()
{_asked(task, is_bert=model.startswith("Bert"))}"""


def _asked(task: Task, is_bert: bool) -> str:
    if task["kind"] == "pairs":
        return """\
ids = tokenizer.encode("A text.", add_special_tokens=False)
written = model.generate(torch.tensor([ids]), max_new_tokens=40)
print(tokenizer.decode(written[0], skip_special_tokens=True))"""
    if task["kind"] == "labelling":
        return f"""\
ids = [0, *tokenizer.encode(" Some words", add_special_tokens=False)]  # 0 begins a text
labels = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
# The label of a word is that of its {"first" if is_bert else "last"} token.
print([(tokenizer.decode(i), model.config.id2label[n]) for i, n in zip(ids, labels)])"""
    if task.get("second"):
        types = ", token_type_ids=torch.tensor([[0] * len(ids[0]) + [1] * len(ids[1])])"
        return f"""\
texts = ["A text.", "A second."]
ids = [[0, *tokenizer.encode(text, add_special_tokens=False)] for text in texts]
logits = model(torch.tensor([ids[0] + ids[1]]){types if is_bert else ""}).logits
print(model.config.id2label[logits.argmax().item()])"""
    return """\
ids = [0, *tokenizer.encode("A text.", add_special_tokens=False)]  # 0 begins a text
print(model.config.id2label[model(torch.tensor([ids])).logits.argmax().item()])"""
