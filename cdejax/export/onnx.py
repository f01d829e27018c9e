"""ONNX graphs for exported and Hugging Face folders, beside their other files.

`onnx/model.onnx` takes `input_ids` and `attention_mask` (int64 [batch, length]) and
gives `last_hidden_state` and `sentence_embedding`, pooled and normalised as the folder
says: what onnxruntime and sentence-transformers' ONNX backend look for.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import tempfile
from pathlib import Path

import jax.numpy as jnp

from cdejax.embedding.embedder import Embedder
from cdejax.embedding.load import load
from cdejax.export.onnx_check import Reference
from cdejax.export.publish import clear_folder, move_into_place
from cdejax.folders.paths import check_outside, local_output, resolve_folder
from cdejax.models.pretrained.settings import transformer_folder
from cdejax.storage import durable
from cdejax.storage.lock import lock_folder

_log = logging.getLogger(__name__)
PLACE = "onnx"
MODEL = "model.onnx"
QUANTIZED = "model_quantized.onnx"
FILES = (MODEL, f"{MODEL}_data", QUANTIZED, f"{QUANTIZED}.data")
_NEEDED = ("torch", "transformers", "sentence_transformers", "onnx", "onnxruntime",
           "onnxscript")  # fmt: skip


def add_onnx(
    folder: str | Path,
    output: Path | None = None,
    *,
    int8: bool = False,
    overwrite: bool = False,
) -> Path:
    """Adds ONNX graphs to a folder, checked against our model of it.

    Args:
      folder: an export of ours (a biencoder or a baked model) or a Hugging Face folder
        with one encoder; or `package:MODULE/FOLDER`.
      output: add them to a copy of the folder, which appears here when it is complete
        (default: to the folder itself).
      int8: also write `model_quantized.onnx`: weights in 8 bits, column by column, and
        activations quantised as they come. Its cosine to float32 is logged.
      overwrite: replace graphs that are there.

    Returns:
      The folder of the graphs, `onnx` beside the encoder's `config.json`.

    Raises:
      ValueError: a library is missing, the folder cannot be read or holds graphs
        already, its model needs a context, `output` is not empty, or the graph's
        vectors differ by more than 1e-4 from ours (then nothing is left).
    """
    require_libraries()
    path = resolve_folder(folder)
    if output is None:
        _check_free(path, overwrite)
    else:
        _check_output(path, output)
    embedder = load(path, dtype=jnp.float32)
    if embedder.context_size is not None:
        raise ValueError(
            f"{folder}: a contextual model reads a context beside the text, and an "
            "ONNX graph takes text alone: bake one into it first (`cdejax bake`)"
        )
    where = path if output is None else output
    try:
        if output is None:
            _add(path, embedder, int8)
        else:
            _copy(path, output, embedder, int8)
    except OSError as error:
        reason = durable.reason(error)
        raise ValueError(f"{where}: cannot be written ({reason})") from None
    return transformer_folder(where) / PLACE


def require_libraries() -> None:
    """Raises ValueError, with the fix, where a library for ONNX is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"ONNX needs {', '.join(missing)}, not installed here: "
            "pip install '.[onnx]' in cdejax's checkout"
        )


def _graphs(folder: Path) -> list[Path]:
    """The graphs that a folder holds, under the names that we write."""
    place = transformer_folder(folder) / PLACE
    return [place / name for name in FILES if (place / name).exists()]


def _check_free(folder: Path, overwrite: bool) -> None:
    found = _graphs(folder)
    if found and not overwrite:
        raise ValueError(f"{found[0]}: exists; add --overwrite, or give an --output")


def _check_output(folder: Path, output: Path) -> None:
    local_output(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output}: exists and is not empty; give another folder")
    if not output.absolute().parent.is_dir():
        raise ValueError(f"{output}: there is no folder {output.parent}; make it first")
    check_outside(output, folder)


def _copy(folder: Path, output: Path, embedder: Embedder, int8: bool) -> None:
    """A copy with graphs; it gets its name when it is complete."""
    ignore = shutil.ignore_patterns("__pycache__", ".lock")
    partial = output.absolute().with_name(f".{output.name}.partial")
    with lock_folder(partial):
        try:
            clear_folder(partial)
            shutil.copytree(folder, partial, ignore=ignore, dirs_exist_ok=True)
            _add(partial, embedder, int8)
            move_into_place(partial, output)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _add(folder: Path, embedder: Embedder, int8: bool) -> None:
    """Writes graphs aside, checks them, and puts them in the place of older ones."""
    durable.write_together(
        transformer_folder(folder) / PLACE,
        lambda made: _write(folder, made, embedder, int8),
        gone=FILES,
    )


def _write(folder: Path, made: Path, embedder: Embedder, int8: bool) -> None:
    """The checked graphs of a folder, in another."""
    from cdejax.export import onnx_graph

    baked = embedder.model.kind == "baked"
    load_graph = onnx_graph.baked_graph if baked else onnx_graph.stock_graph
    onnx_graph.write_graph(load_graph(folder), made / MODEL)
    reference = Reference(embedder)
    difference = reference.difference(made / MODEL)
    _log.info("%s: differs by %.1e at most from the model", MODEL, difference)
    if int8:
        quantize(made / MODEL, made / QUANTIZED)
        close = reference.cosines(made / QUANTIZED)
        _log.info(
            "%s: cosine to the model %.4f at least, %.4f on average",
            QUANTIZED,
            close.min(),
            close.mean(),
        )


def quantize(file: Path, output: Path) -> None:
    """Dynamic 8-bit quantisation of a graph's weights, by columns.

    Unsigned weights: with signed ones, processors without VNNI saturate 16-bit sums
    and give other vectors than those that have it.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    beside = (file.parent / f"{file.name}_data").is_file()
    with tempfile.TemporaryDirectory(dir=output.parent) as temporary:
        ready = Path(temporary) / file.name
        quant_pre_process(
            file, ready, skip_symbolic_shape=True, save_as_external_data=beside
        )
        quantize_dynamic(
            ready,
            output,
            per_channel=True,
            weight_type=QuantType.QUInt8,
            use_external_data_format=beside,
        )
