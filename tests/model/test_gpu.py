"""Tests that need a CUDA device; they are skipped without one."""

from __future__ import annotations

import pytest
import torch

from hallmark.model.decoding.generation import generate
from hallmark.model.masks import MaskSpec
from hallmark.model.objectives import build_causal_batch
from tests.model.oracles import naive_generate, tiny, toy_rows
from tests.model.training.training import finish, follow, log, run, start, write_job

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PROMPTS = [[0, 5], [0, 7, 8, 9, 10, 11], [0, 3, 4]]


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_cuda_graphs_generate_the_same_text_as_the_cpu_without_a_cache(positions):
    model = tiny(positions=positions, context=512)
    expected = [
        naive_generate(model, p, 40, lambda log_p, t: int(log_p.argmax()))[0] for p in PROMPTS
    ]
    continuations = generate(
        model.cuda(), PROMPTS, max_new_tokens=40, temperature=0.0, stop=(), forbid=()
    )
    assert [row[0].ids for row in continuations] == expected


def test_cuda_graphs_handle_new_windows_and_stopped_rows():
    model = tiny(context=16)
    settings = {"max_new_tokens": 40, "samples": 6, "seed": 3, "stop": (0, 5, 6, 7, 8)}
    expected = generate(model, PROMPTS, **settings)
    continuations = generate(model.cuda(), PROMPTS, **settings)
    pairs = [
        (a, b)
        for one, other in zip(expected, continuations, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    assert sum(a.ids == b.ids for a, b in pairs) >= len(pairs) - 1  # one draw may be at the edge
    assert len({len(a.ids) for a, _ in pairs}) > 3


def test_flex_attention_trains_like_the_dense_mask():
    rows = toy_rows(4, 256, 61)
    batch = build_causal_batch(rows.astype("int64"), document_mask=True)
    losses, norms = [], []
    for device in ("cpu", "cuda"):
        model = tiny(context=256, d_model=64, n_heads=4).to(device)
        assert MaskSpec(causal=True, segments=batch.segments).is_block_mask_worthwhile(256, 256)
        loss = model.compute_loss_sum(batch.to_device(torch.device(device)))
        loss.backward()
        losses.append(loss.item())
        norms.append(sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


def test_training_on_the_gpu_resumes_after_sigterm(inputs, tmp_path):
    job = write_job(inputs, tmp_path / "work", device="cuda", precision="bf16", compile=True)
    process = start(job)
    follow(process, lambda e: e["event"] == "step")
    process.terminate()
    assert finish(process)[0] == 143
    code, events = run(job)
    assert code == 0, events
    table = log(tmp_path / "work")
    assert table["step"].to_pylist() == list(range(1, 41))
    assert table["loss"].to_pylist()[-1] < 0.8 * table["loss"].to_pylist()[0]
