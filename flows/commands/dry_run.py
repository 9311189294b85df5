"""How a forecast shows itself in a terminal."""

from __future__ import annotations

from typing import Any

Report = dict[str, Any]

STATES = {
    "store": "store",
    "run": "would run",
    "unknown": "not known",
    "fails": "FAILS",
    "waits": "waits",
}


def render(report: Report) -> str:
    blocks = [_stages(report), _corpus(report), _training(report), _ending(report)]
    head = f"dry run of {report['config']}: nothing was written\nstore {report['store']}"
    return "\n\n".join([head, *(block for block in blocks if block)])


def _stages(report: Report) -> str:
    width = max(len(row["label"]) for row in report["stages"])
    lines = []
    for row in report["stages"]:
        time = _duration(row["seconds"]) if row["seconds"] is not None else ""
        time = "not estimated" if not time and row["state"] == "run" else time
        says = row["artifact"] or row["why"]
        state = STATES.get(row["state"], row["state"])
        lines.append(f"{row['label']:<{width}}  {state:<9}  {time:<13}  {says}")
    total = report["seconds"]
    bases = sorted({row["rests_on"] for row in report["stages"] if row["rests_on"]})
    bases = [base for base in bases if not base.startswith("estimate: as ")]
    if any(row["rests_on"].startswith("estimate: as ") for row in report["stages"]):
        bases.append("estimate: as the newest artifact of the stage took")
    if total["value"]:
        least = "at least " if total["without"] else ""
        lines.append(f"time in all: {least}about {_duration(total['value'])}")
    elif total["without"]:
        lines.append("time in all: not estimated")
    lines += [f"  {base}" for base in bases]
    if total["value"] and total["without"]:
        lines.append(
            f"  not in it: {', '.join(total['without'])}, of whose time neither the sample nor an "
            f"earlier run in this store tells"
        )
    return "\n".join(lines)


def _corpus(report: Report) -> str:
    lines = [f"sources: {_basis(report)}"]
    for source in report["sources"]:
        documents, size = _number(source["documents"]), _bytes(source["bytes"])
        read = source["read"]
        share = "" if read is None or read == 1 else f"  ({_percent(read)} of it was read)"
        if read is None:
            documents, size = "an unknown number of", "of unknown size"
        lines.append(f"  {source['source']}: {documents} documents, {size}{share}")
        if source["quarantined"]:
            lines.append(
                f"    to quarantine, as they cannot be read: {source['quarantined']:,}; the first: "
                f"{source['first_quarantined']}"
            )
        known = any(source.get("problem", "") in row["why"] for row in report["stages"])
        if source.get("problem") and not known:
            lines.append(f"    {source['problem']}")
    corpus = report["corpus"]
    lines.append(_curated(corpus))
    if corpus["tokens"]["value"] is not None:
        lines.append(
            f"packed ({_said(corpus['tokens'])}): {_number(corpus['tokens'])} tokens to train on, "
            f"rows to train on {_number(corpus['train_rows'])}, to validate on "
            f"{_number(corpus['validation_rows'])}"
        )
    return "\n".join(lines)


def _curated(corpus: Report) -> str:
    if corpus["documents"]["value"] is None:
        return "after curation: not known"
    splits = {name: corpus[name] for name in ("train", "validation", "holdout")}
    planted = corpus["documents"]["value"] - sum(split["value"] for split in splits.values())
    says = [f"{name} {_number(split)}" for name, split in splits.items()]
    says += [f"planted in train {planted:,.0f}"] if planted >= 1 else []
    return (
        f"after curation ({_said(corpus['documents'])}): {_number(corpus['documents'])} documents, "
        f"{_bytes(corpus['bytes'])}\n  {', '.join(says)}"
    )


def _basis(report: Report) -> str:
    sample = report["sample"]
    if sample is None:
        known = report["sources"] and report["sources"][0]["documents"]["exact"]
        return "exact, from the store" if known else "not known"
    read = f"{sample['documents']:,} documents, {_size(sample['bytes'])}"
    if sample["whole"]:
        return f"exact, all of it was read ({read})"
    if not sample["documents"]:
        return "nothing could be read"
    return (
        f"estimates from a sample of {read}, scaled by bytes; duplicates of what was not read are "
        f"not seen"
    )


def _training(report: Report) -> str:
    training = report["training"]
    if training is None:
        return ""
    parameters, memory, step = training["parameters"], training["memory"], training["step"]
    most = "" if parameters["exact"] else "at most "
    epochs = training["epochs"]
    passes = "epochs not known"
    if epochs["value"] is not None:
        passes = f"{epochs['value']:.2f} epochs ({_said(epochs)})"
    lines = [
        f"model: {most}{parameters['value']:,} parameters "
        + ("(exact)" if parameters["exact"] else "(exact if the corpus fills the vocabulary)"),
        f"training: {training['steps']:,} steps see {training['tokens_seen']:,} tokens, {passes}",
        f"memory: weights {_size(memory['weights'])}, gradients {_size(memory['gradients'])}, "
        f"optimizer {_size(memory['optimizer'])}: {_size(memory['total'])} by formula, and the "
        f"activations",
    ]
    if step:
        lines.append(
            f"  measured on {step['device']} in {step['count']} steps: {step['seconds']:.2f} s a "
            f"step, so about {_duration(step['training_seconds'])} for all; at its highest the "
            f"trainer held {_size(step['peak'])}, libraries and activations with it"
        )
    return "\n".join(lines)


def _ending(report: Report) -> str:
    lines = [f"note: {note}" for note in report["notes"]]
    for warning in report["warnings"]:
        lines.append(f"{'WILL FAIL' if warning['sure'] else 'warning'}: {warning['says']}")
    if not report["warnings"]:
        lines.append("nothing was found that would fail")
    return "\n".join(lines)


def _said(figure: Report) -> str:
    return "exact" if figure["exact"] else "estimate"


def _number(figure: Report) -> str:
    value = figure["value"]
    return "unknown" if value is None else f"{_about(figure)}{value:,.0f}"


def _bytes(figure: Report) -> str:
    value = figure["value"]
    return "of unknown size" if value is None else f"{_about(figure)}{_size(value)}"


def _about(figure: Report) -> str:
    return "" if figure["exact"] else "about "


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 172_800), ("h", 7_200), ("min", 120)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.1f} {unit}"
    return f"{seconds:.1f} s"
