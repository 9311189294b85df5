"""Fuzz the parsers of all inputs that somebody else may have written.

Valid examples from a finished run are mutated: keys are removed, repeated and renamed; values get
other types, huge numbers, NaN, control characters, deep nesting and names that lead outside or back
to themselves; files are truncated and their bytes changed. Whatever comes of it, each reader must
end within a time limit, with a result or with one sentence:

    python -m benchmarks.fuzz_inputs --store runs --inputs 2000

The table counts for each kind of input how many were refused with a sentence, were still valid,
ended in another error, or did not end in time. ``--kind`` and ``--seed`` repeat one input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import string
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

from hallmark.tasks.contract import HallmarkError, Store, compute_content_digest
from hallmark.tasks.contract.manifests import compute_table_digest

#: Seconds of processor time, and of time, after which a reader of one input counts as hanging.
CPU_LIMIT_SECONDS, TIME_LIMIT_SECONDS = 10.0, 60.0

#: Memory that a reader may map, so that a hostile size ends in an error and not in a full machine.
MEMORY_LIMIT_BYTES = 24 << 30

#: Values of all types, and extreme ones.
HOSTILE_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    7,
    1 << 31,
    1 << 63,
    10**400,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "x",
    "0",
    "\x00",
    "\x1b[2J\n\r\t",
    "\u202e\u200b\ufeff\u2028",
    "../../../../etc/passwd",
    "/etc/passwd",
    "checkpoint/../../x",
    "a" * 100_000,
    "🙂" * 1000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": []}},
    ["x"] * 10_000,
]

#: Words and signs that have a meaning in TOML, JSON or paths.
HOSTILE_SNIPPETS = [
    b"\x00",
    b"\xff\xfe",
    b"[[",
    b"{",
    b'"',
    b"'''",
    b"\n[a]\n",
    b"=",
    b"1e999",
    b"#",
]

#: The largest depth of nested lists.
MAX_DEPTH = 2000

#: Readers of a whole run or card, and the share of the manifests that they read.
SLOW_READERS, SLOW_READER_SHARE = {"status", "page", "card page", "comparison"}, 0.25


class TimeLimitError(BaseException):
    """A reader did not end in time; no reader catches this."""


@contextlib.contextmanager
def limit_time() -> Iterator[None]:
    """Raise TimeLimitError in the main thread after a limit of time or of processor time."""

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise TimeLimitError

    timers = {
        signal.SIGALRM: (signal.ITIMER_REAL, TIME_LIMIT_SECONDS),
        signal.SIGPROF: (signal.ITIMER_PROF, CPU_LIMIT_SECONDS),
    }
    previous_handlers = {number: signal.signal(number, stop) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


# Mutations ------------------------------------------------------------------------------------


class Mutator:
    """Mutate values, JSON texts and files, as a seed decides."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(seed)

    def mutate_tree(self, tree: Any, own_names: Sequence[str] = ()) -> Any:
        """Return a copy of a JSON value with one to three mutations.

        Args:
            tree: The value, which is not changed.
            own_names: Names with which the value could refer to itself.
        """
        tree = json.loads(json.dumps(tree))
        for _ in range(self.rng.randint(1, 3)):
            parents = [*_iter_containers(tree)]
            if not parents:
                return self._choose_value(own_names)
            parent = self.rng.choice(parents)
            self._mutate_container(parent, own_names)
        return tree

    def _mutate_container(self, parent: Any, own_names: Sequence[str]) -> None:
        keys = [*parent] if isinstance(parent, dict) else [*range(len(parent))]
        if not keys:
            if isinstance(parent, dict):
                parent["x"] = self._choose_value(own_names)
            else:
                parent.append(self._choose_value(own_names))
            return
        key = self.rng.choice(keys)
        match self.rng.randrange(8):
            case 0:
                del parent[key]
            case 1 | 2 | 3:
                parent[key] = self._choose_value(own_names)
            case 4:
                parent[key] = self._mutate_value(parent[key])
            case 5:
                other_key = self.rng.choice(keys)
                parent[key], parent[other_key] = parent[other_key], parent[key]
            case 6 if isinstance(parent, dict):
                parent[self._mutate_text(str(key))] = parent.pop(key)
            case _:
                parent[key] = [parent[key]] if self.rng.random() < 0.5 else {"x": parent[key]}

    def _choose_value(self, own_names: Sequence[str]) -> Any:
        if own_names and self.rng.random() < 0.2:
            return self.rng.choice([*own_names])
        if self.rng.random() < 0.03:
            return _nest(self.rng.choice([5, 100, MAX_DEPTH]))
        return deepcopy(self.rng.choice(HOSTILE_VALUES))  # later mutations change it

    def _mutate_value(self, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return not value
        if isinstance(value, int):
            number = float(max(-(10**300), min(value, 10**300)))  # a larger one is no float
            return self.rng.choice([-value, value + 1, value * 1000, number, str(value)])
        if isinstance(value, float):
            return self.rng.choice([-value, value * 1e300, str(value)])
        if isinstance(value, str):
            return self._mutate_text(value)
        return json.dumps(value)[:1000]

    def _mutate_text(self, text: str) -> str:
        position = self.rng.randrange(len(text) + 1)
        inserted = self.rng.choice([*string.printable, "\x00", "\u202e", "é", "/", "..", "#", "@"])
        match self.rng.randrange(4):
            case 0:
                return text[:position] + inserted + text[position:]
            case 1:
                return text[:position]
            case 2:
                return text[:position] + text[position + 1 :]
            case _:
                return text[:position] + inserted + text[position + 1 :]

    def mutate_bytes(self, data: bytes) -> bytes:
        """Truncate a file, change bytes of it, or insert and repeat some."""
        changed = bytearray(data)
        for _ in range(self.rng.randint(1, 4)):
            # Most files begin with what describes the rest.
            end = len(changed) if self.rng.random() < 0.3 else min(len(changed), 2000)
            position = self.rng.randrange(end + 1)
            match self.rng.randrange(6):
                case 0:
                    del changed[position:]
                case 1 | 2:
                    if position < len(changed):
                        changed[position] ^= 1 << self.rng.randrange(8)
                case 3:
                    changed[position:position] = self.rng.choice(HOSTILE_SNIPPETS)
                case 4:
                    changed[position : position + 8] = self.rng.randbytes(8)
                case _:
                    length = self.rng.randrange(1, 200)
                    changed[position:position] = changed[position : position + length]
        return bytes(changed)

    def mutate_json(self, tree: Any, own_names: Sequence[str] = ()) -> bytes:
        """Return the text of a mutated JSON value, or a mutated text."""
        if self.rng.random() < 0.2:
            return self.mutate_bytes(json.dumps(tree).encode())
        return _dump_json(self.mutate_tree(tree, own_names))

    def mutate_toml(self, text: str) -> bytes:
        """Return a TOML text with changed lines, or with changed bytes."""
        if self.rng.random() < 0.2:
            return self.mutate_bytes(text.encode())
        lines = text.splitlines()
        for _ in range(self.rng.randint(1, 3)):
            index = self.rng.randrange(len(lines))
            key, separator, _ = lines[index].partition("=")
            match self.rng.randrange(6):
                case 0:
                    del lines[index]
                case 1:
                    lines.insert(index, lines[self.rng.randrange(len(lines))])
                case 2:
                    lines[index] = self._mutate_text(lines[index])
                case _ if separator:
                    lines[index] = f"{key}= {self._format_toml_value()}"
                case _:
                    lines.insert(index + 1, f"x{index} = {self._format_toml_value()}")
            lines = lines or [""]
        return "\n".join(lines).encode("utf-8", "replace")

    def _format_toml_value(self) -> str:
        value = self._choose_value(())
        if isinstance(value, float):
            return str(value)
        if isinstance(value, dict):
            return "{ " + ", ".join(f'"{key}" = 1' for key in value) + " }"
        return (
            self.rng.choice(["2026-11-29", "[1, {}]", '["a"]'])
            if value is None
            else (json.dumps(value).replace("null", "0").replace("NaN", "nan"))
        )


def _iter_containers(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list):
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _iter_containers(value)


def _nest(depth: int) -> str:
    """Return a text that ``_dump_json`` replaces by nested lists."""
    return f"__nested_{depth}__"


def _dump_json(tree: Any) -> bytes:
    """Encode a value as JSON; ``json`` itself cannot write lists that are nested this deeply."""
    text = json.dumps(tree)
    return re.sub(
        r'"__nested_(\d+)__"', lambda match: "[" * int(match[1]) + "]" * int(match[1]), text
    ).encode()


# Inputs ---------------------------------------------------------------------------------------


@dataclass
class Outcomes:
    """What happened to the inputs of one kind.

    Attributes:
        kind: The kind of input.
        counts: Number of inputs by outcome: sentence, valid, raw error or hang.
        failures: Seed, reader and error of each raw error and hang.
        slowest_seconds: The longest processor time for one input.
    """

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0


#: A reader, which ends with a result or a sentence, by its name.
Readers = dict[str, Callable[[], object]]


class FuzzedStore:
    """A copy of a store with one finished run, in which one file at a time is replaced.

    Args:
        source_folder: The store that is copied, with links to its files.
        folder: The folder of the copy and of other inputs.
    """

    def __init__(self, source_folder: Path, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "store"
        shutil.copytree(
            source_folder,
            self.root,
            copy_function=os.link,
            ignore=shutil.ignore_patterns("work", "site"),
        )
        self.store = Store(self.root)

    @contextlib.contextmanager
    def replace_file(self, path: Path, content: bytes) -> Iterator[None]:
        """Replace a file, or create it, while readers read it."""
        original = path.with_name(f"{path.name}.original")
        existed = path.exists()
        if existed:
            path.rename(original)
        path.write_bytes(content)
        try:
            yield
        finally:
            path.unlink()
            if existed:
                original.rename(path)


class Fuzzer:
    """Make inputs of all kinds from a store with a finished run, and read them."""

    def __init__(self, source_folder: Path, folder: Path) -> None:
        from starlette.testclient import TestClient

        from hallmark.flows.application.application import create_application
        from hallmark.flows.commands.status import build_status_report
        from hallmark.flows.config_files import CONFIG_FOLDER, POLICY_FOLDER
        from hallmark.flows.flow_registry import register_all_stages
        from hallmark.flows.runs import read_all_runs
        from hallmark.reports.review.signatures import SignerFiles

        register_all_stages()
        self.folder = folder
        self.copy = FuzzedStore(source_folder, folder)
        self.store = self.copy.store
        runs = read_all_runs(self.store)
        self.run, self.last_run = runs[0], runs[-1]
        application = create_application(self.store, 8321, SignerFiles())
        self.client = TestClient(
            application, base_url="http://127.0.0.1:8321", raise_server_exceptions=False
        )
        self.config_texts = [path.read_text() for path in sorted(CONFIG_FOLDER.glob("*.toml"))]
        self.policy_texts = [path.read_text() for path in sorted(POLICY_FOLDER.glob("*.toml"))]
        self.artifact_names = sorted(
            str(path.parent.relative_to(self.copy.root / "artifacts"))
            for path in (self.copy.root / "artifacts").glob("*/*/manifest.json")
        )
        # The first report parses the source code of all stages, which takes long.
        build_status_report(self.run)
        self.checkpoint_folders = [self._copy_checkpoint(), self._make_transformers_checkpoint()]
        self.kinds: dict[str, Callable[[Mutator], contextlib.AbstractContextManager[Readers]]] = {
            "config": self.make_config,
            "policy": self.make_policy,
            "request": self.make_request,
            "run record": self.make_record,
            "manifest": self.make_manifest,
            "checkpoint": self.make_checkpoint,
        }

    @contextlib.contextmanager
    def make_config(self, mutator: Mutator) -> Iterator[Readers]:
        """Mutate a bundled config as a file, as the tree of a run, or by an override."""
        from hallmark.flows.config import load_config

        text = mutator.rng.choice(self.config_texts)
        choice = mutator.rng.randrange(4)
        if choice == 0:
            tree = mutator.mutate_tree(self.run.record["config"])
            yield {"load_config": partial(load_config, tree)}
        elif choice == 1:
            override = mutator._mutate_text(
                mutator.rng.choice(["pretrain.train.steps", "ingest.sources.0", "select", "a.b"])
                + f"={json.dumps(mutator._choose_value(()))[:2000]}"
            )
            yield {"load_config": partial(load_config, "smoke", [override])}
        else:
            path = self.folder / "fuzzed.toml"
            path.write_bytes(mutator.mutate_toml(text))
            yield {"load_config": partial(load_config, str(path))}

    @contextlib.contextmanager
    def make_policy(self, mutator: Mutator) -> Iterator[Readers]:
        """Mutate a policy as a file, or as the rules of a config."""
        from hallmark.flows.config import load_config
        from hallmark.flows.policy_rule_checks import check_policy_rules

        text = mutator.rng.choice(self.policy_texts)
        config: dict[str, Any] = json.loads(json.dumps(self.run.record["config"]))
        if mutator.rng.random() < 0.5:
            path = self.folder / "policy.toml"
            path.write_bytes(mutator.mutate_toml(text))
            config["policy"] = {"file": str(path)}
        else:
            config["policy"] = mutator.mutate_tree(tomllib.loads(text)["policy"])
        yield {"check": lambda: check_policy_rules(load_config(config))}

    @contextlib.contextmanager
    def make_request(self, mutator: Mutator) -> Iterator[Readers]:
        """Mutate a request to the application, or a request to stop a training."""
        from hallmark.flows.training_stop import parse_training_stop

        if mutator.rng.random() < 0.2:
            stop = {"audit_run": self.run.id, "step": 7, "failed_rules": ["a rule"]}
            yield {"parse_training_stop": partial(parse_training_stop, mutator.mutate_json(stop))}
            return
        run = f"/runs/{self.run.id}"
        url = mutator.rng.choice(
            [
                "/?search=a&page=1",
                f"/compare?before={self.run.id}&after={self.run.id}",
                f"{run}/",
                f"{run}/progress",
                f"{run}/model_card/model_card.html",
                f"{run}/model_card/rows/findings-audit_bias.html?page=1&sort=n&filter=n:1",
                f"{run}/datasheet/reviews/",
                "/statements/0123456789abcdef/",
                f"/trace?run={self.run.id}",
            ]
        )
        for _ in range(mutator.rng.randint(1, 3)):
            url = mutator._mutate_text(url)
        # The client sends no control characters; the server decodes them again.
        url = "/" + quote(url.lstrip("/"), safe=string.punctuation)
        if mutator.rng.random() < 0.3:
            form = {"run": self.run.id, "text": "a text", "decision": "approve", "note": "n"}
            body = mutator.mutate_bytes("&".join(f"{k}={v}" for k, v in form.items()).encode())
            path = mutator.rng.choice(["/trace", f"{run}/model_card/reviews/", url])
            headers = {"Origin": "http://127.0.0.1:8321"}
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            yield {"post": partial(self._send, "POST", path, body, headers)}
        else:
            yield {"get": partial(self._send, "GET", url)}

    def _send(
        self, method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        """Send a request; raise HallmarkError if its response is a sentence."""
        response = self.client.request(
            method, url, content=body, headers=headers, follow_redirects=False
        )
        if "the page could not be built" in response.text.lower():
            raise RuntimeError(re.sub(r"<[^>]+>|\s+", " ", response.text)[-400:])
        if response.status_code >= 400:
            raise HallmarkError("refused")

    @contextlib.contextmanager
    def make_record(self, mutator: Mutator) -> Iterator[Readers]:
        """Mutate the run.json of the run, or put a progress file next to it."""
        from hallmark.flows.commands.runs import list_runs, render_run_list
        from hallmark.flows.commands.status import build_status_report, render_status
        from hallmark.flows.runs import open_run

        folder = self.copy.root / "runs" / self.run.id
        record, own_names = self.run.record, self.artifact_names
        if mutator.rng.random() < 0.8:
            path, content = folder / "run.json", mutator.mutate_json(record, own_names)
        else:
            progress = {"label": "pretrain", "completed": 1, "total": 9, "description": "d"}
            progress |= {"curves": {"loss": [[1, 2.0]]}}
            path, content = folder / "progress.json", mutator.mutate_json(progress)
            stages = [entry for entry in record["stages"] if entry["label"] != "pretrain"]
            record = record | {"status": "running", "host": "another host", "stages": stages}
        with contextlib.ExitStack() as stack:
            if path.name == "progress.json":
                stack.enter_context(
                    self.copy.replace_file(folder / "run.json", json.dumps(record).encode())
                )
            stack.enter_context(self.copy.replace_file(path, content))
            yield {
                "runs": lambda: render_run_list(list_runs(self.store.uri)),
                "status": lambda: render_status(
                    build_status_report(open_run(self.run.id, self.store))
                ),
                "page": partial(self._send, "GET", f"/runs/{self.run.id}/"),
                "progress": partial(self._send, "GET", f"/runs/{self.run.id}/progress"),
            }

    @contextlib.contextmanager
    def make_manifest(self, mutator: Mutator) -> Iterator[Readers]:
        """Mutate the manifest of an artifact; half of them get consistent digests again."""
        weights = [
            8 if name.startswith(("checkpoint/", "model_card/", "datasheet/")) else 1
            for name in self.artifact_names
        ]
        [name] = mutator.rng.choices(self.artifact_names, weights)
        path = self.copy.root / "artifacts" / name / "manifest.json"
        manifest = json.loads(path.read_bytes())
        if mutator.rng.random() < 0.3:
            content = mutator.mutate_json(manifest, self.artifact_names)
        else:
            # Few of the keys of a manifest are not about its tables.
            part = mutator.rng.choice(["lineage", "parts", "tables", "files", "telemetry"])
            manifest[part] = mutator.mutate_tree(manifest[part], [name, *self.artifact_names])
            if mutator.rng.random() < 0.7:
                _restore_digests(manifest)
            content = _dump_json(manifest)
        with self.copy.replace_file(path, content):
            readers = self._list_manifest_readers(name)
            yield {
                reader_name: read
                for reader_name, read in readers.items()
                if reader_name not in SLOW_READERS or mutator.rng.random() < SLOW_READER_SHARE
            }

    def _list_manifest_readers(self, name: str) -> Readers:
        from hallmark.flows.checkpoint_resolution import resolve_checkpoint, trace_training_history
        from hallmark.flows.commands.findings import list_findings, render_findings
        from hallmark.flows.commands.status import build_status_report, render_status
        from hallmark.flows.commands.verify import Verification, _verify_artifacts
        from hallmark.flows.run_recording import _iter_packed_corpora
        from hallmark.reports.cards import CARD_KINDS, read_card
        from hallmark.reports.purge_notices import read_purge_record

        def open_and_read() -> None:
            artifact = self.store.open_artifact(name)
            for table in artifact.tables.values():
                table.columns, table.source_counts, table.byte_size, len(table.parts)
                table.read()
            for file_name in artifact.manifest["files"]:
                artifact.fetch_file(file_name)
            read_purge_record(artifact)

        def trace_checkpoint() -> None:
            resolved = resolve_checkpoint(self.store, name)
            trace_training_history(resolved.checkpoint, resolved.training_run)
            list(_iter_packed_corpora(self.store, resolved.checkpoint))
            str(resolved.name), resolved.checkpoint.training_step

        readers: Readers = {
            "read": open_and_read,
            "verify": lambda: _verify_artifacts(self.store, [name], Verification()),
            "status": lambda: render_status(build_status_report(self.run)),
            "page": partial(self._send, "GET", f"/runs/{self.run.id}/"),
        }
        if self.last_run.id != self.run.id:
            names = f"before={self.run.id}&after={self.last_run.id}"
            readers["comparison"] = partial(self._send, "GET", f"/compare?{names}")
        if name.startswith("audit_"):
            readers["findings"] = lambda: render_findings(list_findings(self.run))
        if name.startswith("checkpoint/"):
            readers["trace"] = trace_checkpoint
        stage = name.partition("/")[0]
        if stage in CARD_KINDS:
            readers["card"] = lambda: read_card(self.store, self.store.open_artifact(name))
            page = f"/runs/{self.run.id}/{stage}/{stage}.html"
            readers["card page"] = partial(self._send, "GET", page)
        return readers

    def _copy_checkpoint(self) -> Path:
        from hallmark.flows.checkpoint_resolution import resolve_checkpoint

        checkpoint = resolve_checkpoint(self.store, self.run.id).checkpoint
        folder = self.folder / "checkpoint"
        shutil.copytree(checkpoint.fetch_directory(), folder)
        shutil.rmtree(folder / "transformers", ignore_errors=True)
        return folder

    def _make_transformers_checkpoint(self) -> Path:
        import transformers

        folder = self.folder / "transformers"
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(self.folder / "checkpoint" / "tokenizer.json")
        )
        tokenizer.add_special_tokens({"eos_token": "<eos>"})
        tokenizer.save_pretrained(folder)
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=64,
            n_embd=8,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
        return folder

    @contextlib.contextmanager
    def make_checkpoint(self, mutator: Mutator) -> Iterator[Readers]:
        """Mutate a file of a checkpoint of Hallmark or of Hugging Face."""
        from hallmark.flows.checkpoint_resolution import resolve_checkpoint
        from hallmark.tasks.audits.audited_models.opening import (
            open_audited_model,
            open_audited_tokenizer,
        )

        folder = mutator.rng.choice(self.checkpoint_folders)
        path = mutator.rng.choice(sorted(folder.iterdir()))
        data = path.read_bytes()
        if path.suffix == ".safetensors" and mutator.rng.random() < 0.6:
            content = _mutate_safetensors_header(mutator, data)
        elif path.suffix == ".json":
            content = mutator.mutate_json(json.loads(data))
        else:
            content = mutator.mutate_bytes(data)
        with self.copy.replace_file(path, content):
            original = path.with_name(f"{path.name}.original")
            hidden = self.folder / "original"
            original.rename(hidden)  # a folder of a model has no such file
            try:
                yield {
                    "resolve": lambda: resolve_checkpoint(self.store, str(folder)),
                    "tokenizer": lambda: open_audited_tokenizer(folder),
                    "model": lambda: open_audited_model(folder, "cpu"),
                }
            finally:
                hidden.rename(original)


def _restore_digests(manifest: dict[str, Any]) -> None:
    """Make the digests and sums of a manifest consistent, as an attacker would."""
    with contextlib.suppress(Exception):
        for group in ("tables", "telemetry"):
            for table in manifest[group].values():
                table["rows"] = sum(part["rows"] for part in table["parts"])
                table["sha256"] = compute_table_digest(table)
        manifest["content"] = compute_content_digest(manifest["tables"], manifest["files"])


def _mutate_safetensors_header(mutator: Mutator, data: bytes) -> bytes:
    """Mutate the JSON header of a safetensors file, or its length."""
    length = int.from_bytes(data[:8], "little")
    header = mutator.mutate_json(json.loads(data[8 : 8 + length]))
    stated_length = len(header)
    if mutator.rng.random() < 0.2:
        stated_length = mutator.rng.choice([0, 1, stated_length - 1, 1 << 40, (1 << 64) - 1])
    return stated_length.to_bytes(8, "little") + header + data[8 + length :]


# Outcomes -------------------------------------------------------------------------------------


def fuzz_kind(fuzzer: Fuzzer, kind: str, seeds: Sequence[int]) -> Outcomes:
    """Read one input for each seed, and count what happened."""
    outcomes = Outcomes(kind)
    for seed in seeds:
        start_time = time.process_time()
        outcome = "valid"
        with fuzzer.kinds[kind](Mutator(f"{kind} {seed}")) as readers:
            for reader_name, read in readers.items():
                result = try_to_read(read)
                if result in ("valid", "sentence"):
                    outcome = "sentence" if "sentence" in (outcome, result) else outcome
                    continue
                outcome = "hang" if result.startswith("hang") else "raw error"
                outcomes.failures.append(f"{kind} {seed}, {reader_name}: {result}")
                break
        outcomes.counts[outcome] += 1
        outcomes.slowest_seconds = max(outcomes.slowest_seconds, time.process_time() - start_time)
    return outcomes


def try_to_read(read: Callable[[], object]) -> str:
    """Call a reader, and return "valid", "sentence" or a description of the error."""
    try:
        with limit_time():
            read()
    except HallmarkError as error:
        message = str(error)
        if not message or "\n" in message or len(message) > 5000:
            return f"no sentence: {message[:200]!r} ({len(message):,} characters)"
        return "sentence"
    except TimeLimitError as error:
        return f"hang at {_find_place(error)}"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__} at {_find_place(error)}: {str(error)[:200]!r}"
    return "valid"


def _find_place(error: BaseException) -> str:
    """Name the last function of the project in a traceback."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and "fuzz_inputs" not in frame.filename
    ]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}"


@contextlib.contextmanager
def limit_memory() -> Iterator[None]:
    """Limit the memory of this process, and silence what the readers log."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, limits[1]))
    previous_level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous_level)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def format_table(all_outcomes: Sequence[Outcomes]) -> str:
    """Format the outcomes as a Markdown table."""
    lines = [
        "| kind | inputs | sentences | valid | raw errors | hangs | slowest, CPU s |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for outcomes in all_outcomes:
        counts = outcomes.counts
        cells = [counts.total(), *(counts[key] for key in ("sentence", "valid", "raw error"))]
        lines.append(
            f"| {outcomes.kind} | {' | '.join(f'{cell:,}' for cell in cells)} | "
            f"{counts['hang']:,} | {outcomes.slowest_seconds:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Fuzz all kinds of inputs, and print the table and the seeds of failures."""
    parser = argparse.ArgumentParser(prog="fuzz_inputs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--store", type=Path, default=Path("runs"), help="a store with one run")
    parser.add_argument("--inputs", type=int, default=2000, help="number of inputs of each kind")
    parser.add_argument("--kind", help="only this kind of input")
    parser.add_argument("--seed", type=int, help="only this input")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first input")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.inputs)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=options.store.parent) as folder:
        fuzzer = Fuzzer(options.store, Path(folder))
        all_outcomes = []
        for kind in [options.kind] if options.kind else fuzzer.kinds:
            with limit_memory():
                outcomes = fuzz_kind(
                    fuzzer, kind, seeds if options.seed is None else [options.seed]
                )
            all_outcomes.append(outcomes)
            print(f"{kind}: {dict(outcomes.counts)}", *outcomes.failures, sep="\n", flush=True)
    print(format_table(all_outcomes))


if __name__ == "__main__":
    main()
