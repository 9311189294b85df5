"""Select: apply rules to signals, and keep, remove, mark or thin out documents.

A rule is data: a signal, the bounds that its value must keep, and what becomes of a document of
which it does not. All rules are applied in one pass, in their order. The first that removes a
document is its row in the ledger; the further ones that would have, too, are rows ``also``, which
count nothing but tell what each rule takes by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tasks.contract import (
    DOCUMENTS,
    LEDGER,
    Artifact,
    HallmarkError,
    Part,
    PlainName,
    Seed,
    StageConfig,
    Table,
    Tables,
    Work,
    aligned,
    departures,
    ledger_table,
    stage,
    with_columns,
)
from tasks.corpus.presets import PRESETS, Preset, said
from tasks.corpus.signals import kinds_of, of_part
from tasks.corpus.split import uniform

#: The bounds that a value must keep, and how a value that does not keep one compares with it.
BROKEN = {"ge": pc.less, "gt": pc.less_equal, "le": pc.greater, "lt": pc.greater_equal}

Bound = Annotated[float | None, Field(allow_inf_nan=False)]


class Rule(StageConfig):
    """What a signal must be, and what becomes of a document of which it is not."""

    name: PlainName = Field(description="the reason in the ledger, or the tag")
    signal: str = Field("", description="the signal it looks at; the rule's name if left out")
    ge: Bound = Field(None, description="the value must be at least this")
    gt: Bound = Field(None, description="the value must be above this")
    le: Bound = Field(None, description="the value must be at most this")
    lt: Bound = Field(None, description="the value must be below this")
    any_of: tuple[str, ...] = Field((), description="the value must be one of these labels")
    none_of: tuple[str, ...] = Field((), description="the value must be none of these labels")
    unknown: Literal["keep", "remove"] = Field(
        "keep",
        description="what becomes of documents without a value. keep: the rule passes them over. "
        "remove: the rule's action applies to them as to documents that break the rule: with "
        "remove they are removed, with tag they are tagged, not removed. A missing value never "
        "counts as zero",
    )
    action: Literal["remove", "tag", "cap"] = Field(
        "remove",
        description="remove the document; tag: keep it and add the rule's name to its tags; cap: "
        "remove all but a share of them, drawn by their ids. For a rule of select_scored over a "
        "toxicity score the default is tag with the embedded scorer (linear), which scores "
        "harmless mentions of minorities as toxic, and remove with Detoxify",
    )
    share: float = Field(
        0, ge=0, lt=1, description="with cap: the share of the documents that stays all the same"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_its_name(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not given.get("signal"):
            return {**given, "signal": given.get("name", "")}
        return given

    @model_validator(mode="after")
    def _says_something(self) -> Rule:
        numbers = [name for name in BROKEN if getattr(self, name) is not None]
        labels = [name for name in ("any_of", "none_of") if getattr(self, name)]
        if len(numbers) + len(labels) == 0:
            raise ValueError(f"needs a bound: {', '.join([*BROKEN, 'any_of', 'none_of'])}")
        if (numbers and labels) or len(labels) > 1:
            raise ValueError("has bounds for numbers and for labels; a signal is one of them")
        if (self.share > 0) != (self.action == "cap"):
            raise ValueError('share goes with action = "cap", and must be above 0 there')
        return self

    @property
    def labels(self) -> bool:
        """Whether it is about labels, else about numbers."""
        return bool(self.any_of or self.none_of)

    def broken(self, values: pa.Array) -> pa.Array:
        """Whether each value breaks the rule, (n,) bool; null where there is no value."""
        if self.labels:
            named = pc.is_in(values, value_set=pa.array(self.any_of or self.none_of))
            named = pc.if_else(pc.is_valid(values), named, None)
            return pc.invert(named) if self.any_of else named
        number = values.cast(pa.float64())
        known = pc.and_(pc.is_valid(number), pc.invert(pc.fill_null(pc.is_nan(number), True)))
        found = pa.array([False] * len(values), pa.bool_())
        for bound, breaks in BROKEN.items():
            if (limit := getattr(self, bound)) is not None:
                found = pc.or_(found, pc.fill_null(breaks(number, limit), False))
        return pc.if_else(known, found, None)

    def limits(self, values: pa.Array) -> pa.Array:
        """The bound that each value breaks, (n,) float64; null where it is a label or unknown."""
        limits = pa.nulls(len(values), pa.float64())
        if not self.labels:
            number = values.cast(pa.float64())
            for bound, breaks in BROKEN.items():
                if (limit := getattr(self, bound)) is not None:
                    limits = pc.if_else(pc.fill_null(breaks(number, limit), False), limit, limits)
        return limits


def _named(rules: Any) -> Any:
    """Rules as a table of tables, a name each, are a list of rules in that order."""
    if not isinstance(rules, Mapping):
        return rules
    return [{"name": k, **v} if isinstance(v, Mapping) else v for k, v in rules.items()]


def _name(rule: Any) -> Any:
    return rule.get("name") if isinstance(rule, Mapping) else getattr(rule, "name", None)


def _each(rules: Any) -> Any:
    """What is wrong with a rule is told by its name: among those of presets no number would tell
    which one it is."""
    if not isinstance(rules, Mapping | list | tuple):
        raise ValueError("must be tables [….rules.NAME], one a rule, or a list of rules")
    entries = _named(rules)
    names = list(rules) if isinstance(rules, Mapping) else [_name(rule) for rule in entries]
    made, wrong = [], []
    for number, (name, rule) in enumerate(zip(names, entries, strict=True)):
        place = name if isinstance(name, str) else number
        try:
            made.append(Rule.model_validate(rule))
        except ValidationError as error:
            wrong += [{**found, "loc": (place, *found["loc"])} for found in error.errors()]
    if wrong:
        raise ValidationError.from_exception_data("rules", cast(Any, wrong))
    return made


Rules = Annotated[tuple[Rule, ...], BeforeValidator(_each)]


class SelectConfig(StageConfig):
    presets: tuple[Preset, ...] = Field(
        default=(),
        description="published rules, made for English; they come before the others, and a rule of "
        f"the name of one of theirs changes what it sets of it. {said()}",
    )
    rules: Rules = Field(
        default=(),
        description="Rules are applied in their order. For [[….rules]] with names one may write "
        "[….rules.NAME], a table each.",
    )
    seed: Seed = Field(0, description="another seed, other documents under a cap")

    @model_validator(mode="before")
    @classmethod
    def _with_presets(cls, given: Any) -> Any:
        """The rules of the presets stand among the others, and a run records them as they are."""
        if not isinstance(given, Mapping):
            return given
        names, own = given.get("presets", ()), _named(given.get("rules", ()))
        lists = isinstance(names, list | tuple) and isinstance(own, list | tuple)
        sound = lists and all(isinstance(_name(rule), str) for rule in own)
        if not sound or any(name not in list(PRESETS) for name in names):
            return given  # refused below, with its place
        rules = {name: {"name": name, **rule} for n in names for name, rule in PRESETS[n].items()}
        new: dict[str, Any] = {}
        more = []
        for rule in own:
            name = _name(rule)
            if name in rules and name not in new:
                new[name] = {**rules[name], **rule} if isinstance(rule, Mapping) else rule
            else:
                more.append(rule)
        return {**given, "rules": [*(rules | new).values(), *more]}

    @model_validator(mode="after")
    def _named_apart(self) -> SelectConfig:
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError("two rules have one name, which is their reason in the ledger")
        return self


@dataclass(frozen=True)
class Judged:
    """What a rule says of the documents of a part; arrays (n,), and nothing else."""

    rule: Rule
    values: pa.Array
    hit: np.ndarray  # bool: it removes the document, or marks it
    unknown: np.ndarray  # bool: for want of a value


def misfit(rule: Rule, kinds: Mapping[str, pa.DataType]) -> str | None:
    """Why a rule says nothing of signals of these names and types; None where it does."""
    if rule.signal not in kinds:
        return f"there is no signal {rule.signal!r}; there are: {', '.join(kinds) or 'none'}"
    kind = kinds[rule.signal]
    if pa.types.is_string(kind):
        fits, wants = rule.labels, "give it any_of or none_of"
    elif pa.types.is_nested(kind):
        fits, wants = False, "no rule looks at lists"
    else:
        fits, wants = not rule.labels, f"give it {', '.join(BROKEN)}"
    return None if fits else f"signal {rule.signal!r} is of type {kind}: {wants}"


def judge(rule: Rule, rows: pa.Table, seed: int) -> Judged:
    """rows: the signals of the documents, and their doc_id."""
    if why := misfit(rule, kinds_of(rows.schema)):
        raise HallmarkError(f"rule {rule.name!r}: {why}")
    values = rows[rule.signal].combine_chunks()
    broken = rule.broken(values)
    unknown = pc.is_null(broken).to_numpy(zero_copy_only=False)
    hit = pc.fill_null(broken, rule.unknown == "remove").to_numpy(zero_copy_only=False)
    if rule.action == "cap":
        hit = hit & (uniform(rows["doc_id"], seed, f"cap {rule.name}") >= rule.share)
    return Judged(rule, values, hit, unknown)


def select_part(
    parts: tuple[Part, ...], names: Sequence[str], config: SelectConfig, out: Tables
) -> dict[str, dict[str, int]]:
    """Documents and signals are walked side by side: all stand in the order of the ids.

    Returns how many documents had no value, by signal, and how many left, by reason.
    """
    documents, *tables = parts
    rows = of_part(documents, dict(zip(names, tables, strict=True)))
    judged = [judge(rule, rows, config.seed) for rule in config.rules]
    removing = [found for found in judged if found.rule.action != "tag"]
    marking = [found for found in judged if found.rule.action == "tag"]
    carried = [name for name in DOCUMENTS.names if name in rows.schema.names and name != "doc_id"]
    taken: Counter[str] = Counter()
    start = 0
    for batch in documents.batches():
        here = slice(start, start + len(batch))
        start = here.stop
        columns = {name: rows[name].combine_chunks()[here] for name in carried}
        tags = marked(batch["tags"], [(found.rule.name, found.hit[here]) for found in marking])
        gone = np.logical_or.reduce([np.zeros(len(batch), bool), *(r.hit[here] for r in removing)])
        documents_here = pa.table(with_columns(batch, **columns, tags=tags))
        out.table("documents").write(documents_here.filter(pa.array(~gone)))
        ledger = reasons(batch, here, removing)
        out.table("ledger").write(ledger)
        first = ledger.filter(pc.equal(ledger["action"], "removed"))
        taken.update(first["reason"].to_pylist())
    return {
        "unknown": {found.rule.signal: int(found.unknown.sum()) for found in judged},
        "taken": dict(taken),
    }


def marked(tags: pa.Array, hits: Sequence[tuple[str, np.ndarray]]) -> pa.Array:
    """The lists of tags with the names of those rules behind that hit; null where there is none."""
    names = [pc.list_flatten(tags)]
    owners = [pc.list_parent_indices(tags).to_numpy()]
    for name, hit in hits:
        owners.append(np.flatnonzero(hit))
        names.append(pa.array([name] * len(owners[-1]), pa.string()))
    owner = np.concatenate(owners).astype(np.int64)
    counts = np.bincount(owner, minlength=len(tags))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = pa.concat_arrays(names).take(pa.array(np.argsort(owner, kind="stable")))
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), values, mask=pa.array(counts == 0)
    )


def reasons(batch: pa.RecordBatch, here: slice, removing: Sequence[Judged]) -> pa.Table:
    """Rows of the ledger: the first rule that removes a document, then those that would have."""
    pieces = []
    before = np.zeros(len(batch), bool)  # removed by an earlier rule
    for found in removing:
        hit = found.hit[here]
        for action, which in (("removed", hit & ~before), ("also", hit & before)):
            at = pa.array(np.flatnonzero(which))
            values = found.values[here].take(at)
            name = found.rule.name
            unknown = pa.array(found.unknown[here][which])
            columns = {
                "score": None if found.rule.labels else values.cast(pa.float64()),
                "threshold": found.rule.limits(values),
            }
            pieces.append(
                departures(
                    action,
                    pc.if_else(unknown, f"{name} unknown", name),
                    batch.take(at),
                    **{k: v for k, v in columns.items() if v is not None},
                )
            )
        before |= hit
    return ledger_table(*pieces)


@stage(
    tables={"documents": DOCUMENTS, "ledger": LEDGER},
    libraries=["numpy"],
    reads={"signals": ("signals",)},
)
def select(
    documents: Table, signals: dict[str, Artifact], config: SelectConfig, work: Work
) -> None:
    """``signals`` holds what stages said of these documents, in their tables ``signals``. A signal
    that has the name of a column of documents is carried on in it."""
    tables = [artifact["signals"] for artifact in signals.values()]
    done = work.parts(select_part, aligned(documents, *tables), list(signals), config)
    if documents.rows and not sum(part.parts["documents"]["rows"] for part in done):
        taken = sum((Counter(part.value["taken"]) for part in done), Counter())
        said = ", ".join(f"{name} took {count:,}" for name, count in taken.most_common())
        raise HallmarkError(
            f"its rules leave none of {documents.rows:,} documents: {said}; widen their bounds, or "
            f"leave them out"
        )
    for name in dict.fromkeys(rule.signal for rule in config.rules):
        unknown = sum(part.value["unknown"][name] for part in done)
        work.measure(f"unknown {name}", unknown, "documents")
