"""The critic: the rubric row by row, and an endpoint on a loopback server that also misbehaves."""

from __future__ import annotations

import time

import pytest
from judge import said, serving
from roads import light, moving, road

from outdo.core.rewards import RewardError, RewardTerm, score
from outdo.driving.critic import Endpoint, grade
from outdo.driving.outcomes import Outcome, Reference
from outdo.driving.reasoning import parse
from outdo.driving.rewards import quality, terms
from outdo.driving.tokens import Answer

SCENE = road(moving(0, 0, 10), moving(30, 0, 5), moving(40, 2, 0), signals=(light(60),))
REFERENCE = "yield because crossing pedestrian; nudge in lane left because parked vehicle."


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (REFERENCE, 5),
        # behaviour right, one of two causes right; or another object that was to be seen
        ("yield because red light; nudge in lane left because parked vehicle.", 4),
        ("yield because crossing pedestrian; nudge in lane left.", 4),
        ("yield because lead vehicle; nudge in lane left because stopped vehicle.", 4),
        # behaviour right, causes missing, of other kinds, or of an object that is not there (no cyclist in the scene)
        ("yield; nudge in lane left.", 3),
        ("yield because red light; nudge in lane left because curve.", 3),
        ("yield because cyclist; nudge in lane left because cyclist.", 3),
        # roughly right or incomplete
        ("stop because crossing pedestrian; nudge in lane left because parked vehicle.", 3),
        ("yield because crossing pedestrian; change lane left because parked vehicle.", 3),
        ("yield because crossing pedestrian.", 3),
        ("nudge in lane left because parked vehicle.", 3),
        # partly wrong
        ("track set speed because speed limit; nudge in lane left because parked vehicle.", 2),
        ("yield because crossing pedestrian; keep lane because lane lines.", 2),
        ("stop because red light; change lane left because slow lead.", 2),
        # wrong, or contradicting in half
        ("yield because crossing pedestrian; nudge in lane right because parked vehicle.", 1),
        ("accelerate to pass because slow lead; nudge in lane left because parked vehicle.", 1),
        ("stop because red light; keep lane because lane lines.", 1),
        ("track set speed because crossing pedestrian; keep lane because lane lines.", 1),
        # unrelated or opposite
        ("track set speed because speed limit; keep lane because lane lines.", 0),
        ("accelerate to pass because slow lead; nudge in lane right because parked vehicle.", 0),
        ("accelerate to pass because crossing pedestrian; keep lane because parked vehicle.", 0),
        ("track set speed because speed limit.", 0),
    ],
)
def test_the_rubric(text, score):
    assert grade(parse(text), parse(REFERENCE), SCENE) == score


def test_a_reference_without_causes_asks_for_none():
    assert grade(parse("follow lead; keep lane."), parse("follow lead; keep lane."), SCENE) == 5
    invented = parse("follow lead because red light; keep lane because curve.")
    assert grade(invented, parse("follow lead; keep lane."), SCENE) == 3


# --- an endpoint ---


@pytest.fixture
def server():
    with serving() as server:
        yield server


RIGHT = parse(REFERENCE)


def outcome(text=REFERENCE, reference=RIGHT, *, drives=True):
    """An outcome as the critic reads it: words, and whether there is a path."""
    trace = None if text is None else parse(text)
    path = SCENE.state[0] if drives else None
    return Outcome(SCENE, Answer(text or "?", trace), Reference(SCENE.state[0], reference), path=path)


def test_it_asks_and_reads_the_score(server, monkeypatch):
    monkeypatch.setenv("CRITIC_KEY", "secret")
    critic = Endpoint(server.url + "/", "judge", "CRITIC_KEY")
    assert critic.grades([(RIGHT, RIGHT)]) == [4.0]
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert (body["model"], body["temperature"]) == ("judge", 0)
    assert str(RIGHT) in body["messages"][1]["content"]


def test_each_row_gets_its_own_score(server):
    server.answer = lambda body: (200, said(f"Score: {5 if 'Reasoning: stop' in str(body) else 2}"), 0)
    pairs = [(parse("stop; keep lane.") if i % 3 else RIGHT, RIGHT) for i in range(20)]
    assert Endpoint(server.url, "judge", parallel=3).grades(pairs) == [
        5.0 if i % 3 else 2.0 for i in range(20)
    ]
    assert len(server.requests) == 20


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"not json",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": {}}]}',
        b'{"choices": "abc"}',
        said(""),
        said(None),
        said(4),
        said("4"),
        said("Score: 6"),
        said("Score: -1"),
        said("Score: 4.5"),
        said("Score: 45"),
        said("Score: 4, or perhaps 5"),
        said("Score: five"),
    ],
)
def test_a_reply_that_is_no_score_is_an_error(server, reply):
    server.answer = lambda body: (200, reply, 0)
    (error,) = Endpoint(server.url, "judge").grades([(RIGHT, RIGHT)])
    assert isinstance(error, ValueError)
    assert "critic's reply" in str(error)


def test_errors_are_counted_and_leave_their_rows_out(server):
    def answer(body):
        text = body["messages"][1]["content"]
        if "Reasoning: stop" in text:
            return 500, b"overloaded", 0
        if "Reasoning: follow" in text:
            return 200, said("Score: 3"), 60
        return 200, said(f"Score: {3 if 'because' in text.split('Reasoning')[1] else 1}"), 0

    server.answer = answer
    rows = [outcome(), outcome("stop; keep lane."), outcome("follow lead; keep lane."), outcome("yield.")]
    (term, *_) = terms({"quality": 0.2}, endpoint=Endpoint(server.url, "judge", seconds=3.0))
    began = time.monotonic()
    result = score([term], {"completions": [o.answer.text for o in rows], "outcomes": rows}, [0] * 4)
    assert time.monotonic() - began < 30
    assert result.terms["quality"] == [3.0, None, None, 1.0]
    assert result.total == [pytest.approx(0.6), None, None, pytest.approx(0.2)]
    assert [failure.row for failure in result.failures] == [1, 2]
    assert "500" in result.failures[0].reason
    assert "TimeoutError" in result.failures[1].reason
    assert len(server.requests) == 4  # nothing was asked twice


def test_a_reply_that_drips_is_given_up(server):
    server.piece, server.drip = 1, 0.5  # each byte is in time for the socket, all of them are not
    began = time.monotonic()
    (error,) = Endpoint(server.url, "judge", seconds=2).grades([(RIGHT, RIGHT)])
    assert isinstance(error, TimeoutError)
    assert time.monotonic() - began < 20  # 66 bytes would take 33 s


def test_errors_stop_the_run_where_that_is_wanted(server):
    server.answer = lambda body: (404, b"", 0)
    judged = RewardTerm("quality", quality, arguments={"endpoint": Endpoint(server.url, "judge")})
    with pytest.raises(RewardError, match="404"):
        score([judged], {"outcomes": [outcome(), outcome()]}, [0, 0])


def test_nothing_unparseable_is_sent(server):
    rows = [outcome(None), outcome(drives=False), outcome(reference=None), outcome()]
    assert quality(rows, Endpoint(server.url, "judge")) == [0.0, 0.0, None, 4.0]
    assert len(server.requests) == 1


def test_a_server_that_is_not_there(server):
    server.shutdown()
    server.server_close()
    (error,) = Endpoint(server.url, "judge", seconds=2).grades([(RIGHT, RIGHT)])
    assert isinstance(error, OSError)


def test_a_key_that_is_not_set(server, monkeypatch):
    monkeypatch.delenv("CRITIC_KEY", raising=False)
    (error,) = Endpoint(server.url, "judge", "CRITIC_KEY").grades([(RIGHT, RIGHT)])
    assert "CRITIC_KEY" in str(error)
    assert server.requests == []


@pytest.mark.parametrize("settings", [{"url": "file:///etc/passwd"}, {"seconds": 0.0}, {"parallel": 0}])
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match=r"critic url|need seconds"):
        Endpoint(**({"url": "http://localhost", "model": "judge"} | settings))
