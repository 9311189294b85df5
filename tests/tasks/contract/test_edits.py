"""What an edit reruns: of every stage of the pipeline, told by its code and its libraries.

(A setting that removes nothing else and a renamed file: tests/tasks/corpus/test_order.py.)
"""

import shutil

import pytest

from hallmark.flows.flow_registry import register_all_stages
from hallmark.tasks.audits import registry
from hallmark.tasks.contract import PROJECT_ROOT, STAGES
from hallmark.tasks.contract import import_closure as module
from hallmark.tasks.contract.fingerprint import compute_fingerprint

register_all_stages()
OURS = {
    name: stage for name, stage in STAGES.items() if stage.body.__module__.startswith("hallmark.")
}
CARDS = {"datasheet", "model_card", "task_card", "study_card", "removal_experiment_card"}
#: The stages of a study and of a proof that estimate.
ESTIMATING = {"judge_candidates", "error_rates", "compare_arms"}
#: The stages that compose worlds.
WORLDS = {"world", "seal_answer_key"}
PROBES = {probe.name for probe in registry.PROBES}
#: Who counts words of lists in texts of the corpus and of a model.
COUNTERS = {"build_requests_amplification", "audit_amplification"}
AUDITS = {"attention_maps", "audit_capability", *(f"audit_{name}" for name in PROBES)}


def clear():
    for name in ("find_module_file", "read_python_source", "compute_code_digests"):
        getattr(module, name).cache_clear()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the project's packages, and what every stage's code is before any edit."""
    folder = tmp_path_factory.mktemp("project")
    for package in module.PROJECT_PACKAGES:
        unread = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT_ROOT / package, folder / package, ignore=unread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROJECT_ROOT", folder)
        yield folder, told()
    clear()


def told():
    """What of each stage decides its fingerprint beside its config and its inputs."""
    clear()
    found = {}
    for name, stage in OURS.items():
        source = module.find_module_file(stage.body.__module__)
        code = module.compute_code_digests(stage.body.__module__, source, stage.extra_code)
        found[name] = compute_fingerprint(
            {"code": code, "libraries": stage.read_library_versions()}
        )
    return found


def rerun(before):
    after = told()
    return {name for name in OURS if after[name] != before[name]}


def test_the_copy_is_read_as_the_project_is(tree):
    clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROJECT_ROOT", PROJECT_ROOT)
        assert told() == tree[1]
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
        {"identities", "removal_effects", "profile", "build_requests_toxicity", "audit_toxicity"}
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
        {"deduplicate_near", "removal_effects"},
    ),
    "a kernel that some stages use": (
        "tasks/corpus/split.py",
        "return (mixed >> np.uint64(11)) * 2.0**-53",
        "return (mixed >> np.uint64(12)) * 2.0**-52",
        {"split", "plant_canaries", "select", "score_toxicity", "removal_effects", "leave_out"}
        | WORLDS,
    ),
    "the contract": (
        "tasks/contract/table_writers.py",
        "MAX_ROW_GROUP_ROWS = 4096",
        "MAX_ROW_GROUP_ROWS = 8192",
        set(),
    ),
    "a template": ("reports/page/templates/card.html", "KEEP", "<!-- edited -->KEEP", CARDS),
    "a template of the site": ("reports/page/templates/site_run.html", "KEEP", "<p>KEEP", set()),
    "a stylesheet": ("reports/page/templates/style.css", "KEEP", "a { color: red }\nKEEP", CARDS),
    "the statistics": (
        "tasks/measures/statistics.py",
        "KEEP",
        "KEEP\nEDITED = 1\n",
        # What is asked stays the same, so nobody is asked again.
        (AUDITS - {"attention_maps"})
        | {f"build_requests_{name}" for name in PROBES}
        | ESTIMATING
        | {"find_source_documents", "removal_experiment_card"}
        | {
            "removal_effects",
            "profile",
            "evaluate_curation",
            "evaluate_detectors",
            "finetune",
        },
    ),
    "a probe": (
        "tasks/audits/probes/toxicity.py",
        "KEEP",
        "KEEP\nEDITED = 1\n",
        {"build_requests_toxicity", "audit_toxicity"},
    ),
    "what asks a model": (
        "tasks/audits/inference.py",
        "KEEP",
        "KEEP\nEDITED = 1\n",
        {"respond", "respond_untrained", "score_with_reference"},
    ),
    "the flows": ("flows/pipeline.py", "KEEP", "KEEP\nEDITED = 1\n", set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_reruns_these_stages_and_no_other(tree, edit):
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
        assert rerun(before) == expected
    finally:
        path.write_text(text, encoding="utf-8")


def test_another_probe_makes_no_stage_stale(tree):
    """No list names the probes, and no import; cards depend on the descriptions of all of them."""
    folder, before = tree
    path = folder / "tasks/audits/probes/planted.py"
    path.write_text((folder / "tasks/audits/probes/weat.py").read_text(encoding="utf-8"))
    try:
        assert rerun(before) == set()
    finally:
        path.unlink()


def test_another_number_of_the_contract_reruns_every_stage(tree, monkeypatch):
    monkeypatch.setattr("hallmark.tasks.contract.fingerprint.CONTRACT_VERSION", 10**6)
    assert rerun(tree[1]) == set(OURS)


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
                "model_card",
            }
            | {"finetune", "attribute_texts"}
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
                "respond_untrained",
                "score_with_reference",
                "attention_maps",
            }
            | {"audit_capability", "capability_baselines"},
        ),
        ("prefect", set()),
    ],
)
def test_another_version_of_a_library_reruns_whose_output_it_decides(
    tree, monkeypatch, library, expected
):
    from hallmark.tasks.contract import fingerprint as versions

    there = versions.read_installed_version
    monkeypatch.setattr(
        versions, "read_installed_version", lambda name: "999" if name == library else there(name)
    )
    assert rerun(tree[1]) == expected


def test_whoever_finds_identity_terms_names_their_list():
    """The list is no module: an import does not show it."""
    clear()
    for name, stage in OURS.items():
        digests = stage.compute_code_digests()
        if "hallmark.tasks.measures.identities" in digests:
            assert "tasks/measures/data/identities.json" in digests, name
