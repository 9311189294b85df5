"""Test which stages an edit of the code reruns, by the digests of code and libraries.

(A setting that removes no other documents, and a renamed file:
tests/tasks/corpus/test_input_independence.py.)
"""

import shutil
from importlib import import_module

import pytest

from hallmark.flows.flow_registry import register_all_stages
from hallmark.tasks.audits import registry
from hallmark.tasks.contract import PROJECT_ROOT, STAGES
from hallmark.tasks.contract import code_digests as module
from hallmark.tasks.contract.fingerprint import compute_fingerprint
from tests.tasks.contract.code_caches import clear_code_caches

register_all_stages()
OURS = {
    name: stage for name, stage in STAGES.items() if stage.body.__module__.startswith("hallmark.")
}
CARDS = {"datasheet", "model_card", "task_card", "study_card", "removal_experiment_card"}
#: The stages of a study, of a proof and of a comparison with the previous release that estimate.
ESTIMATING = {"judge_candidates", "error_rates", "compare_arms", "compare_with_previous"}
PROBES = {probe.name for probe in registry.PROBES}
REQUESTS = {f"build_requests_{name}" for name in PROBES}
#: Who counts words of lists in texts of the corpus and of a model.
COUNTERS = {"build_requests_amplification", "audit_amplification"}
AUDITS = {"audit_capability", *(f"audit_{name}" for name in PROBES)}
UNTRAINED = {"respond_untrained", "respond_untrained_models"}
RESPONDING = {"respond", *UNTRAINED, "score_with_reference", "attention_maps"}
TRAINING = {"pretrain", "finetune", "capability_baselines"}
#: These train or ask a model and estimate in one stage.
ASKING_AND_ESTIMATING = {"audit_capability", "finetune"}
MODEL_RUNNING = RESPONDING | TRAINING | ASKING_AND_ESTIMATING


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Copy the project's packages, and compute the fingerprint of every stage's code."""
    folder = tmp_path_factory.mktemp("project")
    for package in module.PROJECT_PACKAGES:
        unread = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT_ROOT / package, folder / package, ignore=unread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROJECT_ROOT", folder)
        yield folder, compute_code_fingerprints()
    clear_code_caches()


def digests(stage):
    """Compute the digests of a stage's code in the current PROJECT_ROOT."""
    body_module = stage.get_body_module()
    present_file = module.find_module_file(body_module.module_name)
    return module.compute_reached_code_digests(
        stage.list_body_and_extra_code_names(), body_module._replace(path=present_file)
    )


def compute_code_fingerprints():
    """Compute for each stage the part of its fingerprint that depends on code and libraries."""
    clear_code_caches()
    return {
        name: compute_fingerprint(
            {"code": digests(stage), "libraries": stage.read_library_versions()}
        )
        for name, stage in OURS.items()
    }


def find_changed_stages(before):
    """Return the stages whose code fingerprint differs from an earlier one."""
    after = compute_code_fingerprints()
    return {name for name in OURS if after[name] != before[name]}


def test_copy_has_the_fingerprints_of_the_project(tree):
    clear_code_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROJECT_ROOT", PROJECT_ROOT)
        assert compute_code_fingerprints() == tree[1]
    assert len(OURS) >= 18
    assert OURS["ingest"].compute_code_digests().keys() > {
        "hallmark.tasks.corpus.ingest",
        "hallmark.tasks.corpus.reading.records",
    }


EDITS = {
    "a comment": ("tasks/corpus/redact_spans.py", "KEEP", "# A comment.\nKEEP", set()),
    "a docstring": (
        "tasks/corpus/split.py",
        '"""Return the split of each document, which depends on its cluster alone."""',
        '"""Other words."""',
        set(),
    ),
    "a word list": (
        "tasks/measures/data/identities.json",
        "{",
        '{"edited": ["edited"],',
        {
            "identities",
            "record_lexicons",
            "removal_effects",
            "profile",
            "build_requests_toxicity",
            "audit_toxicity",
        }
        | COUNTERS,
    ),
    "the list of occupations": (
        "tasks/measures/data/occupations.json",
        '"accountant"',
        '"edited", "accountant"',
        {"profile"} | COUNTERS,
    ),
    "a kernel": (
        "tasks/corpus/copies/matching.py",
        "return intersection_sizes / (summed_sizes - intersection_sizes)",
        "return intersection_sizes / (summed_sizes - intersection_sizes + 0)",
        {"evaluate_near_duplicates", "deduplicate_near", "removal_effects"},
    ),
    "a kernel that some stages use": (
        "tasks/corpus/split.py",
        "return (mixed >> np.uint64(11)) * 2.0**-53",
        "return (mixed >> np.uint64(12)) * 2.0**-52",
        {
            "split",
            "plant_canaries",
            "profile",
            "select",
            "score_toxicity",
            "removal_effects",
            "leave_out",
            "synthetic_corpus",
        },
    ),
    "the contract": (
        "tasks/contract/table_writers.py",
        "MAX_ROW_GROUP_ROWS = 4096",
        "MAX_ROW_GROUP_ROWS = 8192",
        set(),
    ),
    "a template": ("reports/page/templates/card.html", "KEEP", "<!-- edited -->KEEP", set()),
    "a template of the site": ("reports/page/templates/site_run.html", "KEEP", "<p>KEEP", set()),
    "a stylesheet": ("reports/page/templates/style.css", "KEEP", "a { color: red }\nKEEP", set()),
    "a constant that nothing uses": (
        "tasks/measures/statistics.py",
        "KEEP",
        "KEEP\nEDITED = 1\n",
        set(),
    ),
    "an estimator": (
        "tasks/measures/estimates.py",
        "def _mean_interval(",
        "def _mean_interval(*_, ",
        AUDITS | ESTIMATING | {"finetune", "removal_effects"},
    ),
    "an estimator in a file of many": (
        "tasks/measures/statistics.py",
        "if n >= draws else math.nan",
        "if n > draws else math.nan",
        {"audit_toxicity"},
    ),
    "an estimator of one audit": (
        "tasks/measures/log_odds.py",
        "return np.log((k + 0.5)",
        "return np.log((k + 0.25)",
        {"audit_amplification"},
    ),
    "what a probe asks": (
        "tasks/audits/probes/toxicity.py",
        "repeated_prompts",
        "repeated_questions",
        {"build_requests_toxicity", "audit_toxicity"},
    ),
    "what a probe computes": (
        "tasks/audits/probes/toxicity.py",
        "score_items=score_items",
        "score_items=build_requests",
        {"audit_toxicity"},
    ),
    "what asks a model": (
        "tasks/audits/inference.py",
        "def _generate_texts(",
        "def _generate_texts(*_, ",
        {"respond", *UNTRAINED},
    ),
    "a training loop": (
        "model/training/trainer.py",
        'return "bf16" if',
        'return "bf-16" if',
        {"pretrain", "finetune"},
    ),
    "attention": (
        "model/attention.py",
        "return self.attend_and_project(q, k, v, mask)",
        "return self.attend_and_project(q, k, v, mask) + 0",
        MODEL_RUNNING - {"capability_baselines"},
    ),
    "the flows": ("flows/pipeline.py", "KEEP", "KEEP\nEDITED = 1\n", set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edit_reruns_only_affected_stages(tree, edit):
    folder, before = tree
    name, old, new, expected = EDITS[edit]
    path = folder / name
    text = path.read_text(encoding="utf-8")
    if old == "KEEP":
        edited = new.replace("KEEP", text)
    else:
        assert text.count(old) >= 1
        edited = text.replace(old, new, 1)
    path.write_text(edited, encoding="utf-8")
    try:
        assert find_changed_stages(before) == expected
    finally:
        path.write_text(text, encoding="utf-8")


def test_additional_probe_reruns_no_stage(tree):
    """No list and no import names the probes; cards depend on the descriptions of all of them."""
    folder, before = tree
    path = folder / "tasks/audits/probes/planted.py"
    path.write_text((folder / "tasks/audits/probes/weat.py").read_text(encoding="utf-8"))
    try:
        assert find_changed_stages(before) == set()
    finally:
        path.unlink()


def test_another_contract_version_reruns_every_stage(tree, monkeypatch):
    monkeypatch.setattr("hallmark.tasks.contract.fingerprint.CONTRACT_VERSION", 10**6)
    assert find_changed_stages(tree[1]) == set(OURS)


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("pyarrow", set(OURS)),
        (
            "scipy",
            {
                "deduplicate",
                "deduplicate_near",
                "score_toxicity",
                "removal_effects",
                "profile",
                "evaluate_curation",
                "evaluate_detectors",
                "evaluate_near_duplicates",
                "model_card",
                "attention_maps",
            }
            | {"finetune", "attribute_texts", "attention_maps"}
            | ESTIMATING
            | AUDITS,
        ),
        (
            "phonenumbers",
            {"evaluate_detectors", "find_personal_data", "audit_extraction_attack", *CARDS},
        ),
        (
            "torch",
            {
                "pretrain",
                "finetune",
                "respond",
                *UNTRAINED,
                "score_with_reference",
                "attention_maps",
            }
            | {"audit_capability", "capability_baselines"},
        ),
        ("prefect", set()),
    ],
)
def test_another_library_version_reruns_stages_whose_output_depends_on_it(
    tree, monkeypatch, library, expected
):
    from hallmark.tasks.contract import fingerprint as versions

    there = versions.read_installed_version
    monkeypatch.setattr(
        versions, "read_installed_version", lambda name: "999" if name == library else there(name)
    )
    assert find_changed_stages(tree[1]) == expected


def test_stages_that_find_identity_terms_declare_the_lexicon():
    """The lexicon is not a module, so that no import shows the dependency."""
    clear_code_caches()
    for name, stage in OURS.items():
        code = stage.compute_code_digests()
        if "hallmark.tasks.measures.identities" in code:
            assert "tasks/measures/data/identities.json" in code, name


@pytest.fixture(scope="module")
def stages_by_module():
    """Return, for each module, the stages that an edit of it can rerun."""
    clear_code_caches()
    stages = {}
    for name, stage in OURS.items():
        for code_name in stage.compute_code_digests():
            stages.setdefault(code_name, set()).add(name)
    return stages


def list_modules(*folders):
    """List the modules of folders of the project, with their packages and subfolders."""
    return sorted(
        ".".join(("hallmark", *path.relative_to(PROJECT_ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for folder in folders
        for path in (PROJECT_ROOT / folder).rglob("*.py")
    )


@pytest.mark.parametrize("name", list_modules("model/training"))
def test_edit_of_trainer_affects_few_stages(stages_by_module, name):
    stages = stages_by_module.get(name, set())
    assert stages <= TRAINING | {"pack", "pad_removed_documents", "trace", "reconstruct_reads"}
    assert len(stages) <= 8


#: Modules of the model that say what a checkpoint or a packed row consists of, and the stages that
#: read them without running the model.
READERS_BY_MODULE = {
    "hallmark.model": set(OURS),  # environment variables that decide the last bits of products
    "hallmark.model.config": REQUESTS,
    "hallmark.model.config_checks": REQUESTS,
    "hallmark.model.interchange.checkpoint": REQUESTS,
    "hallmark.model.special_tokens": REQUESTS
    | {"train_tokenizer", "pack", "pad_removed_documents"},
    "hallmark.model.keyed_randomness": {"pack", "trace", "reconstruct_reads"},
}


@pytest.mark.parametrize(
    "name",
    [name for name in list_modules("model") if not name.startswith("hallmark.model.training")],
)
def test_edit_of_model_affects_stages_that_run_it(stages_by_module, name):
    readers = READERS_BY_MODULE.get(name, set())
    assert stages_by_module.get(name, set()) <= MODEL_RUNNING | readers


ESTIMATORS = [
    *list_modules("tasks/audits/judging"),
    *(
        f"hallmark.tasks.measures.{name}"
        for name in (
            "agreement",
            "contrasts",
            "detectable_effects",
            "effect_sizes",
            "estimates",
            "log_odds",
            "multiple_testing",
            "prevalence",
            "proportions",
            "rate_ratios",
            "reference_maxima",
            "roc",
            "slopes",
            "statistics",
        )
    ),
]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_edit_of_estimator_affects_neither_requests_nor_models(stages_by_module, name):
    stages = stages_by_module.get(name, set())
    assert stages or name == "hallmark.tasks.audits.judging"
    assert not stages & REQUESTS
    assert stages & MODEL_RUNNING <= ASKING_AND_ESTIMATING


@pytest.mark.parametrize("name", sorted(PROBES))
def test_edit_of_probe_affects_its_own_stages(stages_by_module, name):
    probe = next(probe for probe in registry.PROBES if probe.name == name)
    assert stages_by_module[probe.module] == {f"build_requests_{name}", f"audit_{name}"}


def test_stages_of_a_probe_depend_on_its_definition():
    """Check that they name ``build_requests``, ``ITEMS`` and ``PROBE`` of its module."""
    for probe in registry.PROBES:
        names = vars(import_module(probe.module))
        assert probe.build_requests is names["build_requests"]
        assert probe.item_schema is names["ITEMS"]
        assert probe is names["PROBE"]


def test_new_probe_affects_no_other_audit(tree):
    """Stages that show the descriptions of audits depend on them by their digest."""
    folder, before = tree
    probe = folder / "tasks" / "audits" / "probes" / "new.py"
    shutil.copy(probe.with_name("bias.py"), probe)
    try:
        assert find_changed_stages(before) == set()
    finally:
        probe.unlink()
