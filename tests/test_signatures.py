"""Arrays in public signatures say their shape, by jaxtyping."""

import ast
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

import cdejax

ROOT = Path(cdejax.__file__).parent
FILES = sorted(
    path for path in ROOT.rglob("*.py") if "torch" not in path.relative_to(ROOT).parts
)
BARE = {"Array", "AnyArray", "jax.Array", "jnp.ndarray", "np.ndarray", "ndarray"}


def shapeless(annotation: ast.AST) -> Iterator[str]:
    """Array types in an annotation that no jaxtyping class gives a shape."""
    if isinstance(annotation, ast.Subscript):
        name = ast.unparse(annotation.value).rpartition(".")[2]
        if hasattr(jaxtyping, name) or name == "Literal":
            return
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    text = ast.unparse(annotation)
    if text in BARE:
        yield text
        return
    for child in ast.iter_child_nodes(annotation):
        yield from shapeless(child)


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Annotations of public functions, methods and fields, with what they belong to."""
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if prefix and not node.target.id.startswith("_"):
                yield f"{prefix}{node.target.id}", node.annotation
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            dunder = node.name in ("__init__", "__call__")
            if node.name.startswith("_") and not dunder:
                continue
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")
                continue
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            every += [arg for arg in (given.vararg, given.kwarg) if arg]
            for arg in every:
                if arg.annotation is not None:
                    yield f"{prefix}{node.name}({arg.arg})", arg.annotation
            if node.returns is not None:
                yield f"{prefix}{node.name} → …", node.returns


def offenders(source: str) -> list[str]:
    found = public(ast.parse(source).body)
    return [f"{place}: {name}" for place, note in found for name in shapeless(note)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrays_have_shapes(path):
    assert offenders(path.read_text(encoding="utf-8")) == []


def test_bare_arrays_are_found():
    source = """
def good(x: Float[np.ndarray, "rows dim"], n: int | None) -> Int[Array, ""] | None: ...
def bad(x: np.ndarray, *, y: dict[str, jax.Array]) -> "tuple[Array, int]": ...
def _private(x: np.ndarray): ...
class Kept:
    field: np.ndarray
    _own: np.ndarray
    def __call__(self, x: AnyArray | None): ...
    def _inner(self, x: np.ndarray): ...
"""
    assert offenders(source) == [
        "bad(x): np.ndarray",
        "bad(y): jax.Array",
        "bad → …: Array",
        "Kept.field: np.ndarray",
        "Kept.__call__(x): AnyArray",
    ]
