"""Tasks that ship: any reasoning-gym data set, and `copy` for tiny models."""

from __future__ import annotations

import random
from typing import Any

from outdo.core.calls import nearest
from outdo.language.data import DataError, Item


def reasoning_gym_items(name: str, size: int, seed: int, **config: Any) -> list[Item]:
    """`size` problems of the reasoning-gym data set `name`: `prompt`, `question`, `answer`, `metadata`.

    `config` is the data set's own, for example `min_terms=3, max_terms=3` of chain_sum. A small space of
    problems repeats itself: `data.split` keeps each prompt once, so ask for some five times as many as
    exist to get them all.

    Raises:
        DataError: no such data set or setting; the nearest name is given.
    """
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise DataError(f"reasoning-gym has no data set {name!r}; {nearest(name, DATASETS)}")
    known = DATASETS[name][1].__dataclass_fields__
    for key in config:
        if key not in known:
            raise DataError(
                f"the reasoning-gym data set {name!r} has no setting {key!r}; {nearest(key, known)}"
            )
    try:
        made: Any = create_dataset(name, size=size, seed=seed, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(f"the reasoning-gym data set {name!r} refuses its settings: {error}") from error
    return [{**item, "prompt": item["question"]} for item in (made[i] for i in range(size))]


def copy_items(size: int, seed: int, letters: str = "abcd", length: int = 3) -> list[Item]:
    """`size` problems such as prompt 'copy: a b c', answer 'a b c': `length` letters, drawn by `seed`."""
    rng = random.Random(f"{seed}/copy")
    answers = [" ".join(rng.choices(letters, k=length)) for _ in range(size)]
    return [{"prompt": f"copy: {answer}", "answer": answer} for answer in answers]
