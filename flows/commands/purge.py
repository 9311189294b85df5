"""Which artifacts, runs and models hold a document; its text taken out of what can be cleaned."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from flows.commands.shared import InStore, Json, show
from flows.commands.trace import parsed, steps_of
from flows.purging import (
    Purge,
    all_artifacts,
    check_nobody_reads,
    clear_pages,
    clear_scratch,
    copies_of,
    deny,
    planted,
    take_out,
    would_change,
)
from flows.redaction import NOBODY
from flows.runs import Run, all_runs, default_store
from tasks.contract import Artifact, Store, UsageError, read_denied

Report = dict[str, Any]

#: Names that a terminal shows of a list.
SHOWN = 12


def purge(
    doc_id: str,
    *,
    copies: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    store: InStore = None,
    json_: Json = False,
) -> None:
    """Take a document's text out of the whole store, for good, and name the models that read it.

    Parameters
    ----------
    doc_id
        32 hexadecimal digits, as the column doc_id of every table has them.
    copies
        Purge its exact copies under other ids, too.
    dry_run
        Change nothing, only list what holds it.
    """
    show(purge_of(default_store(store, create=False), doc_id, copies, dry_run), json_, render)


def purge_of(store: Store, doc_id: str, copies: bool = False, dry_run: bool = False) -> Report:
    """What held a document and was taken out, or with ``dry_run`` would be."""
    with store.alone() as alone:
        if not dry_run:
            check_nobody_reads(store, alone)
        artifacts = all_artifacts(store)
        asked = {parsed(doc_id)} - {NOBODY}
        purge = Purge.of(asked, artifacts)
        known, beside = purge.beside(artifacts)
        denied = read_denied(store)
        if not known and doc_id.lower() not in denied["documents"]:
            raise UsageError(
                f"no artifact of the store {store.uri} knows a document {doc_id}; ids stand in the "
                f"column doc_id of its tables"
            )
        if planted(asked, artifacts):
            raise UsageError(
                f"{doc_id} was planted: nobody wrote it, and it would be planted again; set "
                f"plant.enabled=false or another plant.seed, or purge the document that it copies"
            )
        asked |= set(map(bytes.fromhex, denied["unfinished"]))  # by one that was killed
        same = copies_of(asked, artifacts)
        if len(purge.documents) < len(every := asked | same if copies else asked):
            purge = Purge.of(every, artifacts)
            _, beside = purge.beside(artifacts)
        weights, tokenizers = _weights(store, purge, artifacts), _tokenizers(purge, artifacts)
        doc_ids = set(purge.documents.to_pylist())
        unread = purge.unread(artifacts)
        if dry_run:
            changed = would_change(purge, artifacts)
        else:
            deny(store, doc_ids, unfinished=True)
            changed = take_out(store, purge, artifacts)
        # By an earlier purge of the same documents, too, which may have been killed.
        before = {a.name for a in artifacts if a.purged.keys() & set(_hex(doc_ids))}
        held = before | changed.keys()
        scratch = clear_scratch(store, held, dry_run)
        pages, beyond = clear_pages(store, dry_run)
        if not dry_run:
            deny(store, doc_ids, unfinished=False)
    return {
        "store": store.uri,
        "dry_run": dry_run,
        "documents": _hex(doc_ids),
        "copies": _hex(same),
        "copies_purged": copies,
        "near": _hex(beside - same - doc_ids),
        "artifacts": changed,
        "runs": _runs(store, held),
        "weights": weights,
        "tokenizers": tokenizers,
        "scratch": scratch,
        "pages": pages,
        "beyond": beyond,
        "unread": unread,
    }


def _runs(store: Store, held: set[str]) -> list[str]:
    """The runs with any of the artifacts, and those that add to the corpus of one of them."""
    runs = all_runs(store)
    found = {r.id for r in runs if any(e["artifact"] in held for e in r.stages.values())}
    while more := {r.id for r in runs if r.earlier in found} - found:
        found |= more
    return [run.id for run in runs if run.id in found]


def _hex(doc_ids: set[bytes]) -> list[str]:
    return sorted(doc_id.hex() for doc_id in doc_ids)


def _weights(store: Store, purge: Purge, artifacts: list[Artifact]) -> list[Report]:
    """The checkpoints that read any of the documents, and those that go on from one; for each the
    steps before it that did, as far as a run says how it was trained."""
    read: dict[str, set[int]] = {}  # sequences, by packed artifact
    for artifact in artifacts:
        spans = purge.spans(artifact)
        if spans is not None and len(spans):
            rows = zip(spans["split"].to_pylist(), spans["sequence"].to_pylist(), strict=True)
            read[artifact.name] = {sequence for split, sequence in rows if split == "train"}
    steps = {
        run.stages["pretrain"]["fingerprint"]: steps_of(run, read[packed])
        for run in all_runs(store)
        if "pretrain" in run.stages and (packed := _packed(run)) in read
    }
    found: dict[str, Report] = {}
    checkpoints = [a for a in artifacts if a.stage == "checkpoint"]
    for checkpoint in checkpoints:
        step = checkpoint.manifest["parts"].get("key", {}).get("step")
        if checkpoint.manifest["lineage"].get("packed") in read:
            of = steps.get(checkpoint.manifest["parts"].get("parent", ""))
            before = None if of is None or step is None else [s for s in of if s <= step]
            if before != []:
                found[checkpoint.name] = {"checkpoint": checkpoint.name, "step": step,
                                          "steps": before, "start": None}  # fmt: skip
    while True:  # what went on from one of them
        more = {
            c.name: {"checkpoint": c.name, "step": c.manifest["parts"].get("key", {}).get("step"),
                     "steps": None, "start": start}
            for c in checkpoints
            if c.name not in found and (start := _base(c)) in found
        }  # fmt: skip
        if not more:
            return list(found.values())
        found |= more


def _packed(run: Run) -> str | None:
    """The name of what its training read, which may be gone."""
    known = run.stages.get("blank", run.stages.get("pack", {})).get("artifact")
    return known if isinstance(known, str) else None


def _base(checkpoint: Artifact) -> str | None:
    """The checkpoint that training, or fine-tuning, went on from."""
    lineage = checkpoint.manifest["lineage"]
    return lineage.get("start") or lineage.get("checkpoint")


def _tokenizers(purge: Purge, artifacts: list[Artifact]) -> list[str]:
    """The tokenizers that were trained on any of the documents, of which a token may be a word."""
    read = {f"{a.name}#documents" for a in artifacts if purge.trains(a)}
    found = []
    for artifact in artifacts:
        if artifact.stage == "train_tokenizer":
            given = artifact.manifest["lineage"]["documents"]
            if read & {given} if isinstance(given, str) else read & {*given}:
                found.append(artifact.name)
    return found


# For a terminal --------------------------------------------------------------------------------


def render(report: Report) -> str:
    would = "would be " if report["dry_run"] else ""
    lines = [f"{', '.join(report['documents'])} in store {report['store']}", ""]
    for name, parts in report["artifacts"].items():
        lines.append(f"{name}: {would}rewritten: {_some(parts)}")
    if not report["artifacts"]:
        lines.append("no artifact holds anything of it")
    for title, names in (
        ("runs that held it" if not report["dry_run"] else "runs that hold it", report["runs"]),
        (f"work areas {would}removed", report["scratch"]),
        ("pages", report["pages"]),
        ("exact copies, purged too" if report["copies_purged"] else
         "exact copies, which stay (--copies purges them, too)", report["copies"]),
        ("documents that matched it, to be looked at", report["near"]),
        ("unmasked pages out of the store, to be removed by hand", report["beyond"]),
        ("quarantined records of other sources that are no readable text and were searched by a "
         "guess at their encoding", [f"{n} of {name}" for name, n in report["unread"].items()]),
    ):  # fmt: skip
        if names:
            lines.append(f"{title}: {_some(names)}")
    lines += ["", *_models(report["weights"])]
    if report["tokenizers"]:
        lines.append(f"tokenizers trained on it, as they were: {_some(report['tokenizers'])}")
    if report["dry_run"]:
        return "\n".join([*lines, "nothing has been changed"])
    return "\n".join(
        [*lines, "ingest takes it no more; its runs can be neither replayed nor gone on with. A "
         "site, a copy or a cache of this store elsewhere is not reached"]
    )  # fmt: skip


def _models(weights: list[Report]) -> list[str]:
    if not weights:
        return ["no checkpoint read it"]
    lines = ["checkpoints that read it, which nothing can clean:"]
    for row in weights:
        how = f"goes on from {row['start']}" if row["start"] else "steps not known"
        if row["steps"] is not None:
            how = f"read in steps {_some(list(map(str, row['steps'])))}"
        lines.append(f"    {row['checkpoint']}, step {row['step']}: {how}")
    return lines


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
