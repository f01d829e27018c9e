"""What is logged survives what TensorBoard's files run into."""

import logging
import subprocess
import sys

import pytest

from cdejax.training.metrics import MetricsLog, read_metrics


def test_lines_of_steps_that_are_run_again_are_taken_out(tmp_path):
    log = MetricsLog(tmp_path, 0, {"event": "start"})
    for step in (1, 2, 3):
        log.add(step, {"loss": float(step)})
    log.close()
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 4, "lo')
    again = MetricsLog(tmp_path, 2, {"event": "resume"})
    again.add(3, {"loss": float("nan")})
    again.close()
    found = [x.get("step", x.get("event")) for x in read_metrics(tmp_path)]
    assert found == ["start", 1, 2, "resume", 3]
    assert read_metrics(tmp_path)[-1]["loss"] == "nan"


def test_tensorboard_reads_what_was_written(tmp_path):
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    log = MetricsLog(tmp_path, 5, {"event": "resume"})
    log.add(6, {"heldout_ndcg@10": 0.5, "loss": 2.0})
    log.close()
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
    log = MetricsLog(tmp_path, 0, {"event": "start"})
    if when == "written":
        events = log._board._events
        assert events is not None
        events._py_recordio_writer._writer = open("/dev/full", "wb")  # noqa: SIM115
    for step in range(1, 200):
        log.add(step, {"loss": 1.0})
    log.close()
    assert len(read_metrics(tmp_path)) == 200
    assert caplog.text.count("no more is written for TensorBoard") == 1


def test_writing_for_tensorboard_loads_no_torch(tmp_path):
    code = (
        "import sys; from cdejax.training.metrics import MetricsLog\n"
        "log = MetricsLog(sys.argv[1], 0, {}); log.add(1, {'loss': 1.0}); log.close()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
