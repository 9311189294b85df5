"""Cards are reviewed, signed and released; a release verifies without the store."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hallmark.flows import release as release_module
from hallmark.flows.run_order import assign_run_number
from hallmark.flows.run_request import RunRequest
from hallmark.flows.runs import open_run
from hallmark.reports.cards import read_card
from hallmark.reports.review.release_folder import (
    build_manifest_entries,
    format_manifest,
    verify_release_folder,
)
from hallmark.reports.review.review_store import write_review
from hallmark.reports.review.signatures import SignerFiles
from hallmark.reports.review.statements import parse_statement
from hallmark.tasks.contract import Store, compute_content_digest, to_canonical_json
from hallmark.tasks.contract.manifests import compute_table_digest
from tests.flows.test_pipeline import damaged_checkpoint

pytestmark = pytest.mark.slow

CARDS = ("model_card", "datasheet")
APPROVE = ("--decision", "approve", "--reviewer", "Ada Lovelace")


@pytest.fixture(scope="module")
def signers(reviewers, tmp_path_factory):
    return str(
        reviewers.write_allowed_signers(tmp_path_factory.mktemp("signers") / "a", "ada", "bob")
    )


@pytest.fixture
def hallmark(apart, tmp_path, monkeypatch):
    """The command line in an empty folder, with a copy of the store."""
    store = tmp_path / "store"
    shutil.copytree(apart.store, store, symlinks=True)
    monkeypatch.chdir(tmp_path)
    return type(apart)(store, apart.server)


def sign(hallmark, reviewers, name, card, *options):
    """Write a statement about a card, sign it and store it, as the printed commands do."""
    steps = hallmark.json("review", hallmark.first, "--card", card, *options)
    statement = Path(steps["statement"])
    signature = Path(f"{statement}.sig")
    signature.write_bytes(reviewers.sign(name, statement.read_bytes()))
    assert steps["sign"].startswith("ssh-keygen -Y sign -n hallmark-review -f ")
    assert steps["sign"].endswith(str(statement))
    return hallmark.json(*steps["then"].split()[1:])


def list_states(hallmark, signers):
    report = hallmark.json("review", hallmark.first, "--allowed-signers", signers)
    return {card["card"]["kind"]: card["state"] for card in report["cards"]}


def change_figures(hallmark, column, value):
    """Change the first figure of the model card in the store, without a trace in the manifest."""
    card = open_run(hallmark.first, str(hallmark.store))["model_card"]
    (part,) = card["figures"].parts
    figures = part.read()
    values = figures[column].to_pylist()
    values[0] = value
    number = figures.schema.get_field_index(column)
    changed = figures.set_column(
        number, column, pa.array(values, figures.schema.field(number).type)
    )
    path = part.path
    pq.write_table(changed, path)
    manifest_file = hallmark.store / card.folder / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    manifest["tables"]["figures"]["parts"][0]["size"] = path.stat().st_size
    manifest_file.write_text(json.dumps(manifest))


def test_a_review_is_written_signed_and_listed(hallmark, reviewers, signers):
    assert list_states(hallmark, signers) == dict.fromkeys(CARDS, "unsigned")
    run = open_run(hallmark.first, str(hallmark.store))
    figure = run["model_card"]["figures"].read(["id"])["id"][0].as_py()
    comment = "Only for tests.\n=1+1 <script>alert(1)</script>"
    report = sign(
        hallmark,
        reviewers,
        "ada",
        "model_card",
        "--decision",
        "approve-with-conditions",
        "--reviewer",
        " Ada Lovelace ",
        "--comment",
        comment,
        "--expires",
        "2999-12-31",
        "--note",
        "bias.stereotype_preference",
        "[Measured on few pairs.]",  # a text, no JSON
        "--note",
        figure,
        "x" * 10_000,
    )
    assert report["cards"][0]["state"] == "signer_unknown"  # no list of signers was named
    (review,) = report["cards"][0]["reviews"]
    assert review["statement"]["reviewer"] == "Ada Lovelace"
    assert review["statement"]["comment"] == comment
    assert review["statement"]["card"] == {
        "kind": "model_card",
        "run": run.id,
        "checkpoint": run.find_checkpoints()[-1].content_digest,
        "evidence_hash": report["cards"][0]["card"]["evidence_hash"],
    }
    assert list_states(hallmark, signers) == {
        "model_card": "approved_with_conditions",
        "datasheet": "unsigned",
    }
    text = hallmark("review", run.id, "--allowed-signers", signers).stdout
    assert "model card: approved with conditions by ada@example.org" in text
    assert "Ada Lovelace (ada@example.org): approve-with-conditions, until 2999-12-31" in text
    assert "bias.stereotype_preference: [Measured on few pairs.]" in text
    assert "--json shows all" in text and max(map(len, text.splitlines())) < 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--decision", "approve"), "add --reviewer NAME"),
        (("--reviewer", "Ada"), "add --decision"),
        (("--key", "ada.pub"), "add --decision"),
        (("--decision", "accept", "--reviewer", "Ada"), "--decision"),
        (("--decision", "reject", "--reviewer", "Ada"), "must state why"),
        ((*APPROVE, "--expires", "2020-01-01"), "before the review date"),
        ((*APPROVE, "--key", "ada"), "does not read private keys"),
        (
            (*APPROVE, "--key", "ada.pub"),
            "ada.pub: there is no such file; specify the path to your public key",
        ),
        ((*APPROVE, "--signature", "x.sig"), "do not combine it with --decision"),
        (("--signature", "review.json"), "accepts only a file written by ssh-keygen"),
        (("--signature", "review.json.sig"), "review.json.sig: there is no such file; specify"),
        (("--allowed-signers", "."), ".: this is a folder; specify"),
        (("--revoked-keys", "/dev/null"), "/dev/null: this is not a regular file; specify"),
        (("--signature", f"{'x' * 300}.sig"), "… is too long for a file name; specify a sh"),
        ((*APPROVE, "--note", "bias.stereotype_preference", " "), "' is empty; enter some text"),
        (("--allowed-signers", "missing"), "there is no such file"),
        ((*APPROVE, "--note", "bias.stereotype_preference", "\u2800"), "is empty; enter some text"),
        ((*APPROVE, "--comment", "\u200d"), "comment: contains no visible characters; enter"),
        ((*APPROVE, "--comment", "\u3164\u2800"), "comment: contains no visible characters; enter"),
        ((*APPROVE, "--comment", " \n"), "comment: contains no visible characters; enter"),
        ((*APPROVE[:3], "\u3164"), "reviewer: contains no visible characters; enter"),
        ((*APPROVE, "--note", "bias.stereotype", "x"), "stereotype_preference"),
        ((*APPROVE, "--note", "nonsense", "x"), "no figure 'nonsense'"),
        ((*APPROVE, "--note", "bia.x", "x"), "hallmark findings"),
        (("--card", "task_card", *APPROVE), "its cards: model_card, datasheet"),
        ((*APPROVE[:3], "Ada\u202e"), "invisible character U+202E"),
        ((*APPROVE[:3], "Ada\nBob"), "invisible character U+000A"),
        ((*APPROVE[:3], "A" * 10_000), "reviewer: "),
        ((*APPROVE, "--comment", "\x1b[2J"), "invisible character U+001B"),
        ((*APPROVE, "--comment", "x" * 10_001), "comment: "),
        ((*APPROVE, "--note", "bias.stereotype_preference", "a\x00"), "U+0000"),
    ],
)
def test_wrong_reviews_are_refused(smoke, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = smoke("review", smoke.first, *options, code=2).stderr
    assert message in error.splitlines()[-1]
    assert not list(tmp_path.iterdir()) and not (smoke.store / "reviews").exists()


def test_only_the_signature_of_an_unchanged_statement_is_stored(hallmark, reviewers):
    steps = hallmark.json("review", hallmark.first, *APPROVE)
    statement, signature = Path(steps["statement"]), Path(f"{steps['statement']}.sig")
    text = statement.read_bytes()
    signature.write_bytes(reviewers.sign("ada", text))
    statement.write_bytes(text.replace(b"Ada", b"Eve"))
    done = hallmark("review", "--signature", str(signature), code=1)
    assert "does not match this statement" in done.stderr
    statement.rename("moved")
    error = hallmark("review", "--signature", str(signature), code=2).stderr
    assert f"{statement}: there is no such file; copy the statement into the folder that" in error
    statement.write_bytes(b"{}")
    assert "not a statement" in hallmark("review", "--signature", str(signature), code=2).stderr
    statement.write_bytes(text)
    change_figures(hallmark, "label", "other")
    done = hallmark("review", "--signature", str(signature), code=1)
    assert "has changed since the statement was written" in done.stderr
    assert not (hallmark.store / "reviews").exists()


def test_a_decision_dated_in_the_future_is_refused(hallmark, reviewers):
    """No later decision could replace it."""
    statement = Path(hallmark.json("review", hallmark.first, *APPROVE)["statement"])
    review = json.loads(statement.read_bytes()) | {"date": "9999-12-31T00:00:00+00:00"}
    statement.write_bytes(to_canonical_json(review) + b"\n")
    signature = Path(f"{statement}.sig")
    signature.write_bytes(reviewers.sign("ada", statement.read_bytes()))
    done = hallmark("review", "--signature", str(signature), code=2)
    assert "is dated in the future (9999-12-31)" in done.stderr
    assert not (hallmark.store / "reviews").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"notes": [{"about": "nonsense", "text": "x"}]}, "the card has no figure 'nonsense'"),
        ({"notes": [{"about": "bias.stereotype", "text": "x"}]}, "stereotype_preference"),
        (
            {"notes": [{"about": "bias.stereotype_preference", "text": ""}]},
            "the note about 'bias.stereotype_preference' is empty; enter some text",
        ),
        ({"reviewer": "\u3164"}, "reviewer: contains no visible characters"),
        ({"comment": "\u200d"}, "comment: contains no visible characters"),
        (
            {"date": "0001-01-01T00:00:00+00:00"},
            "the statement is dated 0001-01-01, before the card was created (20",
        ),
    ],
)
def test_a_signed_statement_is_checked_like_a_new_one(hallmark, reviewers, changes, message):
    statement = Path(hallmark.json("review", hallmark.first, *APPROVE)["statement"])
    review = json.loads(statement.read_bytes()) | changes
    statement.write_bytes(to_canonical_json(review) + b"\n")
    signature = Path(f"{statement}.sig")
    signature.write_bytes(reviewers.sign("ada", statement.read_bytes()))
    done = hallmark("review", "--signature", str(signature), code=2)
    assert message in done.stderr.splitlines()[-1]
    assert not (hallmark.store / "reviews").exists()


def test_changed_evidence_voids_the_review(hallmark, reviewers, signers):
    sign(hallmark, reviewers, "ada", "model_card", *APPROVE)
    sign(hallmark, reviewers, "ada", "datasheet", *APPROVE)
    assert list_states(hallmark, signers) == dict.fromkeys(CARDS, "approved")
    change_figures(hallmark, "evidence_id", "other")
    assert list_states(hallmark, signers) == {"model_card": "void", "datasheet": "approved"}
    text = hallmark("review", hallmark.first, "--allowed-signers", signers).stdout
    assert "model card: void: the card's evidence has changed since the review" in text
    done = hallmark("release", hallmark.first, "out", "--allowed-signers", signers, code=1)
    assert "does not match the SHA-256 in its manifest" in done.stderr
    assert not Path("out").exists()


def test_a_damaged_review_is_found_by_verify(hallmark, reviewers):
    sign(hallmark, reviewers, "ada", "model_card", *APPROVE)
    assert hallmark.json("verify")["damage_messages"] == []
    (path,) = (hallmark.store / "reviews").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"approve", b"reject "))
    (message,) = hallmark.json("verify", code=1)["damage_messages"]
    assert path.name in message and "is damaged" in message


def test_a_release_is_refused_with_all_reasons(hallmark, reviewers, signers):
    options = ("release", hallmark.first, "out", "--allowed-signers", signers)
    (message,) = hallmark(*options, code=1).stderr.splitlines()
    assert (
        "the model card is not approved (unsigned: not yet reviewed); the datasheet is" in message
    )
    sign(hallmark, reviewers, "ada", "datasheet", *APPROVE)
    sign(hallmark, reviewers, "eve", "model_card", *APPROVE)
    (message,) = hallmark(*options, code=1).stderr.splitlines()
    assert (
        "the model card is not approved (signer unknown" in message and "datasheet" not in message
    )
    sign(hallmark, reviewers, "ada", "model_card", *APPROVE)
    sign(
        hallmark,
        reviewers,
        "bob",
        "model_card",
        "--decision",
        "reject",
        "--reviewer",
        "Bob",
        "--comment",
        "Too toxic.",
    )
    assert "the model card is not approved (rejected by bob@" in hallmark(*options, code=1).stderr
    assert not Path("out").exists()


def write_newer_audit(hallmark, status, checkpoint, error=None):
    """Write the record of an audit without a card, as a run leaves it that ends early."""
    record = open_run(hallmark.first, str(hallmark.store)).record
    run_id = f"19991231-235959-{status[:4]}"  # its host's clock is slow
    stages = [entry for entry in record["stages"] if entry["label"] != "model_card"]
    request = RunRequest(flow="audit", checkpoint=checkpoint).to_record()
    changes = {"run": run_id, "flow": "audit", "request": request, "checkpoint": checkpoint}
    changes["stages"] = stages
    folder = hallmark.store / "runs" / run_id
    folder.mkdir()
    assign_run_number(Store(hallmark.store), run_id)
    (folder / "run.json").write_text(
        json.dumps(record | changes | {"status": status, "error": error})
    )
    return run_id


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        ("failed", "stage x:\nbroken\u202e", "has the status failed (stage x: broken‹U+202E›)"),
        ("failed", "y" * 10_000, f"has the status failed ({'y' * 197}...)"),
        ("cancelled", None, "has the status cancelled"),
        ("completed", None, "has no readable model card"),
    ],
)
def test_a_newer_audit_without_a_card_prevents_a_release(
    hallmark, reviewers, signers, status, error, reason
):
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE)
    options = ("release", hallmark.first, "out", "--allowed-signers", signers)
    run = open_run(hallmark.first, str(hallmark.store))
    run_id = write_newer_audit(hallmark, status, run.audited_checkpoint, error)
    (message,) = hallmark(*options, code=1).stderr.splitlines()
    assert message.endswith(
        f"the newer audit, run {run_id}, {reason}; repeat it with: hallmark audit "
        f"{run.audited_checkpoint}"
    )
    assert not Path("out").exists()
    record = hallmark.store / "runs" / run_id / "run.json"
    record.write_text(record.read_text()[:100])
    (message,) = hallmark(*options, code=1).stderr.splitlines()[-1:]
    assert f"run {run_id} is damaged" in message
    assert message.endswith("; the run may be a newer audit of this checkpoint")
    shutil.rmtree(hallmark.store / "runs" / run_id)
    write_newer_audit(hallmark, status, f"{hallmark.first}@0", error)  # of another checkpoint
    hallmark(*options)


@pytest.mark.slow
def test_a_release_needs_a_policy_that_passes_and_audits_that_worked(
    hallmark, reviewers, signers, tmp_path
):
    rules = {
        "compress": "{audit='capability', metric='bits_per_byte', slice={part='model'}, lt=0.01}",
        "fair": "{audit='bias', metric='stereotype_preference', slice={}, lt=0.01}",
    }
    for name, outcome in (("compress", "policy failed: 1 of"), ("fair", "policy not shown to")):
        setting = f"policy.rules.{name}={rules[name]}"
        run = hallmark.json(
            "audit", hallmark.first, "--only", "bias,capability", "--set", setting, code=3
        )["run"]
        done = hallmark("release", run, "out", "--allowed-signers", signers, code=3)
        assert outcome in done.stderr and f"({name})" in done.stderr
    # Neither the record of the run nor the verdicts are signed; the model card is.
    record_path = hallmark.store / "runs" / run / "run.json"
    record = record_path.read_text()
    fields = json.loads(record)
    fields["stages"] = [stage for stage in fields["stages"] if stage["label"] != "policy"]
    record_path.write_text(json.dumps(fields))
    done = hallmark("release", run, "out", "--allowed-signers", signers, code=3)
    assert (
        "the model card has the status “Not shown”, which contradicts the verdicts" in done.stderr
    )
    record_path.write_text(record)
    # The SHA-256 of the file of verdicts must be that of the manifest.
    flip_a_byte(open_run(run, str(hallmark.store))["policy"]["verdicts"].parts[0].path)
    done = hallmark("release", run, "out", "--allowed-signers", signers, code=1)
    assert "does not match the SHA-256 in its manifest" in done.stderr
    folder = tmp_path / "damaged"
    damaged_checkpoint(hallmark, folder, "position_embedding.weight", slice(40, None))
    hallmark("audit", str(folder), "--config", "smoke", "--only", "toxicity,bias", code=1)
    done = hallmark("release", str(folder), "out", "--allowed-signers", signers, code=1)
    assert (
        "the model card is not approved (unsigned" in done.stderr and "bias failed (" in done.stderr
    )
    assert "datasheet" not in done.stderr  # an external model has none
    assert not Path("out").exists()


@pytest.fixture(scope="module")
def released(apart, reviewers, signers, tmp_path_factory):
    """A release that ada and bob approved."""
    folder = tmp_path_factory.mktemp("released")
    previous_folder = os.getcwd()
    os.chdir(folder)
    try:
        for name in ("ada", "bob"):
            for card in CARDS:
                sign(apart, reviewers, name, card, *APPROVE)
        apart("release", apart.first, "out", "--allowed-signers", signers)
    finally:
        os.chdir(previous_folder)
        shutil.rmtree(apart.store / "reviews")
    return folder / "out"


@pytest.fixture
def release(released, tmp_path):
    """A copy of the release, as on another machine."""
    return Path(shutil.copytree(released, tmp_path / "release"))


def verify(smoke, release, *options, code=0):
    return smoke.json("verify-release", str(release), *options, code=code)


def test_a_release_verifies_without_a_store(release, apart, tmp_path):
    environment = {**os.environ, "HALLMARK_STORE": str(tmp_path / "none")}
    command = [sys.executable, "-m", "hallmark.flows.cli", "verify-release", str(release)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "the release is valid" and "specify your own list" in lines[-2]
    assert "model card: approved by" in done.stdout and "    ada@example.org SHA256:" in done.stdout
    run = open_run(apart.first, str(apart.store))
    weights = run.find_checkpoints()[-1].fetch_file("model.safetensors").read_bytes()
    assert (release / "checkpoint" / "model.safetensors").read_bytes() == weights
    for path in (
        "checkpoint/config.json",
        "checkpoint/tokenizer.json",
        "cards/model_card/model_card.html",
        "cards/datasheet/datasheet.html",
        "tables/model_card/figures/00000.parquet",
        "tables/datasheet/figures/00000.parquet",
        "exports/model/README.md",
        "exports/model/ml-bom.cdx.json",
        "exports/dataset/README.md",
        "exports/dataset/croissant.json",
        "exports/figures.json",
        "allowed_signers",
    ):
        assert (release / path).is_file()
    assert len([*(release / "reviews").iterdir()]) == 8
    assert not (tmp_path / "none").exists()


def test_the_command_verify_points_to_the_other(smoke, release):
    done = smoke("verify", str(release), code=2)
    assert f"hallmark verify-release {release}" in done.stderr


def test_the_signers_of_the_verifier_count(smoke, release, reviewers, tmp_path):
    signers = reviewers.write_allowed_signers(tmp_path / "signers", "ada")
    report = verify(smoke, release, "--allowed-signers", str(signers))
    assert report["is_valid"] and not report["has_own_signers"]
    signers = reviewers.write_allowed_signers(tmp_path / "signers", "eve")
    report = verify(smoke, release, "--allowed-signers", str(signers), code=1)
    assert report["problems"][0].startswith("the model card is not approved (signer unknown")
    revoked = tmp_path / "revoked"
    revoked.write_text(f"{reviewers.public_key('ada')}\n{reviewers.public_key('bob')}\n")
    report = verify(smoke, release, "--revoked-keys", str(revoked), code=1)
    assert "is revoked" in report["problems"][0]


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/model.safetensors",
        "checkpoint/config.json",
        "cards/model_card/model_card.html",
        "tables/model_card/figures/00000.parquet",
        "exports/model/README.md",
        "allowed_signers",
    ],
)
def test_a_changed_byte_is_found(smoke, release, name):
    flip_a_byte(release / name)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem.startswith(f"the size or SHA-256 of {name!r} does not match")


def test_missing_and_extra_files_and_links_are_found(smoke, release, tmp_path):
    (release / "checkpoint" / "config.json").unlink()
    (release / "cards" / "evil\x1b.html").write_text("<script>")
    (release / "empty").mkdir()
    os.mkfifo(release / "pipe")
    (release / "allowed_signers").unlink()
    (release / "allowed_signers").symlink_to("/etc/passwd")
    shutil.move(release / "tables" / "datasheet", tmp_path / "datasheet")
    (release / "tables" / "datasheet").symlink_to(tmp_path / "datasheet")
    problems = "\n".join(verify(smoke, release, code=1)["problems"])
    for expected in (
        "'checkpoint/config.json' is missing",
        "'cards/evil\\x1b.html' is not listed",
        "'empty' is an empty folder",
        "'pipe' is neither a file nor a folder",
        "'allowed_signers' is a link",
        "'tables/datasheet' is a link",
    ):
        assert expected in problems
    assert "\x1b" not in smoke("verify-release", str(release), code=1).stdout


def rewrite_manifest(release, **changes):
    """Write a manifest that fits the files, as somebody would who wants to hide a change."""
    path = release / "release.json"
    manifest = json.loads(path.read_bytes())
    path.unlink()
    manifest |= {"files": build_manifest_entries(release)} | changes
    path.write_bytes(format_manifest(manifest))


def test_new_checksums_hide_no_change_of_signed_content(smoke, release):
    """Everything but the pages is protected by the signatures."""
    flip_a_byte(release / "checkpoint" / "model.safetensors")
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem.startswith("the model card is not approved (void")
    flip_a_byte(release / "checkpoint" / "model.safetensors")
    (release / "checkpoint" / "custom_code.py").write_text("import os")
    rewrite_manifest(release)
    assert "void" in verify(smoke, release, code=1)["problems"][0]
    (release / "checkpoint" / "custom_code.py").unlink()
    table = release / "tables" / "datasheet" / "figures" / "00000.parquet"
    pq.write_table(pq.read_table(table)[1:], table)
    rewrite_manifest(release)
    assert "the datasheet is not approved (void" in verify(smoke, release, code=1)["problems"][0]


def test_the_run_is_printed_as_signed_only_if_it_is(smoke, apart, release):
    done = smoke("verify-release", str(release))
    assert f" MB, from run {apart.first}\n" in done.stdout and "no signature" not in done.stdout
    assert verify(smoke, release)["is_run_signed"]
    rewrite_manifest(release, run="20260101-000000-abcd")
    lines = smoke("verify-release", str(release)).stdout.splitlines()
    assert lines[0].endswith(" MB") and lines[1] == (
        "release.json specifies run 20260101-000000-abcd, but no signature confirms this; the "
        f"approvals refer to run {apart.first}"
    )
    report = verify(smoke, release)
    assert not report["is_run_signed"] and report["reviewed_runs"] == [apart.first]
    shutil.rmtree(release / "reviews")
    rewrite_manifest(release)
    lines = smoke("verify-release", str(release), code=1).stdout.splitlines()
    assert lines[1].endswith("run 20260101-000000-abcd, but no signature confirms this")


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**62], pa.timestamp("ms")),
        pa.array([1], pa.timestamp("ms", tz="Mars/Olympus")),
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.duration("s")),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]),
        pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
        ),
    ],
    ids=["year", "time zone", "date", "duration", "fields", "text"],
)
def test_values_that_python_cannot_hold_are_damage(smoke, release, values):
    table = release / "tables" / "model_card" / "figures" / "00000.parquet"
    pq.write_table(pa.table({"a": values}), table)
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem.startswith("the model card's tables cannot be read (")


def test_the_policy_of_the_manifest_is_the_one_of_the_signed_card(smoke, release):
    rewrite_manifest(release, policy="pass")
    assert verify(smoke, release, code=1)["problems"] == [
        "release.json contains 'pass' as the policy result, but the model card has the status "
        "“Not judged”"
    ]


def test_a_name_with_a_line_break_adds_no_line_to_the_result(smoke, release):
    path = release / "release.json"
    manifest = json.loads(path.read_bytes())
    name = "checkpoint/x\nthe release is valid\n"
    manifest["files"][name] = {"size": 0, "sha256": "0" * 64}
    path.write_bytes(format_manifest(manifest))
    lines = smoke("verify-release", str(release), code=1).stdout.splitlines()
    assert f"{name!r} is missing" in lines and "the release is valid" not in lines


@pytest.mark.parametrize("size", [-1, 1 << 63, 10**400])
def test_an_impossible_size_is_refused(smoke, release, size):
    path = release / "release.json"
    manifest = json.loads(path.read_bytes())
    manifest["files"]["checkpoint/config.json"]["size"] = size
    path.write_bytes(format_manifest(manifest))
    error = smoke("verify-release", str(release), code=1).stderr
    assert "release.json is damaged" in error and "--debug" not in error


def test_a_long_name_is_cut_and_written_out(smoke, release):
    path = release / "release.json"
    manifest = json.loads(path.read_bytes())
    names = [f"checkpoint/{number}\x1b{'x' * 250}" for number in range(20)]
    manifest["files"] |= {name: {"size": 0, "sha256": "0" * 64} for name in names}
    manifest["files"][f"other/{'x' * 100_000}"] = {"size": 0, "sha256": "0" * 64}
    path.write_bytes(format_manifest(manifest))
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert len(problem) < 300 and problem.endswith("...', which does not belong in a release")
    del manifest["files"][f"other/{'x' * 100_000}"]
    path.write_bytes(format_manifest(manifest))
    for name in ("y" * 250, f"{'z' * 200}/empty/"):
        (release / name).mkdir(parents=True) if name.endswith("/") else (release / name).touch()
    (release / "link").mkdir()
    (release / "link" / ("l" * 250)).symlink_to("nowhere")
    os.mkfifo(release / "link" / ("p" * 250))
    problems = verify(smoke, release, code=1)["problems"]
    assert len(problems) == 21 and max(map(len, problems)) < 300
    manifest["files"] = {
        name: entry for name, entry in manifest["files"].items() if name not in names[1:]
    }
    flip_a_byte(release / "checkpoint" / "config.json")
    path.write_bytes(format_manifest(manifest))
    problems = "\n".join(verify(smoke, release, code=1)["problems"])
    for expected in (
        "'checkpoint/0\\x1bxxx",
        "...' is missing",
        "...' is not listed in release.json",
        "...' is a link",
        "...' is neither a file nor a folder",
        "is an empty folder",
        "the size or SHA-256 of 'checkpoint/config.json' does not match release.json",
    ):
        assert expected in problems


def test_wrong_files_are_reported_without_a_word_about_their_signatures(smoke, apart, release):
    (release / "checkpoint" / "config.json").unlink()
    lines = smoke("verify-release", str(release), code=1).stdout.splitlines()
    assert lines[1:] == [
        "signatures were not checked because of the problems below; release.json specifies run "
        f"{apart.first}",
        "'checkpoint/config.json' is missing",
        "the release is NOT valid",
    ]


@pytest.mark.parametrize(
    ("make_entry", "problem"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "is a link instead of a file"),
        (lambda path: path.mkdir(), "is a folder instead of a file"),
        (os.mkfifo, "is a named pipe instead of a file"),
        (lambda path: path.touch() or os.truncate(path, 1 << 27), "has more than 67,108,864 bytes"),
    ],
)
def test_a_manifest_that_is_no_file_is_one_sentence(smoke, tmp_path, make_entry, problem):
    make_entry(tmp_path / "release.json")
    (line,) = smoke("verify-release", str(tmp_path), code=1).stderr.splitlines()[-1:]
    assert line.endswith(f"release.json {problem}; copy the release again")


def test_a_table_that_expands_is_not_read(smoke, release):
    path = release / "tables" / "model_card" / "figures" / "00000.parquet"
    pq.write_table(pa.table({"id": pa.nulls(10_000_000, pa.string())}), path)
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem == (
        "the model card's tables cannot be read (the figures table is larger than any card table: "
        "it has more than 2,000,000 values or 64 MB)"
    )


OTHER_FILES = (
    "install.sh",
    "cards/other_card/page.html",
    "cards/page.html",
    "exports/model/README.md.sh",
    "reviews/run.sh",
    "tables/model_card/other/00000.parquet",
    "tables/model_card/figures/00000.parquet.bak",
    "tables/other_card/figures/00000.parquet",
)


def test_other_files_are_not_part_of_a_release(smoke, release):
    """They would be neither signed nor expected."""
    for name in OTHER_FILES:
        (release / name).parent.mkdir(parents=True, exist_ok=True)
        (release / name).write_text("x")
    rewrite_manifest(release)
    problems = verify(smoke, release, code=1)["problems"]
    assert len(problems) == len(OTHER_FILES)
    for name, problem in zip(sorted(OTHER_FILES), sorted(problems), strict=True):
        assert repr(name) in problem and "which does not belong in a release" in problem


def test_rewritten_row_groups_change_nothing(smoke, release):
    table = release / "tables" / "model_card" / "figures" / "00000.parquet"
    pq.write_table(pq.read_table(table), table, row_group_size=7, compression="gzip")
    rewrite_manifest(release)
    assert verify(smoke, release)["is_valid"]


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "checkpoint/../../x", "a\0b", "release.json"]
)
def test_a_manifest_cannot_name_other_files(smoke, release, name):
    entries = build_manifest_entries(release)
    rewrite_manifest(release, files=entries | {name: {"size": 1, "sha256": "0" * 64}})
    report = verify(smoke, release, code=1)
    assert all("which does not belong in a release" in problem for problem in report["problems"])
    assert report["approvals"] == []


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 100_000, b"\xff", b'{"format": "hallmark-release-2"}']
)
def test_a_damaged_manifest_is_one_sentence(smoke, release, content):
    (release / "release.json").write_bytes(content)
    done = smoke("verify-release", str(release), code=1)
    assert "release.json is damaged" in done.stderr
    (release / "release.json").unlink()
    assert "not a complete release" in smoke("verify-release", str(release), code=1).stderr


def test_a_review_about_another_card_does_not_count(smoke, release):
    for path in (release / "reviews").glob("*.json"):
        if parse_statement(path.read_bytes()).card.kind == "datasheet":
            path.unlink()
            Path(f"{path}.sig").unlink()
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem == "the datasheet is not approved (unsigned: not yet reviewed)"
    shutil.rmtree(release / "reviews")
    rewrite_manifest(release)
    assert len(verify(smoke, release, code=1)["problems"]) == 2


def test_a_release_without_the_datasheet_is_not_valid(smoke, release):
    """Somebody removed it, for example because it was rejected."""
    for folder in ("cards", "tables"):
        shutil.rmtree(release / folder / "datasheet")
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem == "the release has no datasheet, but its model card describes the training text"


def test_tables_without_pages_need_an_approval_too(smoke, release):
    shutil.rmtree(release / "cards" / "datasheet")
    rewrite_manifest(release)
    assert [card["card"]["kind"] for card in verify(smoke, release)["approvals"]] == [
        "model_card",
        "datasheet",
    ]


def test_a_model_card_is_needed(smoke, release):
    shutil.rmtree(release / "cards" / "model_card")
    shutil.rmtree(release / "tables" / "model_card")
    rewrite_manifest(release)
    assert verify(smoke, release, code=1)["problems"] == ["the release has no model card"]


def test_the_folder_must_be_new(hallmark, reviewers, signers):
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE)
    options = ("--allowed-signers", signers)
    Path("used").mkdir()
    Path("used", "file").touch()
    for name, problem in (("used", "exists and is not empty"), ("used/file", "is not a folder")):
        done = hallmark("release", hallmark.first, name, *options, code=2)
        assert f"{name} {problem}; choose a new folder for the release" in done.stderr
    Path("empty").mkdir()
    hallmark("release", hallmark.first, "empty", *options)
    hallmark("release", hallmark.first, "new/folder", *options)
    done = hallmark("release", hallmark.first, "two words", *options)
    assert done.stdout.endswith("verify the release with: hallmark verify-release 'two words'\n")
    for name in ("empty", "new/folder", "two words"):
        assert verify(hallmark, Path(name))["is_valid"]


def test_a_folder_that_is_not_valid_is_removed(hallmark, reviewers, signers, monkeypatch):
    """As if a file of the store changed while it was copied."""
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE)
    weights = open_run(hallmark.first, str(hallmark.store)).find_checkpoints()[-1]
    copy_files = release_module._copy_files

    def change_and_copy(artifact, folder):
        copy_files(artifact, folder)
        if artifact.name == weights.name:
            flip_a_byte(folder / "model.safetensors")

    monkeypatch.setattr(release_module, "_copy_files", change_and_copy)
    done = hallmark("release", hallmark.first, "out", "--allowed-signers", signers, code=1)
    assert "the written folder is not valid: the model card is not approved (void" in done.stderr
    assert not [*Path().glob("*out*")]


def test_a_release_that_the_store_cannot_record_leaves_no_folder(hallmark, reviewers, signers):
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE)
    shutil.rmtree(hallmark.store / "releases", ignore_errors=True)
    (hallmark.store / "releases").write_text("not a folder")
    hallmark("release", hallmark.first, "out", "--allowed-signers", signers, code=1)
    assert not [*Path().glob("*out*")]
    (hallmark.store / "releases").unlink()
    hallmark("release", hallmark.first, "out", "--allowed-signers", signers)


def test_a_killed_release_leaves_no_folder(hallmark, reviewers, signers):
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE)
    program = (
        "import os, signal, sys; from hallmark.flows import cli, release; "
        "release._copy_signer_files = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
        "cli.main(sys.argv[1:])"
    )
    arguments = ["release", hallmark.first, "out", "--allowed-signers", signers]
    arguments += ["--store", str(hallmark.store)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Path("out").exists()
    (unfinished,) = Path().glob(".out.*.tmp")
    assert "not a complete release" in hallmark("verify-release", str(unfinished), code=1).stderr
    hallmark("release", hallmark.first, "out", "--allowed-signers", signers)


@pytest.mark.slow
def test_reviews_and_releases_work_on_an_object_store(hallmark, reviewers, signers, bucket):
    remote = Store("s3://hallmark/reviewed", Path("remote-work"))
    for path in hallmark.store.rglob("*"):
        if path.is_file() and path.relative_to(hallmark.store).parts[0] in ("artifacts", "runs"):
            remote.put(path.relative_to(hallmark.store).as_posix(), path)
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE, "--store", remote.uri)
    assert len(remote.list_keys("reviews")) == 4
    hallmark("release", hallmark.first, "out", "--store", remote.uri, "--allowed-signers", signers)
    assert verify(hallmark, Path("out"))["is_valid"]


def test_reviews_of_another_store_count(hallmark, reviewers, signers):
    """Reviews may be copied between stores, because they are bound to content, not to places."""
    statement = Path(hallmark.json("review", hallmark.first, *APPROVE)["statement"]).read_bytes()
    assert parse_statement(statement).card.run == hallmark.first
    write_review(Store(hallmark.store), statement, reviewers.sign("bob", statement))
    assert list_states(hallmark, signers)["model_card"] == "approved"


# Changes since a release -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audited_later(apart, released):
    """The untrained model, audited after the release of the last checkpoint."""
    return apart.json("audit", f"{apart.first}@0", "--only", "bias,counterfactual")["run"]


def read_changes_line(store, run_id):
    card = open_run(run_id, str(store))["model_card"]
    (sheet,) = (
        json.loads(row["content"])
        for row in card["sections"].read().to_pylist()
        if row["kind"] == "DecisionSheet"
    )
    return next(note for note in sheet["notes"] if note[0].startswith("Changes"))


@pytest.mark.slow
def test_a_later_version_of_the_name_is_compared_with_the_release(apart, released, audited_later):
    (path,) = (apart.store / "releases").iterdir()
    record = json.loads(path.read_bytes())
    run = open_run(apart.first, str(apart.store))
    assert path.name == f"{apart.first}.json" and record["run"] == apart.first
    assert record["name"] == run.config.model_card.title
    assert record["checkpoint"] == run.find_checkpoints()[-1].content_digest
    later_run = open_run(audited_later, str(apart.store))
    settings = later_run["compare_with_previous"].manifest["parts"]["config"]
    assert settings["previous_run"] == apart.first and not settings["incomparable_reasons"]
    term, content = read_changes_line(apart.store, audited_later)
    assert term == f"Changes since run {apart.first}"  # no version is stated
    assert content[0].startswith("Of ") and {"value": "changes-worse"} in content
    # The command has the same numbers.
    rows = later_run["compare_with_previous"]["changes"].read().to_pylist()
    compared = apart.json("compare", apart.first, audited_later)["rows"]
    by_name = {
        (row["audit"], row["metric"], *sorted(row["slice"].items())): row for row in compared
    }
    for row in rows:
        pair = by_name[row["audit"], row["metric"], *sorted(row["slice"])]
        assert (row["verdict"], row["is_main"]) == (pair["verdicts"][0], pair["is_main"])
        if row["verdict"] != "no conclusion" and pair["differences"][0] is not None:
            for column, name in (("change", "value"), ("low", "low"), ("high", "high")):
                assert row[column] == pair["differences"][0][name]
            assert row["p_corrected"] == pair["differences"][0]["p_corrected"]
    assert any(row["p_corrected"] is not None for row in rows)


@pytest.mark.slow
def test_a_repeated_audit_after_a_release_is_cached(apart, audited_later):
    again = apart.json("audit", f"{apart.first}@0", "--only", "bias,counterfactual")
    assert all(stage["cached"] for stage in again["stages"])
    # The card of the released checkpoint, for which people signed, stays as it is.
    again = apart.json("audit", apart.first)
    labels = {stage["label"] for stage in again["stages"]}
    assert "compare_with_previous" not in labels
    assert all(stage["cached"] for stage in again["stages"])
    assert read_changes_line(apart.store, again["run"]) == [
        "Changes",
        ["No earlier release has this name."],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("removed", "reason"),
    [
        ("run", "the run {run} of that release is missing or damaged"),
        ("audit", "the previous run's results cannot be read: "),
    ],
)
def test_a_removed_release_does_not_fail_an_audit(apart, released, hallmark, removed, reason):
    if removed == "run":
        shutil.rmtree(hallmark.store / "runs" / hallmark.first)
    else:
        for folder in (hallmark.store / "artifacts" / "audit_weat").iterdir():
            for path in folder.glob("*/values/*.parquet"):
                path.unlink()
    run = open_run(apart.first, str(apart.store))
    # Without its run, a checkpoint is audited with the settings of the demo.
    name = run.find_checkpoints()[0].name if removed == "run" else f"{apart.first}@0"
    title = f"model_card.title={run.config.model_card.title!r}"
    run_id = hallmark.json("audit", name, "--only", "weat", "--set", title)["run"]
    term, content = read_changes_line(hallmark.store, run_id)
    assert term == f"Changes since run {apart.first}"
    assert content[0].startswith(f"Not compared: {reason.format(run=apart.first)}")


def test_the_signers_in_a_release_are_limited(smoke, release, reviewers):
    """Whoever wrote the release wrote them, and the verifier should not wait for hours."""
    names = ",".join(f"n{number}@example.org" for number in range(20_000))
    (release / "allowed_signers").write_text(f"{names} {reviewers.public_key('ada')}\n")
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem.endswith("allowed_signers: line 1 has more than 16,384 bytes; shorten it")
    line = f"ada@example.org {reviewers.public_key('ada')}\n"
    (release / "allowed_signers").write_text(line * 3_000)
    rewrite_manifest(release)
    assert "more than 2,000 lines" in verify(smoke, release, code=1)["problems"][0]


def test_a_wrong_list_of_revoked_keys_in_a_release_is_a_problem(smoke, release):
    revoked_keys = release / "revoked_keys"
    revoked_keys.write_text("not a key\n")
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert "revoked_keys: this is neither a list of public keys nor" in problem
    smoke("verify-release", str(release), "--revoked-keys", str(revoked_keys), code=2)
    revoked_keys.write_text("ssh-ed25519 AAAA broken\n")
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert "revoked_keys: ssh-keygen cannot read this list of revoked keys" in problem
    error = smoke("verify-release", str(release), "--revoked-keys", str(revoked_keys), code=2)
    assert "revoked_keys: ssh-keygen cannot read this list of revoked keys" in error.stderr


def test_the_reviews_in_a_release_are_limited(smoke, release):
    for number in range(1_000):
        (release / "reviews" / f"{number:032x}.json").write_text("{}")
    rewrite_manifest(release)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem == "the release has more than 1,000 reviews"


@pytest.mark.parametrize(("suffix", "size"), [("", 2 << 20), (".sig", 1 << 17)])
def test_a_review_of_any_size_is_not_read(smoke, release, monkeypatch, suffix, size):
    """A file with a hole costs its sender nothing."""
    read, sizes = Path.read_bytes, []
    statement = release / "reviews" / f"{'0' * 32}.json"
    statement.write_text("{}")
    with Path(f"{statement}{suffix}").open("wb") as file:
        file.truncate(size)
    rewrite_manifest(release)

    def record_size(path):
        content = read(path)
        if path.parent.name == "reviews":
            sizes.append(len(content))
        return content

    monkeypatch.setattr(Path, "read_bytes", record_size)
    verification = verify_release_folder(release, SignerFiles())
    assert "is damaged and may be a rejection" in verification.problems[0]
    assert sizes and max(sizes) < size


def test_folders_too_deep_to_be_read_are_a_problem(smoke, release):
    folder = os.open(release / "cards", os.O_DIRECTORY)
    for _ in range(45):
        os.mkdir("d" * 100, dir_fd=folder)
        inner = os.open("d" * 100, os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (problem,) = verify(smoke, release, code=1)["problems"]
    assert problem.endswith("cannot be read (File name too long)")


def test_many_additional_files_are_counted(smoke, release):
    for number in range(30):
        (release / f"{number:02}").touch()
    problems = verify(smoke, release, code=1)["problems"]
    assert len(problems) == 21 and problems[-1] == "and 10 more problems of files"
    lines = smoke("verify-release", str(release), code=1).stdout.splitlines()
    assert lines[-2:] == ["and 10 more problems of files", "the release is NOT valid"]


HOSTILE_ENTRIES = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: os.symlink("/dev/zero", path),
    "dangling link": lambda path: os.symlink("nowhere", path),
    "empty file": lambda path: Path(path).touch(),
}


@pytest.mark.parametrize("kind", HOSTILE_ENTRIES)
def test_a_replaced_statement_prevents_the_approval(hallmark, reviewers, signers, kind):
    """It may have been a rejection."""
    sign(hallmark, reviewers, "ada", "model_card", *APPROVE)
    reject = ("--decision", "reject", "--reviewer", "Bob", "--comment", "Too toxic.")
    sign(hallmark, reviewers, "bob", "model_card", *reject)
    (path,) = (
        path
        for path in (hallmark.store / "reviews").glob("*.json")
        if parse_statement(path.read_bytes()).decision == "reject"
    )
    path.unlink()
    HOSTILE_ENTRIES[kind](path)
    assert list_states(hallmark, signers)["model_card"] == "signature_invalid"
    (message,) = hallmark.json("verify", code=1)["damage_messages"]
    assert path.name in message and "is damaged" in message


@pytest.mark.parametrize("content", ["release", "export", "site"])
def test_nothing_is_written_into_a_release_or_a_store(
    hallmark, released, reviewers, signers, content
):
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    os.symlink(released, "link")
    for folder, problem in (
        (released / "checkpoint" / "inner", f"is inside the release {released}"),
        ("link/inner", f"is inside the release {released}"),
        (hallmark.store / "artifacts" / "new", f"is inside the store {hallmark.store}"),
        (hallmark.store, f"is inside the store {hallmark.store}"),
        ("/dev/null/x", "cannot be created, because /dev/null is not a folder"),
        ("file/x/y", "file is not a folder"),
        ("/proc/x", "/proc/x cannot be created (No such file or directory)"),
        ("loop", "loop is a link to itself"),
        ("loop/x", "loop is a link to itself"),
        ("", "the folder name is empty"),
        ("new\n\x1b", "the folder name new\\n\\x1b contains invisible characters"),
    ):
        command = {
            "release": ("release", hallmark.first, folder, "--allowed-signers", signers),
            "export": ("export-cards", hallmark.first, "--output", folder),
            "site": ("export-site", hallmark.first, "--output", folder),
        }[content]
        (message,) = hallmark(*map(str, command), code=2).stderr.splitlines()[-1:]
        assert problem in message and f" folder for the {content}" in message
    assert not (released / "checkpoint" / "inner").exists()


@pytest.mark.parametrize("name", ["site", "site-unredacted"])
def test_the_default_folders_of_sites_may_be_named(hallmark, name):
    options = ["--unredacted"] if name == "site-unredacted" else []
    hallmark("export-site", hallmark.first, "--output", str(hallmark.store / name), *options)


def change_rows(hallmark, *, with_manifest):
    """Replace rows that a card cites by others, in an intact file of the same size."""
    artifact_name = open_run(hallmark.first, str(hallmark.store)).stages["audit_bias"]["artifact"]
    path = hallmark.store / "artifacts" / artifact_name / "manifest.json"
    manifest = json.loads(path.read_text())
    (entry,) = manifest["tables"]["values"]["parts"]
    table_path = path.parent / entry["path"]
    rows = pq.read_table(table_path)
    values = pc.add(rows["value"], 1)
    rows = rows.set_column(
        rows.column_names.index("value"), rows.schema.field("value"), values.cast(pa.float64())
    )
    table_path.unlink()
    pq.write_table(
        rows, table_path, compression="zstd", compression_level=22, write_statistics=False
    )
    content = table_path.read_bytes()
    if with_manifest:
        entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest["tables"]["values"]["sha256"] = compute_table_digest(manifest["tables"]["values"])
        manifest["content"] = compute_content_digest(manifest["tables"], manifest["files"])
        path.unlink()
        path.write_text(json.dumps(manifest))
        return
    footer_size = int.from_bytes(content[-8:-4], "little") + 8
    padding = bytes(entry["size"] - len(content))
    table_path.write_bytes(content[:-footer_size] + padding + content[-footer_size:])


@pytest.mark.parametrize("change", ["rows", "rows and manifest", "artifact"])
def test_changed_rows_of_a_signed_card_are_neither_shown_nor_released(
    hallmark, reviewers, signers, change
):
    for card in CARDS:
        sign(hallmark, reviewers, "ada", card, *APPROVE)
    if change == "artifact":
        shutil.rmtree(hallmark.store / "artifacts" / "audit_bias")
    else:
        change_rows(hallmark, with_manifest=change == "rows and manifest")
    options = ("release", hallmark.first, "out", "--allowed-signers", signers)
    message = hallmark(*options, code=1).stderr
    assert "the model card cites rows that cannot be shown: " in message
    assert "values of audit_bias is missing or damaged, or has changed" in message
    assert not Path("out").exists()
    run = open_run(hallmark.first, str(hallmark.store))
    shown = read_card(run.store, run["model_card"]).book.evidence_by_id.values()
    assert ("audit_bias", "values") not in {(each.stage, each.table) for each in shown}
    assert ("audit_extraction", "values") in {(each.stage, each.table) for each in shown}
