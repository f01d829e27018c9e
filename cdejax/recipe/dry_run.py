"""Dry run: reports what training would do without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from flax import nnx
from jax.sharding import Mesh
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from cdejax.config import Config
from cdejax.data.prompts import start_prompts, surrogate_prompts, tokens_of
from cdejax.models import TrainableModel
from cdejax.recipe.preflight import check_inputs
from cdejax.recipe.stages import Stages, one_lookup, variants_of
from cdejax.retrieval.collections import validation_collection
from cdejax.runtime.mesh import local_indices
from cdejax.storage.artifacts import read_manifest
from cdejax.training.from_recipe import loss_settings, make_batches
from cdejax.training.layerwise import chunk_traffic
from cdejax.training.memory import kept_chunks
from cdejax.training.optimizer import make_optimizer
from cdejax.training.run_folder import Inputs
from cdejax.training.run_model import build_model, first_state
from cdejax.training.sharding import make_mesh
from cdejax.training.step import put_batch, train_step

if TYPE_CHECKING:
    from cdejax.models import Encoder
    from cdejax.training.batch_maker import BatchMaker


@one_lookup()
def dry_run(config: Config) -> RenderableType:
    """Prepares the data of every variant and compiles a step, without training.

    Returns:
      Tables: rows and dropped rows by domain; then, by variant, negatives per query,
      steps, padding, compilations, memory and FLOPs.
    """
    variants = variants_of(config)
    for resolved in variants.values():
        check_inputs(resolved)
    facts: dict[str, dict[str, str]] = {}
    drops: dict[str, Table] = {}
    for name, resolved in variants.items():
        stages = Stages(resolved)
        inputs = stages.inputs()
        plan = str(stages.plan())
        drops.setdefault(
            plan, _dropped_pairs(name, inputs, read_manifest(plan)["counts"])
        )
        facts[name] = _facts(resolved, inputs)
    return Group(*drops.values(), _fact_table(facts))


def _dropped_pairs(name: str, inputs: Inputs, counts: dict[str, Any]) -> Table:
    """Rows of each domain group, and the rows that an epoch leaves out."""
    table = Table(title=f"plan of {name}", box=box.SIMPLE_HEAD)
    for head in ("domain", "rows", "dropped an epoch"):
        table.add_column(head, justify="left" if head == "domain" else "right")
    for domain, entry in counts["domains"].items():
        table.add_row(domain, f"{entry['rows']:,}", f"{entry['dropped'][0]:,}")
    total = len(inputs.pairs.train)
    used = inputs.plan.batch_size * len(inputs.plan.epochs[0])
    table.add_row("all", f"{total:,}", f"{total - used:,}", style="bold")
    return table


def _facts(config: Config, inputs: Inputs) -> dict[str, str]:
    mesh = make_mesh(fsdp=config.training.fsdp)
    model = build_model(config, mesh)
    maker = make_batches(config, inputs, model, mesh)
    batch, total = inputs.plan.batch_size, inputs.plan.total_steps
    columns = batch * (1 + config.training.negatives_per_query)
    useful, computed = step_flops(model, maker)
    found, possible = maker.padding_efficiency()
    traffic = chunk_traffic(nnx.split(model)[1], mesh)
    return {
        "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        **_prefixes(config),
        "steps": f"{total:,} of {batch:,} pairs",
        "negatives a query": f"{columns - 1:,}",
        "checkpoint": _checkpoint(config, inputs),
        "context documents": f"{maker.context_size:,}",
        "rows of": ", ".join(map(str, _widths(maker))),
        "padding efficiency": f"{found:.3f} of {possible:.3f}",
        "parameters": f"{sum(x.size for x in _leaves(model)):,}",
        "memory a device": f"{_memory(config, model, maker, mesh) / 2**20:,.0f} MiB",
        "parameters received a chunk": f"{sum(traffic[:2]) / 2**20:,.0f} MiB",
        "useful FLOPs a step": f"{useful:.2e}",
        "computed FLOPs a step": f"{computed:.2e}",
    }


def _prefixes(config: Config) -> dict[str, str]:
    """The prefixes in use, and the prompts in the folders of the models."""
    tokens, said = tokens_of(config), start_prompts(config)
    used = {"query": tokens.query.prefix, "document": tokens.document.prefix}
    shown = {f"{s} prefix": f"{used[s]!r} (folder: {said[s]!r})" for s in used}
    if config.vectors.method == "encoder":
        said, used = surrogate_prompts(config.vectors)
        for side in ("query", "document"):
            text = f"{used[side]!r} (folder: {said[side]!r})"
            shown[f"surrogate's {side} prefix"] = text
    return shown


def _checkpoint(config: Config, inputs: Inputs) -> str:
    """The checkpoint that training will select for evaluation and export."""
    share, pairs = config.validation_share, inputs.pairs
    on = validation_collection(pairs, share, config.seed)
    if not config.training.eval_every or on is None:
        return "the last"
    return f"the best on {len(on.queries):,} held-out queries"


def _leaves(model: TrainableModel) -> list[Any]:
    return jax.tree.leaves(nnx.split(model)[1])


def step_flops(model: TrainableModel, maker: BatchMaker) -> tuple[float, float]:
    """Matrix-multiplication FLOPs of the plan's first step: (useful, computed).

    Useful: 3 times the forward pass over real tokens (the backward pass counts twice).
    Computed: 4 times the forward pass over padded positions, since the gradient cache
    repeats each forward pass. The context's positions count in both.
    """
    real, padded = maker.real_tokens(0), maker.padded_tokens(0)
    texts = maker.plan.batch_size * (2 + maker.settings.negatives_per_query)
    front = texts * (maker.context_size + model.soft_tokens)
    each = _token_flops(model.text_encoder, maker.context_size)
    return 3 * (real + front) * each, 4 * (padded + front) * each


def _widths(maker: BatchMaker) -> list[int]:
    """Widths of the rows of texts, then of the context's documents."""
    return [shape.width for layout in maker.layouts for shape in layout.shapes]


def _token_flops(encoder: Encoder, keys: int) -> float:
    """Forward FLOPs per token: weight matrices, and attention to `keys` keys."""
    matrices = [
        x for layer in encoder.layers for x in jax.tree.leaves(nnx.state(layer))
    ]
    weights = sum(x.size for x in matrices if x.ndim == 2)
    return 2 * weights + 4 * keys * encoder.hidden_size * len(encoder.layers)


def _memory(
    config: Config, model: TrainableModel, maker: BatchMaker, mesh: Mesh
) -> int:
    """Bytes per device during a step: state, batch and temporaries."""
    graphdef, params = nnx.split(model)
    optimizer = make_optimizer(config.training, maker.plan.total_steps)
    state = first_state(optimizer, params, mesh)
    kept = kept_chunks(model, maker, mesh, config.training.cpu_activations)
    settings = loss_settings(config)
    step = train_step(graphdef, mesh, settings, optimizer, params, kept)
    batch = put_batch(maker.step(0, local_indices(mesh)), mesh)
    compiled = step.lower(state, batch, jax.random.key(0)).compile()
    sizes = compiled.memory_analysis()
    if sizes is None:
        return 0
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes


def _fact_table(facts: dict[str, dict[str, str]]) -> Table:
    table = Table(title="training", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in facts:
        table.add_column(name, justify="right")
    for row in dict.fromkeys(row for values in facts.values() for row in values):
        cells = (escape(values.get(row, "")) for values in facts.values())
        table.add_row(row, *cells)
    return table
