"""Test that responses do not depend on batch size, order or the other requests."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hallmark.tasks.audits.audit_tables import RequestBuilder
from hallmark.tasks.audits.audited_models.opening import open_audited_model
from hallmark.tasks.audits.inference import (
    generate_responses,
    group_distinct_requests_into_chunks,
)
from tests.tasks.audits.audited_models.random_models import BERT, LLAMA, MAMBA, save_model

pytestmark = pytest.mark.slow

MODELS = {
    "LlamaForCausalLM": LLAMA,
    "BertForMaskedLM": BERT,
    "MambaForCausalLM": MAMBA,  # has no cache of keys and values
    "ConvBertForMaskedLM": BERT | {"embedding_size": 32},  # padding changes its scores
}

#: Largest difference in nats: batches of other shapes are summed in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    folder = save_model(
        tmp_path_factory.mktemp("model"), request.param, 0.2, **MODELS[request.param]
    )
    return open_audited_model(folder, device="cpu")


def build_requests(model):
    """Build requests of all kinds that a model answers, with contexts that several share."""
    rng = np.random.default_rng(0)
    builder = RequestBuilder()

    def draw_ids(length):
        return rng.integers(10, 300, length).tolist()

    shared_contexts = [draw_ids(length) for length in (20, 20, 33)]
    for number in range(24):
        item = builder.add_item(f"text {number}")
        context = [0, *(shared_contexts[number % 3] if number % 2 else draw_ids(number))]
        targets = [draw_ids(1 + (number + n) % 5) for n in range(1 + number % 4)]
        if model.model_kind == "masked":
            builder.request_log_probs(item, [], [[*context[1:], *t] for t in targets])
            builder.request_completions(item, context[1:], targets[0], count=3, max_new_tokens=1)
            continue
        builder.request_log_probs(item, context, targets, rank_statistics=number % 5 == 0)
        builder.request_continuations(item, context, max_new_tokens=4, temperature=0, part="greedy")
        builder.request_continuations(item, context, max_new_tokens=4, draws=3, part="sampled")
        builder.request_completions(item, context, [], count=3, max_new_tokens=3, part="beams")
    return builder.build_requests_table()


def answer_requests(model, requests):
    """Answer requests as the stage does, and return the responses by request and draw."""
    return {
        (response.request, response.draw): response
        for chunk in group_distinct_requests_into_chunks(requests)
        for response in generate_responses(model, chunk.requests.to_pylist())
    }


@settings(
    max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
def test_responses_do_not_depend_on_the_other_requests(model, data):
    requests = build_requests(model)
    expected = answer_requests(model, requests)
    order = data.draw(st.permutations(range(len(requests))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(requests) - 1), max_size=5)))
    batch_size = data.draw(st.sampled_from([None, 1, 3, 10]))
    bounds = [0, *cuts, len(requests)]
    responses = {}
    model.batch_size = batch_size
    try:
        for begin, end in pairwise(bounds):
            part = requests.take(pa.array(order[begin:end], pa.int64()))
            responses |= answer_requests(model, part)
    finally:
        model.batch_size = None
    assert responses.keys() == expected.keys() and len(expected) > len(requests)
    for key, response in responses.items():
        assert response.token_ids == expected[key].token_ids
        assert response.text == expected[key].text
        assert response.stop_reason == expected[key].stop_reason
        for column in ("log_probs", "vocabulary_mean", "vocabulary_std"):
            values, expected_values = getattr(response, column), getattr(expected[key], column)
            assert (values is None) == (expected_values is None)
            if values is not None:
                np.testing.assert_allclose(values, expected_values, rtol=TOLERANCE, atol=TOLERANCE)
        if response.ranks is not None:
            np.testing.assert_array_equal(response.ranks, expected[key].ranks)
