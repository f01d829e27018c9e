"""Encoders in other people's JAX code: a plain optax loop, Linen."""

import re

from tests.examples.conftest import EXAMPLES, run_script


def test_the_loss_falls_in_a_plain_optax_loop(encoder):
    faster = ("--steps", "24", "--learning-rate", "1e-3")
    printed = run_script("optax_loop.py", encoder, *faster)
    # each mean is over the same four batches
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 6
    assert losses[-1] < 0.5 * losses[0]


def test_linen_pure_function_and_nnx_give_the_same(encoder, run_here):
    printed = run_here("linen_bridge.py", encoder)
    assert printed.count("equal") == 3


def test_the_loop_uses_models_only():
    text = (EXAMPLES / "optax_loop.py").read_text(encoding="utf-8")
    imports = re.findall(r"^(?:from|import) (cdejax\S*)", text, re.M)
    assert imports == ["cdejax.models"]


def test_scripts_that_the_documentation_runs_exist():
    root = EXAMPLES.parent
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *EXAMPLES.glob("*.py")]
    named = {
        script
        for page in pages
        for script in re.findall(r"examples/\w+\.py", page.read_text(encoding="utf-8"))
    }
    assert named == {f"examples/{script.name}" for script in EXAMPLES.glob("*.py")}
