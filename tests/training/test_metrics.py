"""The log of metrics, and what TensorBoard's files survive."""

import logging
import subprocess
import sys

import pytest

from cdejax.training.metrics import MetricsLog, read_metrics
from cdejax.training.tensorboard import TensorBoard


def test_lines_of_steps_that_are_run_again_are_taken_out(tmp_path):
    log = MetricsLog()
    log.on_start(tmp_path, {"event": "start", "step": 0})
    for step in (1, 2, 3):
        log.on_step(step, {"loss": float(step)})
    log.on_end(3)
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 4, "lo')
    again = MetricsLog()
    again.on_start(tmp_path, {"event": "resume", "step": 2})
    again.on_step(3, {"loss": float("nan")})
    again.on_end(3)
    found = [x.get("event", x["step"]) for x in read_metrics(tmp_path)]
    assert found == ["start", 1, 2, "resume", 3]
    assert read_metrics(tmp_path)[-1]["loss"] == "nan"


def test_tensorboard_reads_what_was_written(tmp_path):
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    board = TensorBoard()
    board.on_start(tmp_path, {"step": 5})
    board.on_step(6, {"heldout_ndcg@10": 0.5, "loss": 2.0})
    board.on_end(6)
    (path,) = (tmp_path / "tensorboard").iterdir()
    data, events = path.read_bytes(), []
    while data:  # length, its CRC, event, its CRC
        size = int.from_bytes(data[:8], "little")
        events.append(proto.Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    assert [event.step for event in events] == [0, 5, 6, 6]
    assert events[1].session_log.status == proto.SessionLog.START
    values = [v for event in events for v in event.summary.value]
    assert [v.simple_value for v in values] == [0.5, 2.0]
    assert values[1].tag == "loss"


@pytest.mark.parametrize("when", ["opened", "written"])
def test_tensorboard_on_a_full_disk_stops_nothing(tmp_path, caplog, when):
    caplog.set_level(logging.WARNING, "cdejax")
    if when == "opened":
        (tmp_path / "tensorboard").touch()
    board = TensorBoard()
    board.on_start(tmp_path, {"step": 0})
    if when == "written":
        events = board._events
        assert events is not None
        events._py_recordio_writer._writer = open("/dev/full", "wb")  # noqa: SIM115
    for step in range(1, 200):
        board.on_step(step, {"loss": 1.0})
    board.on_end(199)
    assert caplog.text.count("no more is written for TensorBoard") == 1


def test_writing_for_tensorboard_loads_no_torch(tmp_path):
    code = (
        "import pathlib, sys; from cdejax.training.tensorboard import TensorBoard\n"
        "board, folder = TensorBoard(), pathlib.Path(sys.argv[1])\n"
        "board.on_start(folder, {'step': 0})\n"
        "board.on_step(1, {'loss': 1.0}); board.on_end(1)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
