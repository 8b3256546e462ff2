import json

import pyarrow
import pytest
from pyarrow import parquet

from outdo.language.data import (
    DataError,
    PromptFormat,
    Stream,
    collect_items,
    content_key,
    disjoint,
    read_file,
    read_function,
    split,
    unique,
)

ROWS = [{"question": "1+1", "answer": "2"}, {"question": 'é, "x"\n2', "answer": "3"}]


def three(start=0):
    return ({"prompt": f"p{i}"} for i in range(start, start + 3))


def not_items():
    return ["text"]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_the_three_formats_give_the_same_rows(tmp_path):
    lines = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    table = write(tmp_path / "a.csv", 'question,answer\n1+1,2\n"é, ""x""\n2",3\n')
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert read_file(lines) == read_file(table) == read_file(tmp_path / "a.parquet") == ROWS


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "", "a.jsonl: the file has no rows"),
        ("a.csv", "question,answer\n", "a.csv: the file has no rows"),
        ("a.csv", "", "a.csv: the file has no rows"),
        ("a.jsonl", '{"a": 1}\n\n{"a": 2}\n', "a.jsonl, line 2: empty line"),
        ("a.jsonl", '{"a": 1}\n{"a": }\n', "a.jsonl, line 2, column 7: not JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "a.jsonl, line 2: a list, not a JSON object"),
        (
            "a.jsonl",
            '{"question": "x", "answer": 1}\n{"questoin": "x", "answer": 1}\n',
            "a.jsonl, line 2: no column 'question'; did you mean 'questoin'",
        ),
        ("a.csv", "question,answr\n1,2\n", "a.csv, line 2: no column 'answer'; did you mean 'answr'"),
        ("a.csv", "question,answer\n1,2\n3\n", "a.csv, line 3: 1 fields, but the header names 2"),
        ("a.csv", "question,answer\n1,2\n\n3,4\n", "a.csv, line 3: 0 fields"),
        ("a.csv", 'question,answer\n"1"x,2\n', "a.csv, line 2: malformed CSV"),
        ("a.csv", "a,a\n1,2\n", "a.csv, line 1: a column name stands twice"),
        ("a.parquet", "no parquet", "a.parquet: not a Parquet file"),
        ("a.txt", "x", "a.txt: cannot read '.txt'"),
    ],
)
def test_bad_files_name_the_place(tmp_path, name, text, message):
    path = write(tmp_path / name, text)
    with pytest.raises(DataError, match=message):
        read_file(path, [] if "[" in text or '"a"' in text or "a,a" in text else ["question", "answer"])


def test_missing_file_and_wrong_encoding(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_file(tmp_path / "none.jsonl")
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(DataError, match="not UTF-8"):
        read_file(tmp_path / "a.jsonl")


def test_functions_and_iterables():
    assert [item["prompt"] for item in read_function(f"{__name__}:three", start=4)] == ["p4", "p5", "p6"]
    assert len(collect_items(three())) == 3
    with pytest.raises(DataError, match="item 0: must be a mapping"):
        read_function(f"{__name__}:not_items")
    with pytest.raises(DataError, match="has no items"):
        collect_items([])


def test_prompt_format():
    made = PromptFormat("question", "result", template="Q: {prompt} ({hint})", system="Be brief.").apply(
        [{"question": "1+1", "result": 2, "hint": "even"}]
    )
    assert made[0]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 1+1 (even)"},
    ]
    assert made[0]["answer"] == 2
    assert made[0]["question"] == "1+1"
    assert PromptFormat(chat=False).apply([{"prompt": "{x}"}]) == [{"prompt": "{x}"}]
    messages = [{"role": "user", "content": "hi"}]
    assert PromptFormat().apply([{"prompt": messages}]) == [{"prompt": messages}]


@pytest.mark.parametrize(
    ("settings", "item", "message"),
    [
        ({}, {"promt": "x"}, "the data, item 0: no column 'prompt'; did you mean 'promt'"),
        ({"template": "{hnt}"}, {"prompt": "x", "hint": "y"}, "no column 'hnt'; did you mean 'hint'"),
        ({"answer": "result"}, {"prompt": "x"}, "no column 'result'"),
        ({}, {"prompt": ""}, "a prompt is text, or messages"),
        ({}, {"prompt": None}, "a prompt is text, or messages"),
        ({}, {"prompt": [{"role": "user"}]}, "a prompt is text, or messages"),
        ({"chat": False}, {"prompt": [{"role": "user", "content": "x"}]}, "set chat = true"),
        ({"template": "{prompt}"}, {"prompt": [{"role": "user", "content": "x"}]}, "this one is a chat"),
    ],
)
def test_prompts_that_cannot_be_made(settings, item, message):
    with pytest.raises(DataError, match=message):
        PromptFormat(**settings).apply([item])


@pytest.mark.parametrize("settings", [{"system": "x", "chat": False}, {"template": "{}"}, {"template": "{a"}])
def test_prompt_formats_that_cannot_be(settings):
    with pytest.raises(ValueError, match=r"template|system"):
        PromptFormat(**settings)


def test_splits_are_disjoint_by_content_and_drawn_by_seed():
    items = [{"prompt": f"p{i % 30}", "answer": i} for i in range(100)]
    parts = split(items, held_out=10, seed=0)
    train, held_out = ({content_key(item) for item in part} for part in (parts.train, parts.held_out))
    assert (len(parts.train), len(parts.held_out)) == (len(train), len(held_out)) == (20, 10)
    assert not train & held_out
    assert parts == split(items, held_out=10, seed=0)
    assert set(held_out) != {content_key(item) for item in split(items, held_out=10, seed=1).held_out}
    with pytest.raises(DataError, match="only 30 distinct prompts"):
        split(items, held_out=30, seed=0)


def test_held_out_problems_do_not_depend_on_copies_of_problems():
    items = [{"prompt": f"p{i}"} for i in range(30)]
    assert split(items, 10, 0) == split(items + items[:7], 10, 0)
    assert unique([*items, {"prompt": "p0", "answer": "other"}]) == items


def test_two_sources_are_made_disjoint():
    parts = disjoint([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"}], [{"prompt": "b"}])
    assert [item["prompt"] for item in parts.train] == ["a"]
    with pytest.raises(DataError, match="nothing is left"):
        disjoint([{"prompt": "b"}], [{"prompt": "b"}])


def test_streams_are_endless_permutations_found_by_position():
    stream = Stream(7, seed=3)
    together = stream.take(0, 21)
    assert [sorted(together[i : i + 7]) for i in (0, 7, 14)] == [list(range(7))] * 3
    assert together[:7] != together[7:14]
    assert [stream.take(i, 1)[0] for i in range(21)] == together
    assert stream.take(5, 9) == together[5:14]
    assert Stream(7, seed=4).take(0, 7) != together[:7]
    assert Stream(7, seed=3, name="other").take(0, 7) != together[:7]
    with pytest.raises(ValueError, match="at least one item"):
        Stream(0, 0)
