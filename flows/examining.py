"""What the probes of an examination run through, one step of all of them at a time: so a model is
opened once, and the terminal has a line a step."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flows.origin import resolve_folder
from tasks.audits.catalogue import ASK, JUDGE, PROBES
from tasks.audits.exchange import Questions
from tasks.audits.probe import Corpus, Probe
from tasks.audits.refer import refer
from tasks.audits.respond import respond, respond_untrained
from tasks.audits.score import score
from tasks.audits.subjects.reader import Reader, open_reader
from tasks.audits.trace import trace
from tasks.contract import Artifact, HallmarkError, UsageError, external_paths

log = logging.getLogger("hallmark")

#: The stages that serve all probes, by the step that each is of a probe.
SHARED = {"respond": respond, "floor": respond_untrained, "score": score, "floor_score": score,
          "trace": trace, "reference": refer}  # fmt: skip

#: What a step leaves of a probe; None: nothing.
Step = Callable[[Probe], Artifact | None]


def examine_by(
    probes: Sequence[Probe],
    checkpoint: Artifact,
    tables: Mapping[str, Any],
    read: Sequence[Any],
    config: Any,
    made: dict[str, Artifact],
    failed: dict[str, str],
    called: str = "",
    check: Callable[[dict[str, Artifact]], None] = lambda asked: None,
) -> dict[str, Artifact]:
    """The findings of each probe. What leads to them goes to ``made``; why one has none, to
    ``failed``. ``tables``: those of the corpus that probes ask about; ``read``: the checkpoints
    that trainings left, these and the rows that they read, as ``origin.trainings`` has them, and
    documents and plants in them; ``config``: one with the sections of examining
    and of these probes; ``called``: what the names of the stages begin
    with, where a run examines twice; ``check``: called with what each probe asks, by its name,
    before a model is asked anything; what it raises ends the run."""

    references = {probe.name: reference_of(probe, settings_of(config, probe)) for probe in probes}

    def of(probe: Probe, step: str) -> Artifact | None:
        return made.get(f"{probe.name}_{step}")

    def asked(probe: Probe) -> Artifact:
        given = [tables[name] if name in probe.corpus else None for name in tables]
        stage = ASK[probe.name].named(f"{called}{probe.name}_ask", "ask")
        return stage(checkpoint, *given, settings_of(config, probe))

    def answered(probe: Probe) -> Artifact:
        stage = respond.named(f"{called}{probe.name}_respond", "respond")
        return stage(checkpoint, of(probe, "ask"), settings_of(config, probe, "respond"))

    def floor(probe: Probe) -> Artifact | None:
        stage = respond_untrained.named(f"{called}{probe.name}_floor", "floor")
        needed = probe.floor(settings_of(config, probe))
        settings = settings_of(config, probe, "floor")
        return stage(checkpoint, of(probe, "ask"), settings) if needed else None

    def scored(probe: Probe) -> Artifact | None:
        stage = score.named(f"{called}{probe.name}_score", "score")
        asking = settings_of(config, probe, "score")
        return stage(of(probe, "ask"), of(probe, "respond"), asking) if probe.scored else None

    def floor_scored(probe: Probe) -> Artifact | None:
        stage = score.named(f"{called}{probe.name}_floor_score", "score")
        untrained = of(probe, "floor")
        asking = settings_of(config, probe, "floor_score")
        return stage(None, untrained, asking) if untrained else None

    def traced(probe: Probe) -> Artifact | None:
        settings = settings_of(config, probe, "trace")
        known = settings.enabled and all(part is not None for part in read)
        if not (probe.traced and known):
            return None
        stage = trace.named(f"{called}{probe.name}_trace", "trace")
        return stage(of(probe, "ask"), of(probe, "respond"), *read, settings)

    def referred(probe: Probe) -> Artifact | None:
        stage = refer.named(f"{called}{probe.name}_reference", "reference")
        answers = of(probe, "ask"), of(probe, "respond")
        other = references[probe.name]
        return stage(other, *answers, settings_of(config, probe, "reference")) if other else None

    def judged(probe: Probe) -> Artifact:
        dated = read[:2] if probe.dated else (None, None)
        answers = (of(probe, step) for step in ("ask", "respond", "score"))
        beside = (of(probe, step) for step in ("floor", "floor_score", "trace", "reference"))
        stage = JUDGE[probe.name].named(f"{called}audit_{probe.name}", "judge")
        return stage(*answers, *dated, *beside, settings_of(config, probe))

    steps: dict[str, Step] = {"ask": asked, "respond": answered, "floor": floor, "score": scored,
                              "floor_score": floor_scored, "trace": traced,
                              "reference": referred}  # fmt: skip
    for step, run in steps.items():
        for probe in (probe for probe in probes if probe.name not in failed):
            with told(failed, probe.name):
                left = run(probe)
                made |= {f"{probe.name}_{step}": left} if left else {}
        if step == "ask":
            asked_of = ((probe.name, of(probe, "ask")) for probe in probes)
            check({name: artifact for name, artifact in asked_of if artifact})
    found: dict[str, Artifact] = {}
    for probe in (probe for probe in probes if probe.name not in failed):
        with told(failed, probe.name):
            found[probe.name] = judged(probe)
    return found


def with_files(config: Any, only: Sequence[str]) -> list[Probe]:
    """The audits among ``only`` that run and whose settings name files of the user."""
    return [
        probe
        for probe in PROBES
        if probe.name in only
        and not probe.lacks(settings := settings_of(config, probe))
        and any(external_paths(settings))
    ]


def check_files(config: Any, only: Sequence[str]) -> None:
    """Refuse audits that name a file or folder that does not exist, before anything is trained.

    Args:
        config: The config of the run.
        only: Names of the audits that it comes to.
    """
    probes = with_files(config, only)
    sections = [f"audit_{probe.name}" for probe in probes]
    if any(probe.scored for probe in PROBES if probe.name in only):
        sections.append("score")
    for section in sections:
        for named in external_paths(getattr(config, section), section):
            if not os.path.exists(named.path):
                raise UsageError(
                    f"{named.setting}: there is no file or folder {named.path!r}; correct the "
                    f"path, or leave the setting out"
                )
    for probe in probes:
        reference_of(probe, settings_of(config, probe))


def check_items(config: Any, tokenizer: Artifact, only: Sequence[str]) -> None:
    """Refuse audits whose files do not hold what they ask about, before a model is trained.

    Args:
        config: The config of the run.
        tokenizer: The tokenizer of the model, or the checkpoint from which training goes on.
        only: Names of the audits that it comes to.

    Raises:
        UsageError: As the audit would raise it after the training.
    """
    probes = with_files(config, only)
    if not probes:
        return
    from tasks.audits.subjects.own_reader import OwnReader, open_tokenizer

    reader: Reader
    if tokenizer.stage == "checkpoint":
        reader = open_reader(tokenizer)
    else:
        opened = open_tokenizer(tokenizer.path("tokenizer.json").parent)
        sizes = {"vocab_size": opened.get_vocab_size(), "context": config.pack.context}
        model = replace(config.pretrain.model, **sizes)
        reader = OwnReader(model, False, opened, "the model to be trained")
    for probe in probes:
        if "plants" in probe.corpus:  # it asks about the corpus; its folder is a model
            continue
        try:
            probe.ask(Questions(), reader, Corpus(), settings_of(config, probe))
        except UsageError as error:
            raise UsageError(f"audit_{probe.name}: {error}") from error
        except HallmarkError as error:  # the card says it, if it is still so
            log.warning("audit_%s: %s", probe.name, error)


def names_of(probes: Sequence[Probe]) -> dict[str, str]:
    """What a run calls each stage of these probes, and the stage that it is."""
    return {
        f"{probe.name}_{step}": stage.name
        for probe in probes
        for step, stage in {"ask": ASK[probe.name], **SHARED}.items()
    }


def reference_of(probe: Probe, settings: Any) -> Artifact | None:
    """The model that reads what another wrote, where the settings name one."""
    folder = probe.reference(settings)
    known = resolve_folder(str(folder)) if folder else None
    if folder and known is None:
        raise UsageError(f"audit_{probe.name}.reference: there is no folder {folder}")
    return known.checkpoint if known else None


def settings_of(config: Any, probe: Probe, step: str = "judge") -> Any:
    """What a step of a probe runs with: its own settings, or those that probes share."""
    if step in ("score", "floor_score"):
        return config.score.of(probe.heads)
    if step in ("respond", "floor", "reference"):
        return config.respond
    return config.trace if step == "trace" else getattr(config, f"audit_{probe.name}")


def settings_by_label(config: Any) -> dict[str, Any]:
    """What each stage of a run with this config runs with, by what the run calls it."""
    sections = dict(config)
    # These take theirs from the section of another stage.
    if "find_personal_data" in sections:
        sections["evaluate_detectors"] = sections["find_personal_data"]
    if "audit_capability" in sections:
        sections["capability_baselines"] = sections["audit_capability"].of_baselines
    return sections | {
        f"{probe.name}_{step}": settings_of(config, probe, step)
        for probe in PROBES
        if f"audit_{probe.name}" in sections
        for step in ("ask", *SHARED)
    }


@contextmanager
def told(failed: dict[str, str], part: str) -> Iterator[None]:
    """What goes wrong within is a line of the card, and no end of the run; but what is wrong with
    the command or the config is."""
    try:
        yield
    except UsageError:
        raise
    except HallmarkError as error:
        failed[part] = str(error)
        log.warning("%s failed: %s", part, error)
