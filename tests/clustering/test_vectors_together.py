"""Two real processes embed one corpus: each its share, together what one makes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from cdejax.cli.main import main
from cdejax.clustering.vectors import SIDES, Share
from cdejax.data.pairs import Pairs
from cdejax.runtime.processes import Membership
from tests.tiny import write_recipe

ROOT = Path(__file__).parents[2]
WORKER = """
import sys
from cdejax.clustering import vectors
from cdejax.cli.main import main
embed = vectors.write_blocks
def write_blocks(path, total, vectorise, label, *, share, **rest):
    def counted(rows):
        print("rows", path.stem, share.index, share.count, len(rows), flush=True)
        return vectorise(rows)
    return embed(path, total, counted, label, share=share, **rest)
vectors.write_blocks = write_blocks
main(["embed", "--config", sys.argv[1]])
"""


def start(recipe, member):
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(recipe)],
        env={**os.environ, **member.environment(), "JAX_NUM_CPU_DEVICES": "2"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def two_processes(recipe):
    """What they print, or the errors of the first that fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    workers = [start(recipe, Membership(address, 2, i, 20)) for i in range(2)]
    try:
        said = [worker.communicate(timeout=150) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, said, strict=True):
        assert worker.returncode == 0, errors
    return [output for output, _ in said]


def test_two_processes_embed_what_one_embeds(tmp_path, minilm, capsys):
    vectors = {"method": "encoder", "batch_size": 2}
    folder = str(tmp_path / "encoder")
    recipe = write_recipe(tmp_path, minilm, vectors={**vectors, "encoder": folder})
    said = two_processes(recipe)
    made = Path(said[0].split()[-1])
    pairs = Pairs.open(next(made.parent.glob("pairs-*")))
    for index, output in enumerate(said):
        for side in SIDES:
            own = len(Share(index, 2).rows(len(getattr(pairs, side))))
            assert f"rows {side} {index} 2 {own}\n" in output
    assert sorted(p.name for p in made.iterdir()) == [
        "digests.json",
        "documents.npy",
        "manifest.json",
        "queries.npy",
    ]
    other = str(tmp_path / "alone")
    main(["embed", "--config", str(recipe), "--set", f"output={other}"])
    alone = Path(capsys.readouterr().out.split()[-1])
    for side in SIDES:
        found, expected = (np.load(place / f"{side}.npy") for place in (made, alone))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    again = two_processes(recipe)  # nothing is left to do
    assert "rows" not in "".join(again)
