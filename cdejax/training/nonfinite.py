"""Stops a run whose loss or gradient is not finite, and writes the batch to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np

from cdejax.runtime.processes import is_main
from cdejax.storage.artifacts import write_json
from cdejax.training.run_folder import Inputs


def refuse_nonfinite(
    folder: Path, inputs: Inputs, step: int, metrics: Mapping[str, float]
) -> NoReturn:
    """Writes the batch of a step to `nonfinite-step-N.json` and raises ValueError.

    Args:
      folder: the run's folder.
      inputs: the artefacts that the run reads.
      step: number of steps before this one.
      metrics: metrics of the step: `loss`, `gradient_norm` and more.

    Raises:
      ValueError: always; the message names the file and the remedy.
    """
    pairs, rows = inputs.pairs, inputs.plan.rows(step)
    path = folder / f"nonfinite-step-{step + 1}.json"
    domains = sorted({pairs.domains[d] for d in pairs.train.domain[rows]})
    if is_main():
        write_json(
            path,
            {
                "step": step + 1,
                "epoch": inputs.plan.epoch_of(step),
                "metrics": {name: str(value) for name, value in metrics.items()},
                "domains": domains,
                "rows": rows.tolist(),
                "query_rows": np.asarray(pairs.train.query)[rows].tolist(),
                "document_rows": np.asarray(pairs.train.document)[rows].tolist(),
            },
        )
    raise ValueError(
        f"step {step + 1}: loss {metrics['loss']}, gradient norm "
        f"{metrics['gradient_norm']}. The batch (domains {', '.join(domains)}) is "
        f"in {path}. Lower training.learning_rate or check these rows; the last "
        "checkpoint is intact."
    )
