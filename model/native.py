"""C that the machine's compiler makes when it is first asked for."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

#: e^x of x <= 0, as Cephes: 2^n, put together bit by bit, times a polynomial of what is left.
EXPONENTIAL = r"""
#include <stdint.h>
#include <string.h>

static inline float exponential(float x)
{
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f, power;  /* n stands in the last bits */
    const float n = shifted - 12582912.0f, r = x - n * 0.693359375f + n * 2.12194440e-4f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    memcpy(&power, &bits, sizeof bits);
    float sum = 1.9875691500e-4f;
    sum = sum * r + 1.3981999507e-3f;
    sum = sum * r + 8.3334519073e-3f;
    sum = sum * r + 4.1665795894e-2f;
    sum = sum * r + 1.6666665459e-1f;
    sum = sum * r + 5.0000001201e-1f;
    return (sum * r * r + r + 1.0f) * power;
}
"""


def heads_of(head_dim: int, source: str) -> ctypes.CDLL:
    """``source``, made for heads of this size: SIZE, and SCALE, 1 / sqrt(SIZE).

    Raises:
        RuntimeError: no C compiler, one that knows no OpenMP, or no place for what it makes; in a
            part of a sentence: what is missing, or what the compiler says.
    """
    try:
        compiler, *options = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        raise RuntimeError(f"CC cannot be read: {error}") from error
    how = [*options, "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
    sizes = [f"-DSIZE={head_dim}", f"-DSCALE={head_dim**-0.5!r}f"]
    if shutil.which(compiler) is None:
        raise RuntimeError(f"{compiler} is no C compiler")
    try:
        with tempfile.TemporaryDirectory() as folder:
            written, library = Path(folder) / "heads.c", Path(folder) / "heads.so"
            written.write_text(EXPONENTIAL + source, encoding="utf-8")
            call = [compiler, *how, *sizes, str(written), "-o", str(library), "-lm"]
            english = os.environ | {"LC_ALL": "C"}  # an error is found by this word
            subprocess.run(call, capture_output=True, check=True, env=english)
            return ctypes.CDLL(str(library))
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").splitlines()
        first = next((line for line in said if "error" in line), f"code {error.returncode}")
        raise RuntimeError(f"{compiler} failed: {first}") from error
    except OSError as error:
        raise RuntimeError(f"{compiler} made nothing in TMPDIR that loads: {error}") from error
