"""A study of the audits: sealed worlds, a model of each, the ordinary audits, opened envelopes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from typing import Any, NamedTuple

from prefect import flow

from flows.examining import examine_by
from flows.mitigating import left_out, write_list
from flows.recording import flow_run_name, frontend, recorded
from flows.runs import WORLD, Run, all_runs, find_artifact, open_run
from flows.site import build_quietly
from flows.study_config import (
    STUDIED,
    StudyConfig,
    numbers,
    whole_of,
)
from reports.study_card import study_card
from tasks.audits.proofs.attribution import attribute, predicted
from tasks.audits.proofs.candidates import judge_candidates
from tasks.audits.proofs.error_rates import ARMS, ErrorRatesConfig, doses_of, error_rates
from tasks.contract import (
    Artifact,
    HallmarkError,
    Needs,
    NoConfig,
    Store,
    file_digest,
    make_mapper,
)
from tasks.corpus.leave_out import LeaveOutConfig, leave_out
from tasks.corpus.world import seal
from tasks.corpus.world import world as world_text
from tasks.training.blank import blank
from tasks.training.pack import pack
from tasks.training.pretrain import pretrain
from tasks.training.train_tokenizer import train_tokenizer

#: What the names of the stages begin with that look at all items.
WHOLE = "whole_"

#: How many threads a process computes with.
THREADS = "OMP_NUM_THREADS"

# A world ---------------------------------------------------------------------------------------


@flow(name="world", flow_run_name=flow_run_name)
def world(config: dict[str, Any], store: str) -> str:
    """A sealed world to the verdicts on its candidates: its envelope stays shut."""
    settings = StudyConfig.model_validate(config)
    with recorded("world", settings, Store(store)) as run:
        text = world_text(settings.world)
        seal(settings.world)
        tokenizer = train_tokenizer([text], None, settings.train_tokenizer)
        packed = pack([text], tokenizer, settings.pack)
        pretrained = pretrain(packed, tokenizer, [text], None, None, settings.pretrain)
        checkpoint = run.last_checkpoint(pretrained)
        sample = examined(settings, checkpoint, text)
        whole = examined(whole_of(settings), checkpoint, text, WHOLE)
        judged = judge_candidates(sample, whole, pretrained, packed, NoConfig())
        named = attribute([text], [text], settings.attribute)
        gone = predicted(named["attributed"].read(), found_in(judged)) if settings.retrain else []
        if gone:  # where nothing was found there is nothing to take out
            listed = write_list(gone, left_out(run.store))
            for arm in ARMS:
                out = LeaveOutConfig(documents=listed, control=arm == "random", padding=True)
                left = leave_out.named(f"{arm}_leave_out")(text, out)
                rest = blank.named(f"{arm}_blank")(packed, left, left, tokenizer)
                again = pretrain.named(f"{arm}_pretrain")(
                    rest, tokenizer, [text], None, None, settings.pretrain
                )
                seen = examined(settings, run.last_checkpoint(again), text, f"{arm}_")
                judge_candidates.named(f"{arm}_verdicts")(seen, seen, again, packed, NoConfig())
    return run.id


def found_in(judged: Artifact) -> set[tuple[str, str]]:
    """The candidates that the audits found: kind and unit."""
    rows = judged["verdicts"].read().to_pylist()
    return {(row["kind"], row["unit"]) for row in rows if row["found"]}


def examined(
    config: StudyConfig, checkpoint: Artifact, text: Artifact, called: str = ""
) -> dict[str, Artifact]:
    """What the audits find, by their names. HallmarkError where one fails."""
    tables = {"lexicons": text, "plants": [text], "documents": None}
    failed: dict[str, str] = {}
    found = examine_by(STUDIED, checkpoint, tables, (None,) * 4, config, {}, failed, called)
    if failed:
        raise HallmarkError("; ".join(f"{name}: {why}" for name, why in failed.items()))
    return found


class Outcome(NamedTuple):
    """A world's run, or why there is none."""

    run: str | None
    why: str


def outcome(config: dict[str, Any], store: str) -> Outcome:
    """In a process of its own, on one thread: a world, or what went wrong with it."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"  # before torch is loaded
    try:
        return Outcome(world(config, store), "")
    except HallmarkError as error:
        return Outcome(None, str(error))
    except (OSError, MemoryError):  # of the machine: it would be that of every world
        raise
    except Exception as error:  # whatever it is, the other worlds tell what they tell
        return Outcome(None, f"{type(error).__name__}: {error}")
    finally:
        os.environ.pop(THREADS)
        if before is not None:
            os.environ[THREADS] = before


# The study -------------------------------------------------------------------------------------


@flow(name="study", flow_run_name=flow_run_name)
def study(config: dict[str, Any], store: str) -> str:
    """Worlds, each a run of its own, and the audits' error rates on them."""
    settings, opened = StudyConfig.model_validate(config), Store(store, create=True)
    with recorded("study", settings, opened) as run:
        verdicts, envelopes, attributions, void = {}, {}, {}, {}
        arms: dict[str, Artifact] = {}
        sealed = first_sealed(opened)
        for name, one in worlds(settings, store):
            frontend.say(name, one)
            try:
                if one.run is None:
                    raise HallmarkError(one.why)
                made = open_run(one.run, opened)
                envelopes[name] = envelope(made, sealed)
                attributions[name] = made["attribute"]
                arms |= {f"{name} {arm}": made[f"{arm}_verdicts"] for arm in ARMS
                         if f"{arm}_verdicts" in made.stages}  # fmt: skip
                verdicts[name] = made["judge_candidates"]
            except HallmarkError as error:
                envelopes.pop(name, None)
                attributions.pop(name, None)
                void[name] = str(error)
        if not verdicts:
            name, why = next(iter(void.items()))
            raise HallmarkError(f"no world counts, {name} since {why}")
        rated = ErrorRatesConfig(void=void, top=settings.attribute.top)
        rates = error_rates(verdicts, envelopes, attributions, arms, rated)
        study_card(rates, settings.study_card)
    run.site = build_quietly(opened)
    return run.id


def worlds(config: StudyConfig, store: str) -> Iterator[tuple[str, Outcome]]:
    """Each world with its outcome, in order; several are worked on at once, a thread each."""
    each = dict(numbers(config))
    calls = [(one.model_dump(mode="json"), store) for one in each.values()]
    told = 0
    with make_mapper("processes", config.at_once) as mapper:
        try:
            for name, one in zip(each, mapper(outcome, calls, Needs()), strict=True):
                told += 1
                yield name, one
        except BrokenExecutor as error:
            raise HallmarkError(
                f"a process that worked on {[*each][told]} or a world behind it was killed, as "
                f"where memory runs out; what is done stays: run the same command again, with "
                f"--at-once 1 where memory is short"
            ) from error


def first_sealed(store: Store) -> dict[str, str]:
    """The content of each envelope as it was sealed first, by the artifact's name: a study that is
    continued makes a run of each world again, which takes what the store has now."""
    found: dict[str, str] = {}
    for run in (run for run in all_runs(store, worlds=True) if run.flow == WORLD):
        if entry := run.stages.get("seal"):
            found.setdefault(entry["artifact"], entry["content"])
    return found


def envelope(run: Run, sealed: dict[str, str]) -> Artifact:
    """The envelope of a world as it was ``sealed`` first, be it now. HallmarkError where it is
    another, or gone, or that of another world."""
    entry = run.stages.get("seal")
    if entry is None:
        raise HallmarkError("its envelope was never sealed")
    first = sealed.setdefault(entry["artifact"], entry["content"])
    artifact = find_artifact(run.store, entry["artifact"])
    if not artifact.content == entry["content"] == first:
        raise HallmarkError(f"its envelope is not the one that was sealed ({artifact.name})")
    for part in (part for table in artifact.tables.values() for part in table.parts):
        if file_digest(part.path) != part.entry["sha256"]:
            raise HallmarkError(f"its envelope was changed after it was sealed ({artifact.name})")
    judged = run["judge_candidates"]["verdicts"].read(["kind", "unit"]).to_pylist()
    if {(row["kind"], row["unit"]) for row in judged} - {*doses_of(artifact["envelope"].read())}:
        raise HallmarkError(f"its envelope is that of another world ({artifact.name})")
    return artifact
