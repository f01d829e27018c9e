"""What is seen of long work."""

import types

import pytest

from cdejax.runtime import progress


def test_without_a_terminal_there_are_lines_all_the_same(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.progress("embed", 4) as advance:
        advance(1)
        advance(2)
        seen = capsys.readouterr()
    assert [line.split()[0] for line in seen.err.splitlines()] == ["embed", "embed"]
    assert "1/4" in seen.err
    assert "3/4" in seen.err
    assert not seen.out


def test_pieces_of_minutes_keep_their_rate_and_remaining_time(monkeypatch, capsys):
    moments = iter([0, 400, 500, 600, 700])  # the first piece compiles
    clock = types.SimpleNamespace(monotonic=lambda: next(moments))
    monkeypatch.setattr(progress, "time", clock)
    with progress.progress("train", 6, done=1) as advance:
        for _ in range(4):
            advance(1)
        lines = capsys.readouterr().err.splitlines()
    shown = [line.split()[-3:] for line in lines]
    assert shown == [
        ["2/6", "0.0025/s", "0:26:40"],
        ["3/6", "0.01/s", "0:05:00"],
        ["4/6", "0.01/s", "0:03:20"],
        ["5/6", "0.01/s", "0:01:40"],
    ]


def test_a_rate_follows_the_work():
    speed = progress._Speed(0.0)
    rates = [speed.update(1, float(now)) for now in (*range(1, 40), *range(40, 120, 2))]
    assert rates[38] == pytest.approx(1)
    assert rates[-1] == pytest.approx(0.5)


def test_lines_do_not_follow_each_other_too_soon(capsys):
    with progress.progress("embed", 4) as advance:
        advance(1)
        assert not capsys.readouterr().err


def test_nothing_is_shown_where_nothing_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.progress("embed", 4, show=False) as advance:
        advance(4)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("speed", "shown"), [(None, ""), (0.154, "0.15/s"), (1234.5, "1,234/s")]
)
def test_slow_work_has_a_rate_too(speed, shown):
    assert progress._rate(speed) == shown
