"""Causal attention with its gradient on the CPU, in C: what ``plain.attention`` computes.

torch's fused kernel computes all scores of up to 512 keys, hidden ones too, by small products that
reach half of the processor's speed. Over 256 to 512 tokens this one takes 0.6 of its time, over
1,024 0.8, over more as long. It goes by blocks of 64 queries and 64 keys, keeps of the weights the
logarithm of each query's sum, and makes them again for the gradient (Dao et al. 2022,
FlashAttention).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model.native import heads_of

BLOCK, LONGEST = 64, 1024
#: The products of blocks stand in AVX-512's registers; with fewer they would not fit.
FITS = "AVX512" in torch.backends.cpu.get_cpu_capability()

#: A tensor is where it begins, and how far its rows, heads and tokens lie apart.
SOURCE = r"""
#include <math.h>
#include <omp.h>

enum { BLOCK = 64, WIDE = 16, PARTS = BLOCK / WIDE, OWN = SIZE / WIDE, ROWS = OWN <= 2 ? 8 : 4 };
typedef float vec __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef struct { float *at; int64_t row, head, token; } tensor;

static inline float *of(const tensor *x, int64_t row, int64_t head)
{
    return x->at + row * x->row + head * x->head;
}

/* turned (SIZE, length) of x (length, SIZE) */
static void turn(const float *x, int64_t apart, int64_t length, float *turned)
{
    for (int64_t t = 0; t < length; t += WIDE)
        for (int d = 0; d < SIZE; d++)
            for (int i = 0; i < WIDE; i++)
                turned[d * length + t + i] = x[(t + i) * apart + d];
}

/* out (BLOCK, BLOCK) = x (BLOCK, SIZE) times a block of turned (SIZE, length) */
static inline void scores(
    const float *x, int64_t apart, const float *turned, int64_t length, float *out)
{
    for (int i = 0; i < BLOCK; i += 4) {
        vec sum[4][PARTS] = {0};
        for (int d = 0; d < SIZE; d++)
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
                for (int t = 0; t < PARTS; t++)
                    sum[r][t] += x[(i + r) * apart + d] *
                                 *(const vec *)(turned + d * length + t * WIDE);
        for (int r = 0; r < 4; r++)
            for (int t = 0; t < PARTS; t++)
                *(vec *)(out + (i + r) * BLOCK + t * WIDE) = sum[r][t];
    }
}

/* out (BLOCK, SIZE) += p (BLOCK, BLOCK) times x (BLOCK, SIZE); p's rows and columns lie as said */
static inline void add(
    const float *p, int64_t rows, int64_t columns, const float *x, int64_t apart, float *out,
    int64_t out_apart)
{
    for (int i = 0; i < BLOCK; i += ROWS) {
        vec sum[ROWS][OWN];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int t = 0; t < OWN; t++)
                sum[r][t] = *(const vec *)(out + (i + r) * out_apart + t * WIDE);
        for (int j = 0; j < BLOCK; j++)
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
                for (int t = 0; t < OWN; t++)
                    sum[r][t] += p[(i + r) * rows + j * columns] *
                                 *(const vec *)(x + j * apart + t * WIDE);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int t = 0; t < OWN; t++)
                *(vec *)(out + (i + r) * out_apart + t * WIDE) = sum[r][t];
    }
}

/* p: scores, to weights of which `seen` may be seen; out and total scaled down to a new maximum. */
static inline void soften(float *p, int seen, float *top, float *total, float *out)
{
    float high = *top, here = 0.0f;
    for (int t = seen; t < BLOCK; t++)
        p[t] = -INFINITY;
#pragma omp simd reduction(max : high)
    for (int t = 0; t < BLOCK; t++) {
        p[t] *= SCALE;
        high = p[t] > high ? p[t] : high;
    }
#pragma omp simd reduction(+ : here)
    for (int t = 0; t < BLOCK; t++) {
        p[t] = t < seen ? exponential(p[t] - high) : 0.0f;
        here += p[t];
    }
    const float lower = exponential(*top - high);
    for (int d = 0; d < SIZE; d++)
        out[d] *= lower;
    *top = high;
    *total = *total * lower + here;
}

/* q, k, v and y (rows, heads, length, SIZE), sums (rows, heads, length); turned: room for k, turned
   over, for each thread. */
void forward(
    const tensor *q, const tensor *k, const tensor *v, const tensor *y, float *sums, float *turned,
    int64_t rows, int64_t heads, int64_t length, int64_t threads)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)threads)
    for (int64_t task = 0; task < rows * heads; task++) {
        const int64_t row = task / heads, head = task % heads;
        const float *queries = of(q, row, head), *values = of(v, row, head);
        float *keys = turned + omp_get_thread_num() * length * SIZE;
        turn(of(k, row, head), k->token, length, keys);
        for (int64_t i = 0; i < length; i += BLOCK) {
            float p[BLOCK * BLOCK], out[BLOCK * SIZE] = {0}, top[BLOCK], total[BLOCK] = {0};
            for (int r = 0; r < BLOCK; r++)
                top[r] = -INFINITY;
            for (int64_t j = 0; j <= i; j += BLOCK) {
                scores(queries + i * q->token, q->token, keys + j, length, p);
                for (int r = 0; r < BLOCK; r++) {
                    const int seen = j == i ? r + 1 : BLOCK;
                    soften(p + r * BLOCK, seen, top + r, total + r, out + r * SIZE);
                }
                add(p, BLOCK, 1, values + j * v->token, v->token, out, SIZE);
            }
            for (int r = 0; r < BLOCK; r++) {
                float *to = of(y, row, head) + (i + r) * y->token;
                for (int d = 0; d < SIZE; d++)
                    to[d] = out[r * SIZE + d] / total[r];
                sums[task * length + i + r] = top[r] + logf(total[r]);
            }
        }
    }
}

/* As above; g, the gradient of y, and those of q, k and v, which begin as zeros. turned has room
   for k and v, turned over, for each thread. */
void backward(
    const tensor *q, const tensor *k, const tensor *v, const tensor *y, const float *sums,
    const tensor *g, const tensor *of_q, const tensor *of_k, const tensor *of_v, float *turned,
    int64_t rows, int64_t heads, int64_t length, int64_t threads)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)threads)
    for (int64_t task = 0; task < rows * heads; task++) {
        const int64_t row = task / heads, head = task % heads;
        float *keys = turned + 2 * omp_get_thread_num() * length * SIZE;
        float *values = keys + length * SIZE;
        turn(of(k, row, head), k->token, length, keys);
        turn(of(v, row, head), v->token, length, values);
        for (int64_t i = 0; i < length; i += BLOCK) {
            const float *queries = of(q, row, head) + i * q->token;
            const float *gradient = of(g, row, head) + i * g->token;
            const float *result = of(y, row, head) + i * y->token;
            float p[BLOCK * BLOCK], s[BLOCK * BLOCK], both[BLOCK];
            for (int r = 0; r < BLOCK; r++) {
                float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                for (int d = 0; d < SIZE; d++)
                    sum += gradient[r * g->token + d] * result[r * y->token + d];
                both[r] = sum;
            }
            for (int64_t j = 0; j <= i; j += BLOCK) {
                scores(queries, q->token, keys + j, length, p);
                scores(gradient, g->token, values + j, length, s);
                for (int r = 0; r < BLOCK; r++) {
                    const int seen = j == i ? r + 1 : BLOCK;
                    const float z = sums[task * length + i + r], d = both[r];
                    float *weight = p + r * BLOCK, *slope = s + r * BLOCK;
#pragma omp simd
                    for (int t = 0; t < BLOCK; t++) {
                        weight[t] = t < seen ? exponential(weight[t] * SCALE - z) : 0.0f;
                        slope[t] = weight[t] * (slope[t] - d) * SCALE;
                    }
                }
                float *to_v = of(of_v, row, head) + j * of_v->token;
                float *to_k = of(of_k, row, head) + j * of_k->token;
                float *to_q = of(of_q, row, head) + i * of_q->token;
                add(p, 1, BLOCK, gradient, g->token, to_v, of_v->token);
                add(s, 1, BLOCK, queries, q->token, to_k, of_k->token);
                add(s, BLOCK, 1, of(k, row, head) + j * k->token, k->token, to_q, of_q->token);
            }
        }
    }
}
"""


class _Tensor(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), *((n, ctypes.c_int64) for n in ("row", "head", "token"))]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """The result (B, H, T, D) with the mask "causal", of (B, H, T, D) each; None where the kernel
    is not for them: it is for training in float32 on the CPU, a multiple of 64 and at most 1,024
    tokens and heads of 16, 32, 64 or 128, and where AVX-512 and a C compiler are there."""
    length, size = q.shape[2:]
    if not (
        FITS
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        # Others, as FakeTensor, may have no memory.
        and all(type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" for x in (q, k, v))
        and q.dtype == k.dtype == v.dtype == torch.float32
        and torch.is_grad_enabled()
        and q.requires_grad
        and q.shape == k.shape == v.shape
        and length % BLOCK == 0
        and length <= LONGEST
        and size in (16, 32, 64, 128)
        and _made(size) is not None
    ):
        return None
    result: Tensor = _Causal.apply(q, k, v)
    return result


@functools.cache
def _made(size: int) -> ctypes.CDLL | None:
    try:
        made = heads_of(size, SOURCE)
    except RuntimeError:  # torch's own kernel does it, too
        return None
    for function, count in ((made.forward, 6), (made.backward, 10)):
        function.argtypes = [ctypes.c_void_p] * count + [ctypes.c_int64] * 4
        function.restype = None
    return made


def _like(x: Tensor) -> Tensor:
    """Room for one as x (B, H, T, D) that lies as (B, T, H, D), as the layers about it read it."""
    return x.new_empty((x.shape[0], x.shape[2], x.shape[1], x.shape[3])).transpose(1, 2)


def _call(
    function: Any, before: list[Tensor], sums: Tensor, behind: list[Tensor], turned: int
) -> None:
    """``before`` and ``behind``: the arguments on both sides of ``sums``; ``turned``: how many
    tensors each thread turns."""
    rows, heads, length, size = before[0].shape
    threads = torch.get_num_threads()
    room = sums.new_empty(threads * turned * length * size)
    first, last = ([ctypes.byref(_Tensor(x.data_ptr(), *x.stride()[:3])) for x in tensors]
                   for tensors in (before, behind))  # fmt: skip
    function(*first, sums.data_ptr(), *last, room.data_ptr(), rows, heads, length, threads)


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        y, sums = _like(q), q.new_empty(q.shape[:3])
        _call(_made(q.shape[3]).forward, [q, k, v, y], sums, [], 1)  # type: ignore[union-attr]
        ctx.save_for_backward(q, k, v, y, sums)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, ...]:
        q, k, v, y, sums = ctx.saved_tensors
        (g,) = (x if x.stride(3) == 1 else x.contiguous() for x in grad_outputs)
        grads = tuple(_like(x).zero_() for x in (q, k, v))
        function = _made(q.shape[3]).backward  # type: ignore[union-attr]
        _call(function, [q, k, v, y], sums, [g, *grads], 2)
        return grads
