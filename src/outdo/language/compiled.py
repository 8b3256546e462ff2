"""Decoding on a CPU without a framework: `engine.Decode` by `outdo.language.kernels`.

Where a product takes microseconds, calling it takes longer than computing it; and beside a few rows a large matrix
takes longer in torch's product than in `outdo.language.columns`. Here only the prompts are computed by torch; the rest
is one compiled loop. For a small model each thread has rows of its own, so that none waits for another. The weights of
a large one should come out of memory once, not once for each thread: there the threads decode all rows together.

Axes: R rows, H query heads, K key/value heads, E head size, P longest prompt, S slots of the cache.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from outdo.language.engine import Answers, Decode, Job, LlamaDecoding, decode_stepwise
from outdo.language.head import Head
from outdo.language.llama import Block, LlamaDecoder
from outdo.language.packing import pack

if TYPE_CHECKING:
    from outdo.language.columns import Team
    from outdo.language.kernels import Model, Shared

SMALL = 1 << 23
"""With at most so many weights in its matrices, which then stay in the cache, each thread has rows of its own."""
MOST_ROWS = 64
"""More rows of a model that is not small are left to torch, whose products then are as fast."""


def llama_decode(decoder: LlamaDecoder, head: Head) -> Decode:
    """The fastest way to decode a Llama-shaped model: compiled in float32 on a CPU, save many rows of a large one."""
    weights = decoder.flat.shadow
    stepwise = partial(decode_stepwise, partial(LlamaDecoding, decoder), head)
    if weights.dtype != torch.float32 or weights.device.type != "cpu":
        return stepwise

    def either(job: Job) -> Answers:
        few = _is_small(decoder) or len(job.rows) <= MOST_ROWS
        return decode(decoder, head, job) if few else stepwise(job)

    return either


def _is_small(decoder: LlamaDecoder) -> bool:
    return decoder.flat.shadow.numel() <= SMALL


@torch.no_grad()
def decode(decoder: LlamaDecoder, head: Head, job: Job) -> Answers:
    """Decode a job on all of torch's threads: each takes rows of a small model, or a part of a large one's products."""
    from outdo.language import columns, kernels  # here, as numba takes a while to import, and memory

    answers = Answers(len(job.rows), job.uniforms.shape[1])
    hidden, keys, values = _prefill(decoder, job)
    model = _model(decoder, head, keys.shape[4])
    sampling, threads = job.sampling, torch.get_num_threads()
    draw = kernels.Draw(np.float32(sampling.temperature), sampling.top_k, sampling.top_p)
    filled = np.array([len(job.prompts[i]) for i in job.rows])
    limits, stops = np.array(job.limits), np.array(job.stop_tokens, np.int64)
    parts, members = [slice(0, len(job.rows))], threads
    if _is_small(decoder):
        parts, members = _parts(len(job.rows), threads), 1

    def run(part: slice, shared: Shared, team: Team) -> None:
        kernels.decode(
            model,
            team,
            shared,
            hidden.numpy()[part],
            keys.numpy()[part],
            values.numpy()[part],
            filled[part],
            limits[part],
            job.uniforms[part],
            draw,
            stops,
            answers.tokens[part],
            answers.logps[part],
            answers.lengths[part],
            answers.stopped[part],
        )

    given: list[tuple[slice, Shared, Team]] = []
    for part in parts:
        shared, meeting = _shared(model, keys, part.stop - part.start), np.zeros(1, np.int64)
        given += [(part, shared, columns.Team(rank, members, meeting)) for rank in range(members)]
    if len(given) == 1:
        run(*given[0])
    else:
        with ThreadPoolExecutor(len(given)) as pool:
            list(pool.map(run, *zip(*given, strict=True)))
    return answers


def _parts(rows: int, threads: int) -> list[slice]:
    """Slices of about equally many rows, one a thread; products take as long for one row as for half the lanes."""
    from outdo.language.columns import LANES

    each = -(-rows // threads)
    each += -each % (LANES // 2)
    return [slice(first, min(first + each, rows)) for first in range(0, rows, each)]


def _shared(model: Model, keys: Tensor, rows: int) -> Shared:
    """Room for what the threads compute for each other."""
    from outdo.language.columns import LINE
    from outdo.language.kernels import Shared

    size = keys.shape[3]
    widths = ((model.heads + 2 * model.kv_heads) * size, model.heads * size, model.norm.size)
    widths += (2 * model.units, model.units, len(model.head) + LINE)
    return Shared(*(np.zeros((rows, width), np.float32) for width in widths))


def _prefill(d: LlamaDecoder, job: Job) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [R, D] that predict the first tokens, and caches [R, layers, K, E, S] and [R, layers, K, S, E]."""
    none = torch.zeros(len(job.prompts), dtype=torch.long)
    packed = pack(job.prompts, none[:, None], none)
    x, _, qkvs = d.forward(packed, job.prefix)
    rows, longest = torch.tensor(job.rows), packed.whole.shape[1]
    index = packed.whole.clamp(
        max=len(packed.tokens) - 1
    )  # beyond a prompt's end nothing reads what is there
    shape = (len(rows), len(qkvs), d.kv_heads, longest + job.uniforms.shape[1] - 1, d.head_size)
    keys, values = torch.empty(*shape[:3], shape[4], shape[3]), torch.empty(shape)
    for layer, qkv in enumerate(qkvs):
        key, value = qkv[:, d.heads :].unflatten(1, (2, d.kv_heads))[index].unbind(2)  # [prompts, P, K, E]
        keys[:, layer, ..., :longest] = key.permute(0, 2, 3, 1)[rows]
        values[:, layer, :, :longest] = value.transpose(1, 2)[rows]
    last = torch.tensor([len(prompt) - 1 for prompt in job.prompts])
    return d.final_norm(x[index[torch.arange(len(last)), last]])[rows], keys, values


def _model(d: LlamaDecoder, head: Head, slots: int) -> Model:
    """The weights for the kernels; the arrays are the decoder's own memory."""
    from outdo.language.kernels import Model

    cos, sin = d.angles(torch.arange(slots), slots)
    places = np.array([_places(w) for w in d.weights])
    return Model(
        matrices=d.flat.shadow.numpy(),
        vectors=d.flat.vectors.detach().numpy(),
        places=places,
        embedding=d.embedding.numpy(),
        norm=d.norm.numpy(),
        head=head.weight.numpy(),
        cos=cos.squeeze(1).numpy(),
        sin=sin.squeeze(1).numpy(),
        eps=np.float32(d.eps),
        heads=d.heads,
        kv_heads=d.kv_heads,
        units=d.weights[0].down.shape[1],
    )


def _places(w: Block) -> list[int]:
    """Where a layer's weights begin in the flat buffers, in the order of the kernels' columns."""
    weights = (w.norm1, w.qkv, w.qkv_bias, w.q_norm, w.k_norm, w.o, w.norm2, w.gate_up, w.down)
    return [-1 if weight is None else int(weight.storage_offset()) for weight in weights]
