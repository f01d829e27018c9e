"""Compiled functions kept in a folder are read by the next process."""

import dataclasses
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from cdejax.config import Config, TrainingConfig
from cdejax.recipe import stages, variant
from cdejax.runtime import compilation
from cdejax.runtime.compilation import model_options
from cdejax.runtime.mesh import local_mesh
from cdejax.training.sharding import make_mesh
from tests.devices import gpu_hosts

PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from cdejax.runtime.compilation import enable_compilation_cache

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
enable_compilation_cache(sys.argv[1] + "-of-another-variant")
jax.jit(lambda x: x + 1)(jnp.ones(3))
enable_compilation_cache(sys.argv[1])
jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8)))
print(hits.count("/jax/compilation_cache/cache_hits"))
"""


def hits(folder):
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True
    )
    return int(done.stdout)


def test_what_is_compiled_from_now_on_is_counted():
    square = jax.jit(lambda x: x * x)
    square(np.ones(3)).block_until_ready()
    found = compilation.Compilations()
    square(np.ones(3)).block_until_ready()
    assert found.seconds == []
    square(np.ones(4)).block_until_ready()
    later = compilation.Compilations()
    jax.jit(lambda x: x - 1)(np.ones(3)).block_until_ready()
    assert len(found.seconds) == 2
    assert len(later.seconds) == 1
    assert found.read_from_cache == 0
    assert str(found).startswith("2 functions compiled in ")


def test_a_second_process_compiles_nothing_anew(tmp_path):
    folder = tmp_path / "compiled"
    assert hits(folder) == 0
    assert any(folder.iterdir())
    assert hits(folder) >= 1


def test_nothing_is_kept_for_several_cpu_devices(tmp_path, caplog):
    """Programs read back hung, crashed or gave NaN there, with `training.fsdp` 2."""
    compilation.enable_compilation_cache(tmp_path / "compiled")
    jax.jit(lambda x: x + 1)(np.ones(3)).block_until_ready()
    assert "several CPU devices (8 here)" in caplog.text
    assert not (tmp_path / "compiled").exists()


class Stop(Exception):
    """Raised where training would begin."""


def test_training_names_the_folder_before_anything_compiles(monkeypatch):
    named = []

    def stop(stages):
        raise Stop

    monkeypatch.setattr(variant, "enable_compilation_cache", named.append)
    monkeypatch.setattr(stages.Stages, "inputs", stop)
    recipe = Config(training=TrainingConfig(compilation_cache="compiled"))
    for config in (Config(), dataclasses.replace(recipe, name="kept")):
        with pytest.raises(Stop):
            variant.train_variant("model", config)
    assert named == ["compiled"]


def test_options_are_for_nvidia_alone_and_xla_knows_them():
    assert model_options(local_mesh()) is None
    options = model_options(make_mesh(gpu_hosts(1)))
    assert options
    double = jax.jit(lambda x: 2 * x, compiler_options=options)
    assert double(3) == 6
    wrong = jax.jit(lambda x: 2 * x, compiler_options={"xla_gpu_no_such": False})
    with pytest.raises(Exception, match="xla_gpu_no_such"):
        wrong(3)
