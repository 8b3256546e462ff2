"""GAE of outdo against a C loop, in one interleaved run: `python benchmarks/gae.py [--rounds 30]`.

Two C loops, both `gcc -O3 -march=native -ffast-math`:
`c classic` is the loop of every PPO script (steps × environments; reward, value, done);
`c same` has outdo's contract (rows × steps, next_value, discount, cut, valid).
Outdo: `kernel` on arrays, `outdo` on tensors (checks, allocation, kernel), `torch` the differentiable form.
Prints the median time of a call with the spread (25 to 75 %), and the ratio to `c classic`. Needs gcc.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from outdo.core import kernels, returns

SIZES = ((128, 8), (2048, 16), (128, 4096))
LAM, GAMMA = 0.95, 0.99
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
void classic(const float *r, const float *v, const float *last, const float *done, float gamma, float lam,
             float *out, ptrdiff_t T, ptrdiff_t B) {
  for (ptrdiff_t b = 0; b < B; b++) {
    ptrdiff_t i = (T - 1) * B + b;
    out[i] = r[i] + gamma * (1 - done[i]) * last[b] - v[i];
  }
  for (ptrdiff_t t = T - 2; t >= 0; t--)
    for (ptrdiff_t b = 0; b < B; b++) {
      ptrdiff_t i = t * B + b;
      float live = 1 - done[i];
      out[i] = r[i] + gamma * live * v[i + B] - v[i] + gamma * lam * live * out[i + B];
    }
}
void same(const float *r, const float *v, const float *n, const float *d, const uint8_t *cut,
          const uint8_t *valid, float lam, float *out, ptrdiff_t T, ptrdiff_t B) {
  for (ptrdiff_t b = 0; b < B; b++) {
    float x = 0;
    for (ptrdiff_t t = T - 1; t >= 0; t--) {
      ptrdiff_t i = b * T + t;
      if (!valid[i]) { out[i] = 0; continue; }
      float delta = r[i] + d[i] * n[i] - v[i];
      x = cut[i] ? delta : delta + d[i] * lam * x;
      out[i] = x;
    }
  }
}
"""


def compile_c(folder: Path) -> ctypes.CDLL:
    """Compile the C loops in `folder`."""
    source, library = folder / "gae.c", folder / "gae.so"
    source.write_text(SOURCE)
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


def contenders(library: ctypes.CDLL, steps: int, rows: int) -> dict[str, Callable[[], object]]:
    """One call each on the same episode data; asserts that all give the same advantages."""
    rng = np.random.default_rng(0)
    shape = (rows, steps)
    reward, value = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    final = rng.normal(size=rows).astype(np.float32)
    done = rng.random(shape) < 0.02
    next_value = np.concatenate([value[:, 1:], final[:, None]], axis=1)
    discount = np.where(done, 0, GAMMA).astype(np.float32)
    valid = np.ones(shape, np.bool_)
    arrays = (reward, value, next_value, discount, done, valid)
    tensors = tuple(torch.from_numpy(array) for array in arrays)
    turned = [np.ascontiguousarray(a.T) for a in (reward, value, done.astype(np.float32))]
    outs = {"classic": np.empty((steps, rows), np.float32), "same": np.empty(shape, np.float32)}
    kernel_out, lam = np.empty(shape, np.float32), np.float32(LAM)

    def pointer(array: np.ndarray) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    size = (ctypes.c_ssize_t(steps), ctypes.c_ssize_t(rows))
    classic = (
        *map(pointer, (turned[0], turned[1], final, turned[2])),
        ctypes.c_float(GAMMA),
        ctypes.c_float(LAM),
        pointer(outs["classic"]),
        *size,
    )
    same = (*map(pointer, arrays), ctypes.c_float(LAM), pointer(outs["same"]), *size)
    calls: dict[str, Callable[[], object]] = {
        "c classic": lambda: library.classic(*classic),
        "c same": lambda: library.same(*same),
        "kernel": lambda: kernels.gae(*arrays, lam, kernel_out),
        "outdo": lambda: returns.gae(*tensors, LAM),
        "torch": lambda: returns.gae_torch(*tensors, LAM),
    }
    for call in calls.values():
        call()
    truth = outs["classic"].T
    got = (
        outs["same"],
        kernel_out,
        returns.gae(*tensors, LAM).numpy(),
        returns.gae_torch(*tensors, LAM).numpy(),
    )
    for other in got:
        np.testing.assert_allclose(other, truth, rtol=1e-4, atol=1e-4)
    # Keep the arrays alive: C holds bare pointers.
    calls["c classic"].__dict__["keep"] = (arrays, turned, final, outs)
    return calls


def measure(calls: dict[str, Callable[[], object]], elements: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds per call, `rounds` values each, taken in turn."""
    repeat = max(1, 100_000 // elements)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            times[name].append((time.perf_counter() - start) / repeat * 1e6)
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="GAE of outdo against a C loop")
    parser.add_argument("--rounds", type=int, default=30, help="measurements of each contender")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        library = compile_c(Path(folder))
        print(f"{'steps x rows':>12} {'':10} {'median us':>10} {'25 to 75 %':>18} {'/ c classic':>11}")
        for steps, rows in SIZES:
            times = measure(contenders(library, steps, rows), steps * rows, rounds)
            base = statistics.median(times["c classic"])
            for name, values in times.items():
                low, middle, high = statistics.quantiles(values, n=4)
                spread = f"{low:.1f} to {high:.1f}"
                print(
                    f"{f'{steps} x {rows}':>12} {name:10} {middle:10.1f} {spread:>18} {middle / base:11.2f}"
                )


if __name__ == "__main__":
    main()
