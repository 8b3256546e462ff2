"""Products of a matrix with a few vectors, compiled, and how threads share them.

With few vectors a product is bound by how fast the matrix comes out of memory, so every weight should be read once,
be asked for early, and meet all vectors while it is in a register. The vectors are laid out as columns, `LANES` of
them or half as many side by side, and a tile of the product keeps its sums in vector registers while it walks along
some of the matrix's rows, whose successors it asks for meanwhile. A sum is taken in the order of the inputs, so what
a vector gives depends neither on its neighbours nor on the number of threads.

Axes: N vectors, A inputs, B outputs.
"""

# numba's extension interface is untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

LANES = 16
"""Columns of a tile; half of it where no more vectors are left."""
LINE = 16
"""Weights in a line of the processor's cache."""
SPINS = 20_000
"""How often a thread looks whether the others have arrived before it offers them its core."""

COMPILED: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
"""How the functions are compiled."""
_yield = types.ExternalFunction("sched_yield", types.intc())
_INT, _FLOAT = ir.IntType(64), ir.FloatType()


class Team(NamedTuple):
    """Threads that work on the same rows: this one's place in them, and the counter `meeting` [1] that they share."""

    rank: int
    size: int
    meeting: NDArray[np.int64]


def _tile(lanes: int, height: int) -> Any:
    """Intrinsic for `height` rows of a matrix by `lanes` columns: `tile(w, at, last, x, start, out, place)`.

    Sums of the rows `at`, `at + 1`, … (those beyond `last` are `last` again) of w [B, A] with the columns that begin
    at `start` of x, A by `lanes`, go to `out`, [height, lanes] from `place` on.
    """
    vector = ir.VectorType(_FLOAT, lanes)
    nothing = ir.Constant(vector, ir.Undefined)
    spread = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)  # lane 0 into every lane

    @intrinsic
    def tile(_typing: Any, w: Any, at: Any, last: Any, x: Any, start: Any, out: Any, place: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            w, x, out = (context.make_array(signature.args[i])(context, b, args[i]) for i in (0, 3, 5))
            at, last, size = args[1], args[2], cgutils.unpack_tuple(b, w.shape)[1]
            columns = b.gep(x.data, [args[4]])
            rows = list[Any]()
            ahead = list[Any]()
            for r in range(height):
                row = b.add(at, _INT(r))
                row = b.select(b.icmp_signed("<", row, last), row, last)
                rows.append(b.gep(w.data, [b.mul(row, size)]))
                ahead.append(b.gep(rows[-1], [b.mul(size, _INT(height))]))
            sums = [cgutils.alloca_once(b, vector) for _ in rows]
            for each in sums:
                b.store(ir.Constant(vector, None), each)
            with cgutils.for_range_slice(b, _INT(0), size, _INT(LINE), intp=_INT) as (first, _):
                for row in ahead:
                    _prefetch(b, b.gep(row, [first]))
                end = b.add(first, _INT(LINE))
                end = b.select(b.icmp_signed("<", end, size), end, size)
                with cgutils.for_range_slice(b, first, end, _INT(1), intp=_INT) as (a, _):
                    column = b.bitcast(b.gep(columns, [b.mul(a, _INT(lanes))]), vector.as_pointer())
                    xs = b.load(column, align=4)
                    for row, each in zip(rows, sums, strict=True):
                        weight = b.insert_element(nothing, b.load(b.gep(row, [a])), ir.IntType(32)(0))
                        product = b.fmul(b.shuffle_vector(weight, nothing, spread), xs, flags=["contract"])
                        b.store(b.fadd(b.load(each), product, flags=["contract"]), each)
            for r, each in enumerate(sums):
                into = b.gep(out.data, [b.add(args[6], _INT(r * lanes))])
                b.store(b.load(each), b.bitcast(into, vector.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(w, at, last, x, start, out, place), generate

    return tile


def _prefetch(b: Any, pointer: Any) -> None:
    """Ask for the cache line at `pointer`, to be read and kept."""
    pointer, number = b.bitcast(pointer, ir.IntType(8).as_pointer()), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
    ask = b.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    b.call(ask, [pointer, number(0), number(3), number(1)])


WIDE, NARROW = 6, 8
"""Rows of a tile with all lanes, and with half of them: with AVX2 the sums then take 12 and 8 of 16 registers."""
BLOCK = WIDE * NARROW
"""Rows that meet all vectors before the next ones do."""
_wide, _narrow = _tile(LANES, WIDE), _tile(LANES // 2, NARROW)


def _counter(act: Callable[[Any, Any], Any]) -> Any:
    """Intrinsic on an array of integers: what `act` makes of the place of its first."""

    @intrinsic
    def on_first(_typing: Any, array: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return act(b, context.make_array(signature.args[0])(context, b, args[0]).data)

        return types.int64(array), generate

    return on_first


_arrive = _counter(lambda b, place: b.atomic_rmw("add", place, _INT(1), "seq_cst"))
"""Adds one, at once for all threads, and gives what was there."""
_arrived = _counter(lambda b, place: b.load_atomic(place, "seq_cst", 8))
"""What is there now, as other threads have left it."""


@numba.njit(**COMPILED)
def meet(team: Any) -> None:
    """Wait until every thread of the team has come here: what they wrote before is seen by all after."""
    if team.size == 1:
        return
    target = (_arrive(team.meeting) // team.size + 1) * team.size
    looked = 0
    while _arrived(team.meeting) < target:
        looked += 1
        if looked > SPINS:
            _yield()


@numba.njit(**COMPILED)
def share(team: Any, count: int) -> tuple[int, int]:
    """This thread's part of `count` things: from, to."""
    return count * team.rank // team.size, count * (team.rank + 1) // team.size


@numba.njit(**COMPILED)
def _is_wide(count: int, first: int) -> bool:
    """Whether the vectors from `first` on are laid out in all lanes."""
    return count - first > LANES // 2


@numba.njit(**COMPILED)
def lay_out(rows: Any, count: int, size: int, columns: Any) -> None:
    """Put the first `count` of vectors [N, A] into `columns`, lanes side by side, for `product`."""
    for first in range(0, count, LANES):
        lanes = LANES if _is_wide(count, first) else LANES // 2
        group = columns[first * size : (first + lanes) * size].reshape(size, lanes)
        for a in range(size):
            for n in range(min(lanes, count - first)):
                group[a, n] = rows[first + n, a]


@numba.njit(**COMPILED)
def product(columns: Any, count: int, w: Any, low: int, high: int, out: Any) -> None:
    """Outputs `low` to `high` of x w^T into `out` [N, B], for w [B, A] and `count` vectors x laid out in `columns`."""
    size, sums = w.shape[1], np.empty(LANES * BLOCK, np.float32)
    for o in range(low, high, BLOCK):
        end = min(o + BLOCK, high)
        for first in range(0, count, LANES):
            if _is_wide(count, first):
                lanes = LANES
                for at in range(o, end, WIDE):
                    _wide(w, at, high - 1, columns, first * size, sums, (at - o) * LANES)
            else:
                lanes = LANES // 2
                for at in range(o, end, NARROW):
                    _narrow(w, at, high - 1, columns, first * size, sums, (at - o) * lanes)
            for n in range(min(lanes, count - first)):
                y = out[first + n]
                for at in range(o, end):
                    y[at] = sums[(at - o) * lanes + n]
