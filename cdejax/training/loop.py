"""The training loop."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from cdejax.config import Config
from cdejax.data.loader import batches, with_wait_times
from cdejax.models import TrainableModel
from cdejax.retrieval.measures import measure_of
from cdejax.runtime.compilation import Compilations
from cdejax.runtime.global_arrays import replicate, whole_arrays
from cdejax.runtime.mesh import local_indices
from cdejax.runtime.platforms import has_cpu
from cdejax.runtime.processes import from_main, is_main, main_only, processes
from cdejax.runtime.progress import progress
from cdejax.runtime.stopping import Stopped, stop_requests
from cdejax.storage.artifacts import RUN, wait_for_file
from cdejax.storage.lock import lock_folder
from cdejax.training.batch import Batch, fill_fraction
from cdejax.training.best_checkpoint import BestCheckpoint
from cdejax.training.callbacks import Callback, Callbacks
from cdejax.training.checkpoint import Checkpoints
from cdejax.training.from_recipe import loss_settings, make_batches
from cdejax.training.memory import kept_chunks
from cdejax.training.metrics import MetricsLog
from cdejax.training.nonfinite import refuse_nonfinite
from cdejax.training.optimizer import learning_rate, make_optimizer
from cdejax.training.run_folder import Inputs, check_run, claim_run
from cdejax.training.run_model import (
    BEST,
    CHECKPOINTS,
    arrays_on_host,
    build_model,
    first_state,
    initial_params,
)
from cdejax.training.sharding import check_splittable, make_mesh
from cdejax.training.step import State, put_batch, train_step
from cdejax.training.tensorboard import TensorBoard
from cdejax.typing import Device

_log = logging.getLogger(__name__)

Evaluate = Callable[[TrainableModel], float]
"""Scores a model by `training.select_by`, which selects the best checkpoint."""


def train(
    config: Config,
    inputs: Inputs,
    folder: str | Path,
    evaluate: Evaluate | None = None,
    devices: list[Device] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Trains to the end of the plan; rerun to resume from the last checkpoint.

    A run that was killed and resumed ends with the same parameters, bit for bit, as one
    that was not (on the same devices; on GPUs with deterministic operations). All
    processes of a run call this; process 0 locks the folder, writes metrics and
    evaluates.

    Args:
      config: the recipe of one variant.
      inputs: the artefacts.
      folder: folder of the run, for checkpoints/, best/, metrics.jsonl, tensorboard/
        and run.json.
      evaluate: scores the model every `training.eval_every` steps and at the end; the
        parameters with the highest score are kept.
      devices: devices to train on (default: all).
      callbacks: called on steps, evaluations and checkpoints; they may end the run.

    Raises:
      ValueError: the folder holds another run or is in use, the recipe does not fit
        the artefacts, or the loss is not finite (its batch is written to a file).
      Stopped: after Ctrl-C or SIGTERM and a checkpoint (single process only).
      Exception: what a callback raised, after a checkpoint.
    """
    folder = Path(folder)
    if processes() > 1 and config.training.checkpoint_minutes is not None:
        raise ValueError(
            "training.checkpoint_minutes: the clocks of several processes differ; set "
            "training.checkpoint_every alone"
        )
    with contextlib.ExitStack() as held:

        def claim() -> None:
            held.enter_context(lock_folder(folder))
            claim_run(folder, config, inputs)

        main_only("claim", claim)
        if not is_main():
            wait_for_file(folder / RUN)
            check_run(folder, config, inputs)
        mesh = make_mesh(devices, config.training.fsdp)
        run = _Run(config, inputs, folder, evaluate, mesh, callbacks)
        try:
            run.train()
        finally:
            run.close()
    return folder


class _PlacedBatch(NamedTuple):
    """A batch on its devices."""

    batch: Batch
    real_tokens: int
    """Number of tokens on all devices."""
    filled: float
    """Real tokens over computed positions on the devices of this process."""


class _RunningStep(NamedTuple):
    """A step that the devices are computing."""

    step: int
    metrics: dict[str, jax.Array]
    ready: _PlacedBatch
    waited: float
    """Seconds that the loop waited for the batch."""


class _Run:
    """A run from its start or resumption to its end."""

    def __init__(
        self,
        config: Config,
        inputs: Inputs,
        folder: Path,
        evaluate: Evaluate | None,
        mesh: Mesh,
        callbacks: Sequence[Callback],
    ):
        self.compilations, self.begun = Compilations(), time.perf_counter()
        self.config, self.inputs, self.folder = config, inputs, folder
        self.evaluate, self.mesh = evaluate, mesh
        self.total, every = inputs.plan.total_steps, config.training.log_every
        own = MetricsLog(every), TensorBoard(every)
        self.callbacks = Callbacks(own, callbacks)
        self.schedule = jax.jit(learning_rate(config.training, self.total))
        optimizer = make_optimizer(config.training, self.total)
        with arrays_on_host():  # the model may not fit on one device
            model: TrainableModel = build_model(config, mesh)
            params = initial_params(config, model)
        self.graphdef = nnx.split(model)[0]
        check_splittable(params, mesh)
        self.state: State = first_state(optimizer, params, mesh)
        self.maker = make_batches(config, inputs, model, mesh)
        on_cpu = config.training.cpu_activations
        self.kept = kept_chunks(model, self.maker, mesh, on_cpu)
        settings = loss_settings(config)
        self.step = train_step(
            self.graphdef, mesh, settings, optimizer, params, kept=self.kept
        )
        self.key = replicate(jax.random.key(config.seed), mesh)
        self.checkpoints = Checkpoints(
            folder / CHECKPOINTS, config.training.keep_checkpoints
        )
        self.best = BestCheckpoint(folder / BEST)
        self.unannounced: int | None = None
        """A checkpoint that callbacks have not been told of."""
        self.start = 0
        if (found := self.checkpoints.restore_latest(self.state, mesh)) is not None:
            self.start, self.state = found
        self.done = self.start
        self.clock, self.saved = time.perf_counter(), time.monotonic()

    def _start_event(self) -> dict[str, Any]:
        """The first line of this start in metrics.jsonl, which is also logged."""
        plan = self.inputs.plan
        found, possible = self.maker.padding_efficiency()
        negatives = plan.batch_size * (1 + self.config.training.negatives_per_query) - 1
        facts = {
            "event": "resume" if self.start else "start",
            "step": self.start,
            "total_steps": self.total,
            "devices": f"{self.mesh.size} x {self.mesh.devices.flat[0].device_kind}",
            "negatives_per_query": negatives,
            "temperature": self.config.training.temperature,
            "context_documents": self.maker.context_size,
            "chunk_tokens": self.maker.settings.chunk_tokens,
            "chunks_kept": sum(self.kept.texts),
            **self._activation_limit(),
            "padding_efficiency": round(found, 4),
            "best_padding_efficiency": round(possible, 4),
        }
        shown = list(facts.items())[1:]
        _log.info(", ".join(f"{k.replace('_', ' ')} {v}" for k, v in shown))
        return facts

    def _activation_limit(self) -> dict[str, float]:
        """On CPUs, the limit of saved activations, which decides the order of sums."""
        limit = self.config.training.cpu_activations
        return {"cpu_activations": limit} if has_cpu(self.mesh) else {}

    def train(self) -> None:
        """Runs the remaining steps."""
        self.callbacks.start(self.folder, self._start_event())
        waiting: collections.deque[_RunningStep] = collections.deque()
        title = f"train {self.folder.name}"
        with (
            stop_requests() as request,
            progress(title, self.total, self.start) as advance,
        ):
            for waited, (step, ready) in with_wait_times(self._batches()):
                self.state, metrics = self.step(self.state, ready.batch, self.key)
                waiting.append(_RunningStep(step, metrics, ready, waited))
                self.done = step + 1
                if len(waiting) > 1:  # the devices compute the newest meanwhile
                    self._finish_step(waiting.popleft())
                self._announce_checkpoint()
                stop = request.signal
                save = stop is not None or self._save_due()
                if save or self._evaluation_due():
                    while waiting:
                        self._finish_step(waiting.popleft())
                    self._evaluate_and_save(save)
                advance(1)
                if stop is not None:
                    self._end_by_signal(stop)
                if self.callbacks.stopping:
                    _log.info("ended by a callback after step %d", self.done)
                    break
            if request.signal is not None:  # after the last step
                self._end_by_signal(request.signal)
        if self.best.score == -math.inf and self.done == self.total:
            self._evaluate()  # lost or damaged: evaluate the last
        self._settle()

    def _settle(self) -> None:
        """Waits until all is on disk; raises what a callback raised."""
        self.checkpoints.wait()
        self._announce_checkpoint()
        self.callbacks.raise_error()

    def _end_by_signal(self, signal: int) -> NoReturn:
        self._settle()
        raise Stopped(
            signal,
            f"after step {self.done} of {self.total}, which is saved: the same command "
            "goes on from there",
        )

    def _batches(self) -> Iterator[tuple[int, _PlacedBatch]]:
        """Batches on their devices, made and placed by the reader threads."""
        local = local_indices(self.mesh)

        def make(step: int) -> _PlacedBatch:
            batch = self.maker.step(step, local)
            real = self.maker.real_tokens(step)
            return _PlacedBatch(put_batch(batch, self.mesh), real, fill_fraction(batch))

        threads = self.config.training.read_threads
        return batches(make, self.start, self.total, threads=threads)

    def _save_due(self) -> bool:
        """Whether a checkpoint is due after the steps done."""
        training, done = self.config.training, self.done
        minutes = (time.monotonic() - self.saved) / 60
        late = minutes >= (training.checkpoint_minutes or math.inf)
        due = done == self.total or done % training.checkpoint_every == 0
        return due or late or self.callbacks.stopping

    def _evaluation_due(self) -> bool:
        every = self.config.training.eval_every or self.total
        return self.done == self.total or self.done % every == 0

    def _evaluate_and_save(self, save: bool) -> None:
        """Evaluates if due, then writes a checkpoint if `save`."""
        if self._evaluation_due():
            self._evaluate()
        if save or self.callbacks.stopping:
            self.checkpoints.wait()
            self._announce_checkpoint()
            self.checkpoints.save(self.done, self.state)
            self.unannounced = self.done if self.callbacks.given else None
            self.saved = time.monotonic()
        self.clock = time.perf_counter()

    def _announce_checkpoint(self) -> None:
        """Calls callbacks for the newest checkpoint once it is on disk."""
        step = self.unannounced
        if step is not None and from_main("written", self.checkpoints.written):
            self.unannounced = None
            self.callbacks.checkpoint(step, self.checkpoints.files.path(step))

    def _evaluate(self) -> None:
        """Scores the parameters and keeps them if they are the best so far."""
        if self.evaluate is not None:
            score = self._score(self.evaluate)
            measure = measure_of(self.config.training.select_by)
            named = {f"heldout_{measure.name.lower()}": score}
            self.callbacks.evaluation(self.done, named)
            self.best.offer(self.done, measure.as_gain(score), self.state.params)

    def _score(self, evaluate: Evaluate) -> float:
        """The score that process 0 computes, on all processes.

        The model shares its arrays with the run; only what evaluation needs is copied.
        """
        params = whole_arrays(self.state.params)
        model = nnx.merge(self.graphdef, params)
        return from_main("evaluation", lambda: evaluate(model))

    def _finish_step(self, started: _RunningStep) -> None:
        """Checks that a finished step is finite, and calls the callbacks."""
        step, ready = started.step, started.ready
        values = {name: float(value) for name, value in started.metrics.items()}
        if not all(map(math.isfinite, (values["loss"], values["gradient_norm"]))):
            refuse_nonfinite(self.folder, self.inputs, step, values)
        now = time.perf_counter()
        seconds, self.clock = max(now - self.clock, 1e-9), now
        if step == self.start:
            took = now - self.begun
            _log.info("first step after %.1f s: %s", took, self.compilations)
        speeds = {
            "pairs_per_second": self.inputs.plan.batch_size / seconds,
            "tokens_per_second": ready.real_tokens / seconds,
            "padding_efficiency": ready.filled,
            "loader_wait_share": min(started.waited / seconds, 1.0),
        }

        def metrics() -> dict[str, float]:
            rate = float(np.asarray(self.schedule(step)))
            return {**values, "learning_rate": rate, **speeds}

        self.callbacks.step(step + 1, step + 1 == self.total, metrics)

    def close(self) -> None:
        """Waits for checkpoints in progress and closes all files."""
        with contextlib.ExitStack() as ends:
            ends.callback(self.callbacks.end, self.done)
            ends.callback(self.best.close)
            self.checkpoints.close()
