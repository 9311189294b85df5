"""The whole system on one screen: raw text to an audited model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import flow

from flows.config import Config
from flows.examining import check_files, check_items, examine_by, settings_of, told
from flows.growing import Earlier, earlier_of
from flows.origin import lasting, resolve, trainings
from flows.proving import behind_of
from flows.rates import rates_of
from flows.recording import begin, flow_run_name
from flows.rules import check_slices
from flows.runs import Run, open_run
from reports.datasheet import datasheet
from reports.model_card import model_card
from reports.proof_card import ProofCardConfig, proof_card
from reports.task_card import task_card
from tasks.audits.ability.attention_maps import attention_maps
from tasks.audits.ability.capability import audit_capability
from tasks.audits.ability.capability_baselines import capability_baselines
from tasks.audits.ability.texts import check_held_out
from tasks.audits.about import AUDITS
from tasks.audits.catalogue import PROBES
from tasks.audits.failures import FailuresConfig, failures
from tasks.audits.judging.policy import policy
from tasks.audits.proofs.behind import BehindConfig, behind
from tasks.audits.proofs.proof import proof
from tasks.audits.score_samples import score_samples
from tasks.contract import Artifact, HallmarkError, Table, UsageError, current_session
from tasks.corpus.contamination import contamination
from tasks.corpus.deduplicate import deduplicate
from tasks.corpus.deduplicate_near import deduplicate_near
from tasks.corpus.effects import effects
from tasks.corpus.evaluate_detectors import evaluate_detectors
from tasks.corpus.find_personal_data import find_personal_data
from tasks.corpus.find_repeats import find_repeats
from tasks.corpus.find_toxic import find_toxic
from tasks.corpus.identities import identities
from tasks.corpus.ingest import ingest
from tasks.corpus.language import language
from tasks.corpus.leave_out import leave_out
from tasks.corpus.plant import plant
from tasks.corpus.profile import profile
from tasks.corpus.quality import quality
from tasks.corpus.reading.inputs import towns_of
from tasks.corpus.recovery import recovery
from tasks.corpus.score_toxicity import score_toxicity
from tasks.corpus.scrub import scrub
from tasks.corpus.select import select
from tasks.corpus.split import split
from tasks.training.blank import blank
from tasks.training.finetune import finetune as finetune_model
from tasks.training.pack import pack
from tasks.training.pretrain import pretrain as pretrain_model
from tasks.training.train_tokenizer import train_tokenizer

deduplicate_masked = deduplicate.named("deduplicate_masked")  # masking makes new duplicates
select_scored = select.named("select_scored")
cut_repeats = scrub.named("cut_repeats")
cut_toxic = scrub.named("cut_toxic")


#: Of a corpus what the page of a proof shows documents, and masks them, by.
SHOWN = ("find_personal_data", "score_toxicity", "plant")


def of(earlier: Earlier, *labels: str) -> dict[str, Artifact]:
    """What these stages left of the additions before this one, oldest first."""
    numbered = enumerate(earlier, 1)
    return {f"{label} {n}": made[label] for n, made in numbered for label in labels}


def whole(earlier: Earlier, made: dict[str, Artifact], label: str = "plant") -> list[Artifact]:
    """The documents of a corpus, or what a stage says of them: of its earlier additions, and of
    the last one."""
    return [addition[label] for addition in (*earlier, made)]


def curate(config: Config, earlier: Earlier = ()) -> dict[str, Artifact]:
    """Raw text to a corpus with its datasheet, or to an addition to ``earlier`` ones."""
    made: dict[str, Artifact] = {}
    made["ingest"] = raw = ingest(config.ingest)
    made["deduplicate"] = unique = deduplicate(raw, of(earlier, "deduplicate"), config.deduplicate)
    made["language"] = spoken = language(unique, config.language)
    made["quality"] = figures = quality(unique, config.quality)
    made["identities"] = mentioned = identities(unique, config.identities)
    signals = {"language": spoken, "quality": figures, "identities": mentioned}
    made["select"] = chosen = select(unique, signals, config.select)
    before = of(earlier, "deduplicate_near")
    made["deduplicate_near"] = apart = deduplicate_near(chosen, before, config.deduplicate_near)
    if config.find_repeats.enabled:
        made["find_repeats"] = repeats = find_repeats(apart, before, config.find_repeats)
        made["cut_repeats"] = apart = cut_repeats(apart, {"repeats": repeats}, config.cut_repeats)
    made["evaluate_detectors"] = evaluate_detectors(config.find_personal_data)
    made["find_personal_data"] = found = find_personal_data(apart, config.find_personal_data)
    made["scrub"] = scrubbed = scrub(apart, {"personal": found}, config.scrub)
    before = of(earlier, "deduplicate_masked")
    made["deduplicate_masked"] = masked = deduplicate_masked(
        scrubbed, before, config.deduplicate_masked
    )
    made["score_toxicity"] = scores = score_toxicity(masked, spoken, config.score_toxicity)
    made["contamination"] = shared = contamination(masked, config.contamination)
    signals = {"toxicity": scores, "contamination": shared}
    made["select_scored"] = kept = select_scored(masked, signals, config.select_scored)
    if config.find_toxic.enabled:
        made["find_toxic"] = toxic = find_toxic(kept, scores, config.find_toxic)
        made["cut_toxic"] = kept = cut_toxic(kept, {"toxic": toxic}, config.cut_toxic)
    made["split"] = parted = split(kept, config.split)
    filtered = dict(made)  # what is held back for planting was silenced by no filter
    made["plant"] = plant(parted, config.plant)
    history, documents, before = dict(made), whole(earlier, made), of(earlier, "ingest", "language")
    made["profile"] = profiled = profile(documents, documents, history, before, config.profile)
    made["effects"] = history["effects"] = effects(masked, filtered, config.effects)
    if towns_of(config.ingest):  # their truth is known
        known = {**history, "profile": profiled}
        made["recovery"] = history["recovery"] = recovery(known, config.recovery)
    history = {**of(earlier, "ingest", "plant"), **history}
    made["datasheet"] = datasheet(profiled, history, config.datasheet)
    return made


def train(
    config: Config,
    corpus: dict[str, Artifact],
    start: Artifact | None = None,
    earlier: Earlier = (),
    audits: Sequence[str] = (),
) -> dict[str, Artifact]:
    """A corpus to a tokenizer, packed sequences and a trained model with its checkpoints; or, from
    the checkpoint ``start``, whose tokenizer it keeps, to a model trained on. ``audits``: those
    that follow, whose files are read before the training."""
    made: dict[str, Artifact] = {}
    documents, mentioned = whole(earlier, corpus), whole(earlier, corpus, "identities")
    read = documents
    out = config.leave_out
    if out.enabled:  # of training alone: tokenizer and audits are those of all
        made["leave_out"] = left = leave_out(corpus["plant"], out)
        read = read if out.padding else [left]
    if start is None:
        made["train_tokenizer"] = train_tokenizer(documents, mentioned, config.train_tokenizer)
    tokenizer = start or made["train_tokenizer"]
    check_items(config, tokenizer, audits)
    made["pack"] = packed = pack(read, tokenizer, config.pack)
    if out.padding:  # what is left stays where it is
        made["blank"] = packed = blank(packed, left, left, tokenizer)
    made["pretrain"] = pretrain_model(packed, tokenizer, read, mentioned, start, config.pretrain)
    return made


def examine(
    config: Config,
    checkpoint: Artifact,
    only: Sequence[str],
    corpus: dict[str, Artifact] | None = None,
    pretrained: Artifact | None = None,
    earlier: Earlier = (),
) -> dict[str, Artifact]:
    """A checkpoint to audits and a model card; without a corpus what can be measured without."""
    documents = whole(earlier, corpus) if corpus else None
    brought = (corpus or {}).get("identities")  # with the groups of its lexicons
    tables = {"lexicons": brought, "plants": documents, "documents": documents}
    known = trainings(checkpoint, pretrained)
    held = [*documents, *known.planted(documents)] if documents and known else documents
    read = (*(known or (None, None, None)), held, held)
    audits: dict[str, Artifact] = {}
    made: dict[str, Artifact] = {}
    failed: dict[str, str] = {}

    def check_and_measure_capability(asked: dict[str, Artifact]) -> None:
        """Refuse rules about slices that do not exist; then ask the model, this audit first."""
        check_slices(config, probes, asked)
        if documents and "capability" in only:
            with told(failed, "capability"):
                settings = config.audit_capability
                beside = capability_baselines(checkpoint, documents, settings.of_baselines)
                audits["capability"] = audit_capability(checkpoint, documents, beside, settings)

    # Of those whose files are not named the card says that they did not run.
    probes = [p for p in PROBES if p.name in only and not p.lacks(settings_of(config, p))]
    audits |= examine_by(probes, checkpoint, tables, read, config, made, failed,
                         check=check_and_measure_capability)  # fmt: skip
    if not audits:
        why = next(iter(failed.values()), f"{', '.join(only)}: {lacking(config, only)}")
        raise (HallmarkError if failed else UsageError)(why)
    made |= {f"audit_{name}": artifact for name, artifact in audits.items()}
    if config.policy.rules:
        made["policy"] = policy(audits, config.policy)
    with told(failed, "attention_maps"):
        made["attention_maps"] = attention_maps(checkpoint, config.attention_maps)
    if pretrained:
        made["score_samples"] = score_samples(pretrained, config.score_samples)
    if failed:
        made["failures"] = failures(FailuresConfig(audits=failed))
    made["model_card"] = model_card(
        checkpoint, pretrained, made_of(pretrained, "tokenizer", train_tokenizer.name), audits,
        {**of(earlier, "plant"), **(corpus or {})}, made.get("attention_maps"),
        made.get("score_samples"), made.get("policy"), made.get("failures"),
        rates_of(current_session().store), config.model_card,
    )  # fmt: skip
    return made


def lacking(config: Config, only: Sequence[str]) -> str:
    """Why none of these audits can run."""
    missing = [
        f"audit_{probe.name}.{name}"
        for probe in PROBES
        if probe.name in only
        for name in probe.lacks(settings_of(config, probe))
    ]
    if missing:
        return f"needs files of yours; give their paths with --set {'=… --set '.join(missing)}=…"
    return "needs the training corpus, which this store lacks"


def made_of(pretrained: Artifact | None, part: str, stage: str | None = None) -> Artifact | None:
    """What a training was made of; None where it is not known, or another ``stage`` made it: the
    tokenizer may be a checkpoint's."""
    if pretrained is None or pretrained.store is None:
        return None
    by, _, digest = pretrained.manifest["lineage"][part].partition("/")
    return pretrained.store.find(by, digest) if stage in (None, by) else None


def audited(until: str | None) -> bool:
    """Whether a run that stops behind this stage comes to the audits."""
    stages = list(Config.model_fields)
    return until is None or stages.index(until) > stages.index("pretrain")


def up_to(until: str | None) -> tuple[str, ...]:
    """The audits of a run that stops behind this stage: none in vain."""
    names = [*AUDITS]
    last = until.removeprefix("audit_") if until else ""
    return tuple(names[: names.index(last) + 1] if last in names else names)


def check_audits(only: Sequence[str]) -> None:
    """UsageError unless these are names of audits, at least one."""
    unknown = [name for name in only if name not in AUDITS]
    if unknown or not only:
        what = f"there is no audit {', '.join(map(repr, unknown))}" if unknown else "none is named"
        raise UsageError(f"only {','.join(only)!r}: {what}; choose from {', '.join(AUDITS)}")


@flow(name="pipeline", flow_run_name=flow_run_name)
def pipeline(
    config: str | dict[str, Any] = "demo",
    overrides: Sequence[str] = (),
    until: str | None = None,
    start: str | None = None,
    store: str | None = None,
    only: Sequence[str] = tuple(AUDITS),
) -> str:
    """Raw text to an audited model: curate, train, examine. Returns the id of the run.

    ``start``: the checkpoint to go on from (continued pretraining), as ``audit`` takes it.
    ``store``: instead of the config's. ``only``: these audits.
    """
    check_audits(only)
    with begin("pipeline", config, overrides, until, start=start, store=store) as run:
        run.tell(only=None if {*only} == {*AUDITS} else [*only])
        names = [name for name in up_to(until) if name in only] if audited(until) else []
        check_files(run.config, names)
        begun = begun_from(run, start)
        earlier = earlier_of(run.store, run.config)
        corpus = curate(run.config, earlier)
        if audited(until):
            check_held_out(Table(tuple(whole(earlier, corpus)), "documents"))
        trained = train(run.config, corpus, begun, earlier, names)
        checkpoint = run.last_checkpoint(trained["pretrain"])
        corpus |= {label: trained[label] for label in ("leave_out",) if label in trained}
        examine(run.config, checkpoint, names, corpus, trained["pretrain"], earlier)
    return run.id


def begun_from(run: Run, start: str | None) -> Artifact | None:
    """The checkpoint that training goes on from, told by a name that it has tomorrow, too."""
    if start is None:
        return None
    subject = resolve(run.store, start)
    run.tell(checkpoint=lasting(run.store, subject, start))
    return subject.checkpoint


@flow(name="corpus", flow_run_name=flow_run_name)
def corpus(
    config: str | dict[str, Any] = "demo", overrides: Sequence[str] = (), store: str | None = None
) -> str:
    """Raw text to a corpus with its datasheet."""
    with begin("corpus", config, overrides, store=store) as run:
        curate(run.config, earlier_of(run.store, run.config))
    return run.id


@flow(name="pretrain", flow_run_name=flow_run_name)
def pretrain(
    config: str | dict[str, Any] = "demo",
    overrides: Sequence[str] = (),
    start: str | None = None,
    store: str | None = None,
) -> str:
    """Raw text to a trained model; the corpus stages come from the store where they can."""
    with begin("pretrain", config, overrides, start=start, store=store) as run:
        begun = begun_from(run, start)
        earlier = earlier_of(run.store, run.config)
        corpus = curate(run.config, earlier)
        run.last_checkpoint(train(run.config, corpus, begun, earlier)["pretrain"])
    return run.id


@flow(name="audit", flow_run_name=flow_run_name)
def audit(
    checkpoint: str,
    config: str | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = tuple(AUDITS),
    store: str | None = None,
) -> str:
    """Audit any checkpoint: one of ours, or a Hugging Face folder of a language model."""
    check_audits(only)
    with begin("audit", config, overrides, checkpoint=checkpoint, store=store) as run:
        subject = resolve(run.store, checkpoint)
        run.tell(checkpoint=lasting(run.store, subject, checkpoint), only=list(only))
        examine(run.config, subject.checkpoint, only, subject.corpus, subject.pretrained,
                subject.earlier)  # fmt: skip
    return run.id


@flow(name="prove", flow_run_name=flow_run_name)
def prove(
    config: dict[str, Any], arms: dict[str, str], cases: dict[str, Any], store: str | None = None
) -> str:
    """Set trainings side by side of which some lack the documents behind findings. ``arms``: their
    runs, that of the whole corpus ("base") first; ``cases``: the findings, as ``behind`` has them.
    """
    with begin("prove", config, store=store) as run:
        runs = {arm: open_run(name, run.store) for arm, name in arms.items()}
        base, traced = runs["base"], BehindConfig.model_validate(cases)
        named = [name for case in traced.cases for name in case.findings]
        seeds = sum(arm.startswith("seed") for arm in arms)
        run.tell(checkpoint=base.audited, arms=arms, findings=named, seeds=seeds)
        found = behind(*behind_of(base, traced), traced)
        audits = {
            f"{arm}/{name}": each[f"audit_{name}"]
            for arm, each in runs.items()
            for name in dict.fromkeys(case.audit for case in traced.cases)
        }
        trained = {arm: each["pretrain"] for arm, each in runs.items()}
        left = {arm: each["leave_out"] for arm, each in runs.items() if "leave_out" in each.stages}
        proved = proof(audits, trained, left, found, traced)
        corpus = {label: base[label] for label in SHOWN}
        card = ProofCardConfig(title=base.config.model_card.title)
        proof_card(proved, found, corpus, card)
    return run.id


@flow(name="finetune", flow_run_name=flow_run_name)
def finetune(
    checkpoint: str,
    config: str | dict[str, Any],
    overrides: Sequence[str] = (),
    store: str | None = None,
) -> str:
    """Fine-tune a checkpoint of ours on pairs, labelled texts or labelled words, to a card."""
    with begin("finetune", config, overrides, checkpoint=checkpoint, store=store) as run:
        if run.config.finetune is None:
            raise UsageError("the config has no section finetune, which says what to learn")
        subject = resolve(run.store, checkpoint)
        run.tell(checkpoint=lasting(run.store, subject, checkpoint))
        base = subject.checkpoint
        tuned = finetune_model(base, run.config.finetune)
        known = base if base.store else None  # a folder is no part of a store
        task_card(tuned, run.last_checkpoint(tuned), known, run.config.task_card)
    return run.id
