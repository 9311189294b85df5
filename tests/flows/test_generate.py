"""`hallmark generate` agrees with calling the model directly."""

import math

import numpy as np
import pytest
import torch

from hallmark.flows.checkpoint_resolution import ResolvedCheckpoint
from hallmark.flows.commands.generate import (
    WITHHELD_PREFIX,
    _encode_with_special_tokens,
    _make_text_in_context_redactor,
    _prefer_withheld_version,
)
from hallmark.model.batch import Batch
from hallmark.model.decoding.beam_search import decode_with_beam_search
from hallmark.model.decoding.generation import generate
from hallmark.model.interchange.checkpoint import load_checkpoint
from hallmark.model.probing.cloze import compute_mask_log_probs
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.contract import folder_to_artifact
from tests.flows.conftest import Hallmark
from tests.tasks.audits.conftest import bert_folder, gpt2_folder, make_own  # noqa: F401

METHODS = {
    "greedy": {"temperature": 0.0},
    "beam search": None,
    "greedy, repetition penalised": {"temperature": 0.0, "repetition_penalty": 1.3},
    "sampling": {},
    "temperature": {"temperature": 0.7},
    "falling temperature": {"first_temperature": 10.0, "temperature": 1.0, "decay_tokens": 20},
    "top-k": {"top_k": 40},
    "nucleus": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
}
PROMPT = "The nurse said"
SENTINELS = ["<|sentinel_0|>", "<|sentinel_1|>"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint of each kind, outside a store."""
    kinds = {
        "decoder": ([], None, {}),
        "prefix": ([], "prefix", {"positions": "rope"}),
        "encoder": (["<|mask|>"], "mlm", {"architecture": "encoder"}),
        "both": (SENTINELS, "span_corruption", {"architecture": "encoder_decoder"}),
    }
    return {
        kind: make_own(tmp_path_factory.mktemp(kind), special, objective, **config)
        for kind, (special, objective, config) in kinds.items()
    }


@pytest.fixture
def hallmark(tmp_path):
    """The command line with a store that does not exist and must not be created."""
    yield Hallmark(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def by_method(report):
    return {row["method"]: row for row in report["outputs"]}


@pytest.mark.parametrize("kind", ["decoder", "prefix"])
def test_every_method_generates_the_text_of_its_decoder(hallmark, folders, kind):
    report = hallmark.json(
        "generate", str(folders[kind]), PROMPT, "--max-new-tokens", "9", "--seed", "4"
    )
    model, subject = load_checkpoint(folders[kind]), open_audited_model(folders[kind], "cpu")
    prompt = subject.prepend_bos_id(subject.encode(PROMPT))
    assert report["prompt_tokens"] == len(prompt) and report["precision"] == "fp32"
    assert model.objective == ("prefix" if kind == "prefix" else "causal")
    found = by_method(report)
    assert list(found) == list(METHODS)
    for method, row in found.items():
        ids = [step["token_id"] for step in row["steps"]]
        if method == "beam search":
            ((best, *_),) = decode_with_beam_search(
                model, [prompt], width=5, max_new_tokens=9, normalisation="mean"
            )
            expected, stopped = list(best.ids), best.complete
        else:
            ((one,),) = generate(model, [prompt], max_new_tokens=9, seed=4, **METHODS[method])
            expected, stopped = one.ids, one.stopped
        assert (
            ids == expected
            and row["reached_end_token"] == stopped
            and row["token_count"] == len(ids)
        )
        assert row["text"] == subject.decode(ids[:-1] if stopped else ids)
        scores = behind(model, Batch(torch.tensor([[*prompt, *ids]])), len(prompt))
        assert [step["log_prob"] for step in row["steps"]] == pytest.approx(scores, abs=1e-4)
        assert row["log_prob"] == pytest.approx(sum(scores), abs=1e-3)
        assert row["log_prob_per_token"] == pytest.approx(sum(scores) / len(ids), abs=1e-4)
    assert len({row["text"] for row in found.values()}) > 4


@torch.no_grad()
def behind(model, batch, given):
    """Compute log p of each token after the first ``given`` in one pass."""
    prefix = torch.tensor([given]) if model.objective == "prefix" else None
    read = Batch(batch.ids[:, :-1], prefix=prefix, source=batch.source)
    log_p = model.compute_logits(model(read))[0].log_softmax(-1)
    targets = batch.ids[0, 1:]
    return log_p[torch.arange(len(targets)), targets][given - 1 :].tolist()


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_a_model_of_pairs_gets_the_prompt_as_source(hallmark, tmp_path, architecture):
    """Names of sentinels are plain text in source and target."""
    objective = "prefix" if architecture == "decoder" else "seq2seq"
    folder = make_own(tmp_path, [], objective, pairs=True, architecture=architecture)
    text = f"{PROMPT} <|sentinel_0|>"
    report = hallmark.json("generate", str(folder), text, "--max-new-tokens", "9")
    model, subject = load_checkpoint(folder), open_audited_model(folder, "cpu", allow_pairs=True)
    source = subject.encode(text)
    prompt, sources = ([0, *source, 0], None) if architecture == "decoder" else ([0], [source])
    assert report["prompt_tokens"] == len(source if sources else prompt)
    found = by_method(report)
    for method in ("greedy", "nucleus"):
        how = {"max_new_tokens": 9, "sources": sources, **METHODS[method]}
        ((one,),) = generate(model, [prompt], **how)
        assert [step["token_id"] for step in found[method]["steps"]] == one.ids


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [(PROMPT, True), ("The nurse <|sentinel_0|> that she <|sentinel_1|> late.", False)],
)
def test_an_encoder_decoder_reads_the_prompt_as_its_source(hallmark, folders, prompt, begins):
    """The model continues the text, or fills its sentinels."""
    report = hallmark.json("generate", str(folders["both"]), prompt, "--max-new-tokens", "7")
    model, subject = load_checkpoint(folders["both"]), open_audited_model(folders["both"], "cpu")
    first, second = map(subject.get_special_token_id, SENTINELS)
    if begins:
        source, start = [*subject.encode(prompt), first], [0, first]
        stop, forbid = (0, second), (1, first)
    else:
        parts = [subject.encode(part) for part in ("The nurse", " that she", " late.")]
        source, start = [*parts[0], first, *parts[1], second, *parts[2]], [0]
        stop, forbid = (0,), (1,)
    assert report["prompt_tokens"] == len(source)
    found = by_method(report)
    settings = {"max_new_tokens": 7, "stop": stop, "forbid": forbid, "sources": [source]}
    for method in ("greedy", "nucleus"):
        ((one,),) = generate(model, [start], **settings, **METHODS[method])
        assert [step["token_id"] for step in found[method]["steps"]] == one.ids
    for row in found.values():
        ids = [step["token_id"] for step in row["steps"]]
        batch = Batch(torch.tensor([[*start, *ids]]), source=torch.tensor([source]))
        assert row["log_prob"] == pytest.approx(sum(behind(model, batch, len(start))), abs=1e-3)


def test_a_masked_model_fills_masks(hallmark, folders):
    prompt = "The nurse said <|mask|> she would <|mask|> late."
    report = hallmark.json("generate", str(folders["encoder"]), prompt)
    model, subject = (
        load_checkpoint(folders["encoder"]),
        open_audited_model(folders["encoder"], "cpu"),
    )
    mask = subject.mask_id
    parts = [subject.encode(part) for part in ("The nurse said", " she would", " late.")]
    ids = [0, *parts[0], mask, *parts[1], mask, *parts[2]]
    (scores,) = compute_mask_log_probs(model, [ids], mask)
    assert [m["position"] for m in report["masks"]] == [i for i, t in enumerate(ids) if t == mask]
    for mask, line in zip(report["masks"], scores, strict=True):
        best = np.argsort(-line)[:10]
        assert [found["token_id"] for found in mask["candidates"]] == best.tolist()
        for found in mask["candidates"]:
            assert found["log_prob"] == pytest.approx(line[found["token_id"]], abs=1e-4)
            assert found["probability"] == pytest.approx(math.exp(found["log_prob"]))
    output = hallmark("generate", str(folders["encoder"]), prompt).stdout
    assert "mask 1, token" in output and "mask 2, token" in output and "probability" in output


def test_hugging_face_folders_generate_and_fill_masks(hallmark, gpt2_folder, bert_folder):  # noqa: F811
    transformers = pytest.importorskip("transformers")
    found = by_method(hallmark.json("generate", str(gpt2_folder), PROMPT, "--max-new-tokens", "8"))
    theirs = transformers.GPT2LMHeadModel.from_pretrained(gpt2_folder).eval()
    subject = open_audited_model(gpt2_folder, "cpu")
    ids = torch.tensor([subject.prepend_bos_id(subject.encode(PROMPT))])
    options = {"max_new_tokens": 8, "attention_mask": torch.ones_like(ids), "do_sample": False}
    expected = theirs.generate(ids, **options)[0, ids.shape[1] :].tolist()
    assert [step["token_id"] for step in found["greedy"]["steps"]] == expected
    (mask,) = hallmark.json("generate", str(bert_folder), "The nurse [MASK] late.")["masks"]
    bert = transformers.BertForMaskedLM.from_pretrained(bert_folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_folder)
    read = tokenizer("The nurse [MASK] late.", return_tensors="pt")
    place = read["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    with torch.no_grad():
        log_p = bert(**read).logits[0, place].log_softmax(-1)
    assert mask["position"] == place
    values, best = log_p.topk(10)
    assert [one["log_prob"] for one in mask["candidates"]] == pytest.approx(
        values.tolist(), abs=1e-4
    )
    assert mask["candidates"][0]["token_id"] == best[0]


@pytest.mark.parametrize(
    ("kind", "arguments", "code", "expected"),
    [
        ("decoder", [" \n"], 2, "the prompt is empty; enter some text"),
        (
            "decoder",
            ["word " * 60],
            2,
            "exceed the model's context of 48 tokens; shorten the prompt or lower --max-new-tokens",
        ),
        (
            "decoder",
            [PROMPT, "--max-new-tokens", "48"],
            2,
            "shorten the prompt or lower --max-new-tokens",
        ),
        ("decoder", [PROMPT, "--max-new-tokens", "0"], 2, "it must be at least 1"),
        ("decoder", [PROMPT, "--top-p", "0"], 2, "top_p must be above 0"),
        ("decoder", [PROMPT, "--beam-width", "0"], 2, "width must be at least 1, not 0"),
        ("both", ["word " * 60], 2, "exceed the model's context of 48 tokens"),
        ("both", ["a <|sentinel_7|> b"], 2, "has no <|sentinel_7|> token"),
        ("encoder", [PROMPT], 2, "write <|mask|> for each missing word"),
        (
            "encoder",
            ["word <|mask|>" * 40],
            2,
            "the model's context is 48 tokens; shorten the prompt",
        ),
    ],
)
def test_unsuitable_prompts_are_refused_in_one_sentence(
    hallmark, folders, kind, arguments, code, expected
):
    error = hallmark("generate", str(folders[kind]), *arguments, code=code).stderr
    assert expected in error and len(error.strip().splitlines()) == 1


def test_a_checkpoint_is_required(hallmark, tmp_path):
    assert "there is no store at" in hallmark("generate", "latest", PROMPT, code=2).stderr
    (tmp_path / "empty").mkdir()
    error = hallmark("generate", str(tmp_path / "empty"), PROMPT, code=2).stderr
    assert "the folder is empty; a checkpoint consists of config.json" in error


def test_damaged_weights_are_named_and_nothing_is_generated(hallmark, folders, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(folders["decoder"], broken)
    weights = load_file(broken / "model.safetensors")
    weights["embedding.weight"][:] = torch.nan
    save_file(weights, broken / "model.safetensors")
    done = hallmark("generate", str(broken), PROMPT, code=1)
    assert "not numbers (NaN)" in done.stderr and not done.stdout


def test_names_of_special_tokens_are_encoded_without_the_space_before(folders):
    subject = open_audited_model(folders["encoder"], "cpu")
    names = {"<|mask|>": subject.mask_id}
    alone = [subject.mask_id]
    assert _encode_with_special_tokens(subject, "<|mask|>", names) == alone
    assert _encode_with_special_tokens(subject, "a <|mask|> b ", names) == [
        *subject.encode("a"),
        subject.mask_id,
        *subject.encode(" b "),
    ]
    assert _encode_with_special_tokens(subject, "a <|mask|>", {}) == subject.encode("a <|mask|>")


def test_texts_are_redacted_as_on_pages(folders):
    shown = _make_text_in_context_redactor(
        ResolvedCheckpoint(folder_to_artifact(folders["decoder"], "checkpoint"))
    )
    assert shown(" late, as always.", PROMPT) == " late, as always."
    assert shown("\u202eabc", "") == "‹U+202E›abc"
    assert "jane" not in shown("Write to jane.doe@example.com now.", "")
    assert "█" in shown("you fucking bitch, go to hell", "")
    # Sensitive only together with the prompt.
    assert shown("ple.com now", "Write to jane.doe@exam").startswith("[not shown: adjoins")
    assert shown(" is hers", "jane.doe@example.com") == " is hers"


def test_a_prompt_is_redacted_if_an_output_completes_a_sensitive_text(folders):
    shown = _make_text_in_context_redactor(
        ResolvedCheckpoint(folder_to_artifact(folders["decoder"], "checkpoint"))
    )
    prompt = "Write to jane.ro"
    assert shown(prompt, "") == shown(prompt, "", " went home.") == prompt
    hidden = shown(prompt, "", "e@corp.example, please.")
    assert hidden.startswith(WITHHELD_PREFIX)
    assert _prefer_withheld_version([prompt, hidden, prompt]) == hidden
    assert _prefer_withheld_version([prompt, prompt]) == prompt
    # The token limit may cut off a text that the prompt begins.
    assert shown("e@corp.ex", prompt).startswith(WITHHELD_PREFIX)
    assert "jane" not in shown("Write to jane.roe@corp.ex", "")


def test_candidates_inside_redacted_text_are_withheld(hallmark, folders):
    asked = ("generate", str(folders["encoder"]))
    open_ = hallmark.json(*asked, "He ate the cake <|mask|> the fork", "--redact")["masks"][0]
    assert all("token_id" in found for found in open_["candidates"])
    secret = hallmark.json(*asked, "Write to jane.roe@corp.exa<|mask|>ple now", "--redact")
    assert {found["token"] for found in secret["masks"][0]["candidates"]} == {f"{WITHHELD_PREFIX}]"}
    assert not any("token_id" in found for found in secret["masks"][0]["candidates"])
    assert "jane" not in secret["prompt"]
    assert (
        WITHHELD_PREFIX
        in hallmark(*asked, "Write to jane.roe@corp.exa<|mask|>ple now", "--redact").stdout
    )


def test_redacted_reports_contain_no_tokens(hallmark, folders):
    report = hallmark.json(
        "generate", str(folders["decoder"]), PROMPT, "--redact", "--max-new-tokens", "5"
    )
    assert report["is_redacted"] and all("steps" not in row for row in report["outputs"])
    plain = hallmark.json("generate", str(folders["decoder"]), PROMPT, "--max-new-tokens", "5")
    for row, other in zip(report["outputs"], plain["outputs"], strict=True):
        assert row["log_prob"] == other["log_prob"]


def contents(store):
    return sorted(str(path) for path in store.rglob("*"))


@pytest.mark.slow
def test_generating_from_a_run_does_not_change_the_store(smoke):
    before = contents(smoke.store)
    asked = ("generate", smoke.first, "Return the", "--max-new-tokens", "12")
    output = smoke(*asked).stdout
    assert output.startswith(f"{smoke.first}@")
    assert all(f"\n{method} (" in output for method in METHODS)
    assert output.count("per token") == len(METHODS)
    trained = smoke.json(*asked)  # the same texts again
    for row in trained["outputs"]:
        assert f"{row['log_prob']:.2f}, {row['log_prob_per_token']:.2f} per token" in output
    # For an untrained model, all words are about equally likely.
    untrained = smoke.json("generate", f"{smoke.first}@0", *asked[2:], "--redact", "--seed", "1")
    assert untrained["checkpoint"] == f"{smoke.first}@0" and untrained["seed"] == 1
    chance = by_method(untrained)["sampling"]["log_prob_per_token"]
    assert by_method(trained)["greedy"]["log_prob_per_token"] > chance + 1
    assert contents(smoke.store) == before
