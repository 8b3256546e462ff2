"""The page as text: everything is there, nothing hostile gets through, nothing comes from elsewhere."""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from handmade import HOSTILE, questions, result, results

from outdo.lab.experiment import Figure, Panel, Plot, Series
from outdo.lab.page import write_page

VOID = {"meta", "input", "link", "img", "br", "hr", "base", "source"}


class Reader(HTMLParser):
    """Tags with their attributes in order, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


def read(path) -> Reader:
    return Reader(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_page(results(), tmp_path_factory.mktemp("page"), questions(), "--seeds 3")


@pytest.fixture(scope="module")
def page(written) -> Reader:
    return read(written)


def test_every_experiment_has_a_section_with_all_it_says(page):
    for each in results():
        experiment = each.experiment
        assert f"experiment-{experiment.name}" in page.values("id")
        assert experiment.title in page.text
        assert f"Run it again: outdo lab {experiment.name}" in page.text
        for figure in each.outcome.figures:
            assert figure.name in page.text
        for plot in each.outcome.plots:
            assert plot.title in page.text
    assert "A = r − b" in page.text
    assert "Ten samples, seed 0." in page.text
    assert "outdo lab --seeds 3" in page.text


def test_numbers_stand_in_the_table_with_their_tolerances(page):
    # Published −0.31 ± (0.005 + 4·0.007 = 0.033); exact −0.3 ± 4·0.007 = 0.028.
    assert "close by −0.31 −0.3 −0.3052 ±0.033 / ±0.028" in re.sub(r"\s*\|\s*", " ", " ".join(page.words))


def test_a_figure_outside_is_shown_by_a_word_a_sign_and_a_colour(page, tmp_path):
    assert "✗ 1 of 7 figures is outside its tolerance." in page.text
    assert page.values("class").count("outside") == 2  # in the overview and in its section
    assert "✗ outside" in page.text
    fine = read(write_page(results(outside=False), tmp_path))
    assert "✓ All 6 figures are within their tolerance." in fine.text
    assert "outside" not in fine.values("class")


def test_nothing_comes_from_elsewhere(page, tmp_path):
    for name in ("src", "srcset", "action", "data", "poster"):
        assert page.values(name) == []
    links = page.values("href") + page.values("xlink:href")
    assert links
    assert [link for link in links if not link.startswith("#")] == []
    assert {"link", "base", "iframe", "object", "embed", "img"} & {tag for tag, _ in page.tags} == set()
    policy = next(value for value in page.values("content") if value.startswith("default-src"))
    assert policy.startswith("default-src 'none';")
    text = write_page([results()[0]], tmp_path).read_text("utf-8")  # without plotly.js
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert set(re.findall(r"https?://[^\"'\s]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_links_and_labels_lead_somewhere_and_ids_are_there_once(page):
    ids = Counter(page.values("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    for link in page.values("href") + page.values("xlink:href"):
        assert link[1:] in ids
    for name in ("for", "aria-labelledby"):
        assert page.values(name)
        assert set(page.values(name)) <= set(ids)


def test_headings_are_in_order_and_the_page_is_named(page):
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.tags[0] == ("html", {"lang": "en-GB"})
    assert "title" in {tag for tag, _ in page.tags}


def test_backticks_are_code_and_link_to_the_experiment_they_name(page):
    linked = [i for i, (_, each) in enumerate(page.tags) if each.get("href") == "#experiment-lambda"]
    assert any(page.tags[i + 1][0] == "code" for i in linked)
    assert "see lambda." in page.text
    assert "with code." in page.text


def hostile_results():
    series = [Series(HOSTILE, [0.0, 1.0], [0.0, 1.0]), Series("b", [0.0, 1.0], [1.0, 0.0], kind="points")]
    plot = Plot("hostile", HOSTILE, [Panel(HOSTILE, HOSTILE, series, HOSTILE, [HOSTILE, HOSTILE])])
    each = result("hostile", ("F7",), [Figure(HOSTILE, 1.0, published=1.0)], [plot])
    changed = dataclasses.replace(
        each.experiment, title=HOSTILE, text=HOSTILE, formula=HOSTILE, settings=HOSTILE, facts=("F7", HOSTILE)
    )
    return [dataclasses.replace(each, experiment=changed)]


@pytest.mark.filterwarnings(
    "ignore:constrained_layout not applied"
)  # such labels leave no room for the picture
def test_hostile_text_stays_text(tmp_path):
    question = questions()[0].model_copy(update={"text": HOSTILE, "experiment": "hostile", "figure": HOSTILE})
    choices = [each.model_copy(update={"text": HOSTILE, "feedback": HOSTILE}) for each in question.choices]
    asked = question.model_copy(update={"choices": choices})
    found = read(write_page(hostile_results(), tmp_path, [asked], HOSTILE))
    tags = Counter(tag for tag, _ in found.tags)
    assert tags["script"] == 3  # the data of the slider, plotly.js, the page's own
    assert tags["img"] == 0
    assert tags["b"] == 0
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert "49" not in found.text
    # Title, figure (twice), plot, question, three choices with feedback, command, all as they were given.
    assert found.text.count("<img src=x onerror=alert(2)> & \"quotes'") >= 12


def test_an_experiment_name_with_odd_signs_keeps_a_valid_anchor(tmp_path):
    each = result("a b/c", ("F1",), [Figure("x", 1.0, published=1.0)], [])
    found = read(write_page([each], tmp_path))
    assert "experiment-a-b-c" in found.values("id")


def test_a_selection_brings_its_own_sliders_only(tmp_path):
    chosen = [each for each in results() if each.experiment.name == "clip"]
    assert read(write_page(chosen, tmp_path)).values("data-toy") == ["clip"]
    path = write_page(results()[:1], tmp_path, questions())
    assert read(path).values("data-toy") == []
    assert path.stat().st_size < 100_000  # plotly.js stays away
    assert "And what is G_0?" in read(path).text
    assert "What does a baseline change?" not in read(path).text


def test_all_five_sliders_stand_where_their_fact_is(page):
    assert page.values("data-toy") == ["noise", "lam", "clip", "penalty", "group"]


def test_a_fact_that_two_experiments_serve_has_one_slider(tmp_path):
    twice = [result(name, ("F9",), [Figure("x", 1.0, published=1.0)], []) for name in ("one", "two")]
    assert read(write_page(twice, tmp_path)).values("data-toy") == ["clip"]


def test_a_question_about_a_figure_that_is_not_there_is_refused(tmp_path):
    (about,) = [each for each in results() if each.experiment.name == "lambda"]
    wrong = questions()[0].model_copy(update={"figure": "close"})
    with pytest.raises(ValueError, match=r"'What does a baseline change\?'.*'close' of 'lambda'.*'close by'"):
        write_page([about], tmp_path, [wrong])


def test_a_library_that_is_missing_names_the_extra():
    code = """
import sys
for library in sys.argv[1:]:
    sys.modules[library] = None
    try:
        import outdo.lab.page
    except ImportError as error:
        print(library, error)
    del sys.modules[library]
"""
    libraries = ["jinja2", "plotly", "matplotlib"]  # as they are imported: none is there before it is missing
    command = [sys.executable, "-c", code, *libraries]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in lines] == libraries
    assert all("pip install 'outdo[lab]'" in line for line in lines)


def test_no_results_no_page(tmp_path):
    with pytest.raises(ValueError, match="at least one result"):
        write_page([], tmp_path)


def test_the_same_results_give_the_same_page(written, tmp_path):
    assert write_page(results(), tmp_path, questions(), "--seeds 3").read_bytes() == written.read_bytes()
