"""Attention of one new token a row over the cache, in C: what ``plain.attention`` computes.

torch's operations write keys and values, make scores, weights and sum one after the other, for
every row as far as the longest reaches, and read the cache at half of the memory's speed. This
kernel reads what is filled, once, and has the memory bring the next head's keys and values
meanwhile: a model of 5 million parameters wrote 64 texts in two thirds of the time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from model import kernels
from model.architecture import Transformer
from model.attention import Attention
from model.native import heads_of

#: Numbers in a layer's keys up to which one thread reads them sooner than two are awake.
FEW = 1 << 18

REMEDY = "name one that knows OpenMP in CC, as gcc does, look at TMPDIR, or leave out compiled"

#: A row's new token stands at its slot, and sees that slot and all before it. The softmax goes in
#: blocks (Milakov, Gimelshein 2018): what was summed is scaled down to each new maximum. Heads go
#: to the threads by turns, for rows of like length stand together.
SOURCE = r"""
enum { BLOCK = 64, LINE = 16 };  /* slots; numbers in a line of the processor's cache */

static void attend_head(
    const float *query, const float *keys, const float *values, int64_t filled, int64_t ahead,
    float *out)
{
    float scaled[SIZE], sum[SIZE], top = -__builtin_inff(), total = 0.0f;
    for (int d = 0; d < SIZE; d++) {
        scaled[d] = query[d] * SCALE;
        sum[d] = 0.0f;
    }
    for (int64_t begin = 0; begin < filled; begin += BLOCK) {
        const int64_t n = filled - begin < BLOCK ? filled - begin : BLOCK;
        const float *key = keys + begin * SIZE, *value = values + begin * SIZE;
        float p[BLOCK], high = top, here = 0.0f;
        for (int64_t t = 0; t < n; t++) {
            float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
            for (int d = 0; d < SIZE; d++)
                dot += scaled[d] * key[t * SIZE + d];
            p[t] = dot;
            for (int d = 0; d < SIZE; d += LINE)
                __builtin_prefetch(key + ahead + t * SIZE + d, 0, 1);
        }
#pragma omp simd reduction(max : high)
        for (int64_t t = 0; t < n; t++)
            high = p[t] > high ? p[t] : high;
#pragma omp simd reduction(+ : here)
        for (int64_t t = 0; t < n; t++) {
            p[t] = exponential(p[t] - high);
            here += p[t];
        }
        const float lower = exponential(top - high);
        top = high;
        total = total * lower + here;
        for (int d = 0; d < SIZE; d++)
            sum[d] *= lower;
        for (int64_t t = 0; t < n; t++) {
            for (int d = 0; d < SIZE; d += LINE)
                __builtin_prefetch(value + ahead + t * SIZE + d, 0, 1);
#pragma omp simd
            for (int d = 0; d < SIZE; d++)
                sum[d] += p[t] * value[t * SIZE + d];
        }
    }
    for (int d = 0; d < SIZE; d++)
        out[d] = sum[d] / total;
}

/* q (rows, heads, SIZE), k and v (rows, kv_heads, SIZE), rows as far apart as their strides say;
   keys and values (rows, kv_heads, capacity, SIZE); out (rows, heads, SIZE). Returns whether a slot
   is none of the cache's; such a row is left alone. */
int attend(
    const float *q, const float *k, const float *v, float *keys, float *values,
    const int64_t *slots, float *out, int64_t rows, int64_t heads, int64_t kv_heads,
    int64_t capacity, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t threads)
{
    const int64_t tasks = rows * kv_heads, share = heads / kv_heads, bytes = SIZE * sizeof(float);
    int outside = 0;
#pragma omp parallel for schedule(static, 1) num_threads((int)threads) reduction(| : outside)
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t row = task / kv_heads, head = task % kv_heads, slot = slots[row];
        if (slot < 0 || slot >= capacity) {
            outside = 1;
            continue;
        }
        float *own_keys = keys + task * capacity * SIZE;
        float *own_values = values + task * capacity * SIZE;
        memcpy(own_keys + slot * SIZE, k + row * k_stride + head * SIZE, bytes);
        memcpy(own_values + slot * SIZE, v + row * v_stride + head * SIZE, bytes);
        const int64_t ahead = task + threads < tasks ? threads * capacity * SIZE : 0;
        for (int64_t h = head * share; h < (head + 1) * share; h++)
            attend_head(
                q + row * q_stride + h * SIZE, own_keys, own_values, slot + 1, ahead,
                out + (row * heads + h) * SIZE);
    }
    return outside;
}
"""

#: (q (B, H, 1, D), k and v (B, Hkv, 1, D), keys and values (B, Hkv, capacity, D), slots (B,)) ->
#: (B, H, 1, D): puts k and v at the slots, and attends.
StepAttention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def serves(model: Transformer) -> bool:
    """Whether the kernel computes what the model does here and now: in float32, on the CPU, and by
    no other kernel that was put in its place."""
    weight = model.embedding.weight
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and all(attention.kernel is kernels.attention for attention in attentions)
    )


@functools.cache
def step_attention(head_dim: int) -> StepAttention:
    """The kernel for heads of this size; making it takes a fifth of a second.

    Raises:
        RuntimeError: no C compiler, one that knows no OpenMP, or no place for what it makes.
    """
    try:
        function: Callable[..., int] = heads_of(head_dim, SOURCE).attend
    except RuntimeError as error:
        raise RuntimeError(f"Compiled steps need a C compiler: {error}: {REMEDY}.") from error
    function.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 8  # type: ignore[attr-defined]
    function.restype = ctypes.c_int  # type: ignore[attr-defined]

    def attend(
        q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor
    ) -> Tensor:
        rows, heads, _, size = q.shape
        q, k, v, slots = *map(_heads_together, (q, k, v)), slots.contiguous()
        out = q.new_empty(rows, heads, 1, size)
        tensors = (q, k, v, keys, values, slots, out)
        if not (
            keys.is_contiguous() and values.is_contiguous() and slots.dtype == torch.int64
            and all(x.dtype == torch.float32 for x in (q, k, v, keys, values))
        ):  # fmt: skip
            raise ValueError("Compiled attention is of float32, with a cache in one piece.")
        sizes = (rows, heads, *keys.shape[1:3], q.stride(0), k.stride(0), v.stride(0))
        threads = 1 if keys.numel() <= FEW else torch.get_num_threads()
        if function(*(x.data_ptr() for x in tensors), *sizes, threads):
            raise IndexError(f"The cache has {keys.shape[2]} slots; slots are {slots.tolist()}.")
        return out

    return attend


def _heads_together(x: Tensor) -> Tensor:
    """x (B, H, 1, D) with each row's heads one behind the other; rows may lie apart."""
    together = x.stride(1) == x.shape[3] and x.stride(3) == 1
    return x if together else x.contiguous()
