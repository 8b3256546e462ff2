"""Several seeds of one recipe, put together."""

from __future__ import annotations

import json

import pytest

from outdo.seeds import aggregate
from outdo.tables import results_table, thinned


def write(folder, seed, points):
    place = folder / f"seed-{seed}"
    place.mkdir()
    lines = [{"kind": "evaluation", "total": total, "score": value} for total, value in points.items()]
    lines.insert(1, {"kind": "update", "total": 1, "reward": 5.0})
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_curve_is_the_interquartile_mean_where_all_seeds_were_evaluated(tmp_path):
    write(tmp_path, 3, {0: 1.0, 10: 0.0, 20: 9.0})
    write(tmp_path, 4, {0: 1.0, 10: 1.0, 20: 7.0})
    write(tmp_path, 12, {0: 1.0, 10: 5.0})
    made = aggregate(tmp_path, "score")
    assert made["metric"] == "score"
    assert made["seeds"] == [
        {"seed": s, "updates": 10, "score": v} for s, v in ((3, 0.0), (4, 1.0), (12, 5.0))
    ]
    first, last = made["curve"]
    assert first == {"updates": 0, "value": 1.0, "low": 1.0, "high": 1.0, "least": 1.0, "most": 1.0}
    assert last["updates"] == 10
    assert last["value"] == pytest.approx(1.5)  # (0/4 + 1 + 5/4) / 1.5
    assert (last["least"], last["most"]) == (0.0, 5.0)
    assert last["low"] <= last["value"] <= last["high"]


def test_without_evaluations_nothing_is_put_together(tmp_path):
    write(tmp_path, 0, {})
    assert aggregate(tmp_path, "score") == {"metric": "", "seeds": [], "curve": []}
    assert aggregate(tmp_path / "none", "score") == {"metric": "", "seeds": [], "curve": []}


def test_a_long_curve_is_thinned_to_its_ends_and_some_between():
    curve = [{"updates": i} for i in range(100)]
    shown = [point["updates"] for point in thinned(curve)]
    assert len(shown) == 12
    assert (shown[0], shown[-1]) == (0, 99)
    assert shown == sorted(set(shown))
    assert thinned(curve[:5]) == curve[:5]


def test_returns_are_shown_with_their_intervals():
    kinds = {f"{kind}/{name}": x for kind in ("deterministic", "sampled") for name, x in FIGURES.items()}
    table = results_table([{"policy": "untouched", "updates": 0, **kinds}])
    assert [column.header for column in table.columns] == [
        "policy", "updates", "deterministic", "sampled", "length",
    ]  # fmt: skip
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["untouched", "0", "-150.2 (-160.0 to -140.5)", "-150.2 (-160.0 to -140.5)", "200"]


FIGURES = {"return": -150.2, "return/low": -160.0, "return/high": -140.5, "length": 200.0}
