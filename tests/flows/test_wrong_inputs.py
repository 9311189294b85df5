"""Wrong inputs on the command line: one sentence with the place and a remedy, and the exit code."""

import re

import pytest

from tests.flows.conftest import Hallmark

#: Files of the folder in which the commands run; a folder has None as its text.
FILES = {
    "answers/empty.toml": b'motivation_purpose = "  "\n',
    "answers/broken.toml": b"motivation_purpose = \n",
    "answers/latin1.toml": 'motivation_purpose = "café"\n'.encode("latin1"),
    "answers/list.toml": b'motivation_purpose = ["To test"]\n',
    "answers/table.toml": b'[motivation_purpose]\ntext = "To test"\n',
    "answers/twice.toml": b'motivation_purpose = "A"\nmotivation_purpose = "B"\n',
    "answers/unknown.toml": b'motivation_purpos = "To test"\n',
    "broken.toml": b"name = \n",
    "empty.toml": b"",
    "deep.toml": b'name = "deep"\n' + b".".join([b"a"] * 20_000) + b" = 1\n",
    "folder.toml": None,
    "latin1.toml": 'name = "café"\n'.encode("latin1"),
    "letters.csv": b"txt,id\nWords of a corpus.,1\n",
    "letters.toml": b'name = "letters"\n[[ingest.sources]]\nkind = "csv"\nname = "letters"\n'
    b'path = "letters.csv"\n',
    "hellaswag.jsonl": b'{"ctx": "A man sits.", "endings": {"0": "He leaves."}}\n',
    "model/config.json": b"{",
    "moved.toml": b'name = "moved"\n[[ingest.sources]]\nkind = "csv"\nname = "moved"\n'
    b'path = "no/such.csv"\n',
    "nothing": None,
    "plain": b"text",
}

#: Words of Python or of libraries that no user must read.
PRIVATE_WORDS = re.compile(r"Traceback|Errno|pydantic|<class|NoneType|cyclopts|tomllib|object at")


def rule(**settings):
    return "policy.rules.r=" + str(settings | {"lt": 1}).replace("': ", "' = ").replace('"', "'")


def answers(name):
    return ["run", "smoke", "--set", f"answers.file=answers/{name}.toml"]


WRONG_INPUTS = [
    # Commands, options and their values
    (["statsu"], 'Unknown command "statsu". Did you mean "status"?'),
    (["run", "smoke", "--untl", "pack"], "--untl"),
    (["run", "smoke", "--until"], "--until"),
    (["run", "smoke", "more"], "Unexpected argument: more. See: hallmark --help"),
    (["batch", "--step", "1.5"], "'1.5' is not a whole number. See: hallmark --help"),
    (["batch", "--step", "x"], "'x' is not a whole number"),
    (["runs", "--status", "done"], '"done"'),
    (["generate", "latest", "x", "--precision", "fp8"], '"fp8"'),
    (["audit"], "--checkpoint requires an argument"),
    (["finetune", "latest"], "--config"),
    # Configs
    (
        ["run", "dmeo"],
        "there is no config 'dmeo' (did you mean demo?); specify the path of a .toml",
    ),
    (["run", "leters.toml"], "(did you mean letters.toml?); specify the path of a .toml file"),
    (["run", "folder.toml"], "config folder.toml: the file cannot be read (Is a directory"),
    (["run", "nothing"], "there is no config 'nothing'"),
    (["run", "broken.toml"], "config broken.toml: the file is not valid TOML (Invalid value (at"),
    (["run", "deep.toml"], "config deep.toml: the content is nested too deeply"),
    (
        ["run", "latin1.toml"],
        "config latin1.toml: the file is not UTF-8 text (invalid at byte 12); save it",
    ),
    (["run", "empty.toml"], "config empty.toml: name: is missing; "),
    (
        ["run", "smoke", "--set", "workers"],
        "--set 'workers': write the setting as section.key=value",
    ),
    (["run", "smoke", "--set", "workers=-1"], "workers: must be greater than or equal to 1"),
    (["run", "smoke", "--set", "workers=two"], "workers: must be a whole number (given: 'two')"),
    (["run", "smoke", "--set", "pretrian.train.steps=3"], "there is no such key (did you mean pre"),
    (["run", "smoke", "--set", "pretrain.train.stepz=3"], "there is no such key (did you mean st"),
    (["run", "smoke", "--set", "pretrain.train.steps=-3"], "pretrain.train"),
    (
        ["run", "smoke", "--set", "pretrain.train.schedule=cosin"],
        "(given: 'cosin') (did you mean cosine?)",
    ),
    (["run", "smoke", "--set", "ingest.sources.0.kind=cvs"], "(given: 'cvs') (did you mean csv?)"),
    (["run", "smoke", "--set", "ingest.sources.7.name=x"], "'7' is not an index of a list of 2"),
    (["run", "smoke", "--set", "name.x=1"], "'name' is a value, not a section"),
    # Answers to questions of the cards
    (answers("missing"), "answers.file: there is no file 'answers/missing.toml'"),
    (["run", "smoke", "--set", "answers.file=nothing"], "answers.file: 'nothing' is a folder"),
    (["run", "smoke", "--set", "answers.file=absent"], "answers.file: there is no file 'absent'"),
    ([*answers("missing"), "--dry-run"], "answers.file: there is no file 'answers/missing.toml'"),
    (answers("broken"), "answers/broken.toml is not valid TOML (Invalid value (at line 1"),
    (answers("twice"), "is not valid TOML (a question is answered twice (at line 2"),
    (
        answers("latin1"),
        "answers/latin1.toml is not UTF-8 text (invalid at byte 26); save it as UTF-8",
    ),
    (answers("unknown"), "no question 'motivation_purpos' (did you mean motivation_purpose?);"),
    (answers("empty"), "the answer to motivation_purpose is empty; write an answer or remove"),
    (answers("list"), "motivation_purpose must be quoted text, but its type is"),
    (answers("table"), "motivation_purpose must be quoted text, but its type is"),
    (
        ["run", "smoke", "--set", "datasheet.answers.details_date=today"],
        "datasheet.answers: there is no question 'details_date'",
    ),
    # Stages, tables, metrics, audits and slices
    (["run", "smoke", "--until", "dedupliacte"], "to stop after (did you mean deduplicate?)"),
    (["tables", "dedupliacte"], "there is no stage 'dedupliacte' (did you mean deduplicate?)"),
    (["settings", "pretrain.trian"], "there is no section or key 'pretrain.trian' (did you mean p"),
    (["audit", "latest", "--only", "bais"], "there is no audit 'bais' (did you mean bias?)"),
    (["findings", "--audit", "bais"], "there is no audit 'bais' (did you mean bias?)"),
    (["trace", "latest", "bais.x"], "there is no audit 'bais' (did you mean bias?)"),
    (["run", "smoke", "--set", rule(audit="bais", metric="x")], "rules.r.audit: must be one of"),
    (
        ["run", "smoke", "--set", rule(audit="bias", metric="stereotype_preferense")],
        "does not measure 'stereotype_preferense' (did you mean stereotype_preference?)",
    ),
    (
        [
            *("run", "smoke", "--set"),
            rule(
                audit="toxicity",
                metric="toxicity_probability",
                slice={"prompt_subset": "promted", "draw_count": 4},
            ),
        ],
        'did you mean {prompt_subset = "prompted", draw_count = "4"}?',
    ),
    # Stores, runs, documents and models
    (["view", "--store", ""], "the store name is empty; specify a folder or a URI"),
    (["runs", "--store="], "the store name is empty; specify a folder or a URI"),
    (["run", "smoke", "--store", ""], "the store name is empty; specify a folder or a URI"),
    (["pull", "latest", ""], "the store name is empty; specify a folder or a URI"),
    (
        ["run", "smoke", "--set", "store=''"],
        "the store name is empty; specify a folder or a URI",
    ),
    (["status", "--store", "plain"], "plain, which is not a folder; "),
    (["verify", "--store", "nothing/.."], " is not a store: it contains files but no"),
    (["runs", "--store", "nothing/.."], " is not a store: it contains files but no"),
    (
        ["view", "--store", "http://x.invalid/"],
        "'http://x.invalid/' is not a store address; ",
    ),
    (["export-site"], "has no runs; start one with: hallmark run CONFIG"),
    (["status", "--store", "no/such"], "no/such, which does not exist; "),
    (["status", "--store", "s4://bucket/x"], "the store 's4://bucket/x' cannot be opened: "),
    (["run", "smoke", "--store", "plain"], "the store 'plain' cannot be opened: it is a file; "),
    (["status", "20260101"], "has no run named '20260101'; the store has no runs; start one"),
    (["findings"], "has no audit yet; run: hallmark audit CHECKPOINT"),
    (["compare", "a", "b"], "there is no checkpoint 'a'; specify a folder, RUN, RUN@STEP"),
    (["compare"], "nothing to compare; specify two checkpoints"),
    (["trace", "latest", "zz"], "'zz' is neither a doc_id (32 hexadecimal digits"),
    (["trace", "latest", "bias"], "'bias' is an audit, not a finding; specify one of its findings"),
    (["trace", "latest", "0" * 32], "has the ingest stage yet; start one with: hallmark run"),
    (["purge", "zz"], "'zz' is neither a doc_id (32 hexadecimal digits"),
    (["purge", "0" * 32], "contains the document 00000000000000000000000000000000"),
    (["audit", "nothing"], "nothing: the folder is empty; a checkpoint consists of config.json"),
    (["audit", "plain"], "plain: this is a file; specify a checkpoint folder"),
    (["audit", "checkpoint/zzz"], "has no checkpoint 'checkpoint/zzz'; specify a checkpoint"),
    (["prove", "latest", "--extra-seeds", "-1"], "has trained and audited a model yet; start"),
    (["generate", "latest", " "], "the prompt is empty; enter some text"),
    (["generate", "model", "x", "--max-new-tokens", "-1"], "--max-new-tokens is -1; it must be"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the ``FILES`` and an empty store."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if text is None:
            path.mkdir()
        else:
            path.write_bytes(text)
    (tmp_path / "store" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path


def check_sentence(stderr, expected):
    (line,) = stderr.splitlines()
    assert line.startswith("hallmark: ") and expected in line, line
    assert not PRIVATE_WORDS.search(line), line


@pytest.mark.parametrize(("arguments", "expected"), WRONG_INPUTS)
def test_a_wrong_input_gives_one_sentence(folder, arguments, expected):
    done = Hallmark(folder / "store")(*arguments, code=2)
    check_sentence(done.stderr, expected)
    assert not done.stdout and not [*(folder / "store").glob("artifacts/*/*")]


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        (["ctx"], "none.jsonl", "there is no file none.jsonl with the items of hs (resolved to /"),
        (["ctx_b"], "hellaswag.jsonl", "hellaswag.jsonl has no text in 'ctx_b'; its fields are"),
        (["ctx", "endings"], "hellaswag.jsonl", "line 1 must have text in 'endings', not {"),
    ],
)
def test_evaluation_sets_are_checked_before_any_stage_runs(folder, server, fields, path, expected):
    sets = f'contamination.evaluation_sets=[{{name="hs", path="{path}", text_fields={fields}}}]'
    hallmark = Hallmark(folder / "store", server)
    done = hallmark("run", "smoke", "--set", sets, code=2)
    check_sentence(done.stderr, expected)
    assert not [*(folder / "store").glob("artifacts/*/*")]
    assert expected in hallmark("run", "smoke", "--set", sets, "--dry-run", code=1).stdout


@pytest.mark.parametrize(
    ("config", "code", "expected"),
    [
        ("moved.toml", 2, "source 'moved': no file exists at 'no/such.csv' (resolved to /"),
        ("letters.toml", 1, "column 'text' is missing; its columns are 'txt', 'id' (did you mean "),
    ],
)
def test_a_wrong_corpus_gives_one_sentence(folder, server, config, code, expected):
    done = Hallmark(folder / "store", server)("run", config, "--until", "ingest", code=code)
    check_sentence(done.stderr, expected)
