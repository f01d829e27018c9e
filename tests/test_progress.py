"""What is seen of long work."""

import pytest

from cdejax import progress


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
