"""Write Python code that uses a fine-tuned model: its checkpoint and its transformers export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hallmark.tasks.contract import Artifact

Task = Mapping[str, Any]


def build_example_texts(task: Task) -> list[str]:
    """Return the input of one example row of the task: one text, two texts, or words."""
    if task["kind"] == "labelling":
        return ["Some", "words"]
    return ["A text.", *(["A second."] if task.get("second_text_column") else [])]


def build_checkpoint_usage_code(task: Task, checkpoint_name: str) -> str:
    """Return code that loads the checkpoint of this name and predicts for one row."""
    texts = build_example_texts(task)
    predict_function = "predict_texts" if task["kind"] == "pairs" else "predict_labels"
    limit_argument = ", 40" if task["kind"] == "pairs" else ""
    class_by_kind = {
        "pairs": "PairsTask",
        "classification": "ClassificationTask",
        "labelling": "WordLabellingTask",
    }
    output_description = (
        "the generated text, at most 40 tokens" if limit_argument else "the most likely labels"
    )
    tokenizer_argument = "tokenizer, " if limit_argument else ""
    task_class = class_by_kind[task["kind"]]
    return f"""\
from hallmark import open_artifact
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.tasks.training.encoding import load_tokenizer
from hallmark.tasks.training.task_predictions import {predict_function}
from hallmark.tasks.training.task_rows import {task_class}, TaskRow, encode_rows

folder = open_artifact("{checkpoint_name}").fetch_directory()
model, tokenizer = load_checkpoint(folder), load_tokenizer(folder / "tokenizer.json")
rows = [TaskRow("", 1, "", {json.dumps(texts)}, {json.dumps([""] * len(texts))})]
encoded_rows = encode_rows(rows, {task_class}(), tokenizer, model.config, 0)
# {output_description}, with log-probabilities
print({predict_function}(model, {tokenizer_argument}encoded_rows{limit_argument}))"""


def build_transformers_usage_code(task: Task, finetuned: Artifact) -> str:
    """Return code that loads the export to transformers; empty where there is no export."""
    if "transformers/config.json" not in finetuned.manifest["files"]:
        return ""
    config = json.loads(
        finetuned.fetch_file("transformers/config.json").read_text(encoding="utf-8")
    )
    model_class = config["architectures"][0]
    return f"""\
import torch
from hallmark import open_artifact
from transformers import AutoTokenizer, {model_class}

folder = open_artifact("{finetuned.name}").fetch_directory() / "transformers"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {model_class}.from_pretrained(folder).eval()
{_build_transformers_inference_code(task, is_bert=model_class.startswith("Bert"))}"""


def _build_transformers_inference_code(task: Task, is_bert: bool) -> str:
    if task["kind"] == "pairs":
        return """\
ids = tokenizer.encode("A text.", add_special_tokens=False)
written = model.generate(torch.tensor([ids]), max_new_tokens=40)
print(tokenizer.decode(written[0], skip_special_tokens=True))"""
    if task["kind"] == "labelling":
        return f"""\
ids = [0, *tokenizer.encode(" Some words", add_special_tokens=False)]  # 0 marks the start of a text
labels = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
# A word's label is the label of its {"first" if is_bert else "last"} token.
print([(tokenizer.decode(i), model.config.id2label[n]) for i, n in zip(ids, labels)])"""
    if task.get("second_text_column"):
        segment_argument = ", token_type_ids=torch.tensor([[0] * len(ids[0]) + [1] * len(ids[1])])"
        return f"""\
texts = ["A text.", "A second."]
ids = [[0, *tokenizer.encode(text, add_special_tokens=False)] for text in texts]
logits = model(torch.tensor([ids[0] + ids[1]]){segment_argument if is_bert else ""}).logits
print(model.config.id2label[logits.argmax().item()])"""
    return """\
ids = [0, *tokenizer.encode("A text.", add_special_tokens=False)]  # 0 marks the start of a text
print(model.config.id2label[model(torch.tensor([ids])).logits.argmax().item()])"""
