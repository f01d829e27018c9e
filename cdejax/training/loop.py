"""The training loop: batches in, checkpoints and metrics out."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from cdejax.config import Config
from cdejax.data.loader import batches
from cdejax.retrieval.measures import measure_of
from cdejax.runtime.compilation import Compilations
from cdejax.runtime.global_arrays import replicate, whole_arrays
from cdejax.runtime.platforms import has_cpu
from cdejax.runtime.processes import from_main, is_main, main_only, processes
from cdejax.runtime.progress import progress
from cdejax.runtime.stopping import Stopped, stop_requests
from cdejax.storage.artifacts import RUN, wait_for_file, write_json
from cdejax.storage.lock import lock_folder
from cdejax.training.batch import Batch, BatchSettings, fill_fraction
from cdejax.training.batch_maker import BatchMaker
from cdejax.training.best_checkpoint import BestCheckpoint
from cdejax.training.checkpoint import Checkpoints
from cdejax.training.memory import chunk_tokens, kept_chunks
from cdejax.training.metrics import MetricsLog
from cdejax.training.objectives.registry import objective_of
from cdejax.training.optimizer import learning_rate, make_optimizer
from cdejax.training.relation import Relation
from cdejax.training.run_folder import Inputs, check_run, claim_run
from cdejax.training.shapes import shapes_of
from cdejax.training.sharding import check_splittable, make_mesh
from cdejax.training.start import (
    BEST,
    CHECKPOINTS,
    Model,
    arrays_on_host,
    build_model,
    first_state,
    initial_params,
)
from cdejax.training.step import LossSettings, State, put_batch, train_step
from cdejax.typing import Device

_log = logging.getLogger(__name__)
T = TypeVar("T")


Evaluate = Callable[[Model], float]
"""A model to its value of the primary measure, by which checkpoints are chosen."""


def train(
    config: Config,
    inputs: Inputs,
    folder: str | Path,
    evaluate: Evaluate | None = None,
    devices: list[Device] | None = None,
) -> Path:
    """Trains until the plan's end; started again, it goes on from the last checkpoint.

    A run that was killed and resumed gives the same parameters, bit for bit, as one
    that was not (same devices; on GPU with deterministic operations). All processes
    of a run call this; process 0 holds the folder, writes metrics and evaluates.

    Args:
      config: the recipe, of one variant.
      inputs: the artefacts.
      folder: of this run: checkpoints/, best/, metrics.jsonl, tensorboard/, run.json.
      evaluate: scores the model on held-out rows, every `training.eval_every` steps
        and at the end; the best parameters are kept.
      devices: to train on (default: all).

    Raises:
      ValueError: the folder holds another run or is in use, the recipe does not fit
        the artefacts, or the loss is not finite (the batch is dumped and named).
      Stopped: Ctrl-C or SIGTERM came, and a checkpoint was written (in one process).
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
        run = _Run(
            config, inputs, folder, evaluate, make_mesh(devices, config.training.fsdp)
        )
        try:
            run.train()
        finally:
            run.close()
    return folder


def make_batches(
    config: Config, inputs: Inputs, model: Model, mesh: Mesh
) -> BatchMaker:
    """The batches of a run on a mesh, in chunks that suit its devices and the model.

    Raises:
      ValueError: hard negatives are asked for, but there are none; or the model does
        not fit the devices.
    """
    training, contextual = config.training, config.model.kind == "contextual"
    if training.negatives_per_query and not len(inputs.pairs.train.negatives.values):
        raise ValueError(
            f"training.negatives_per_query is {training.negatives_per_query}, but the "
            "pairs have no hard negatives; set it to 0 or name their column in "
            "data.sources.columns.negatives"
        )
    settings = BatchSettings(
        seed=config.seed,
        devices=mesh.size,
        chunk_tokens=training.chunk_tokens or chunk_tokens(model, mesh),
        context_size=config.model.context_size if contextual else 0,
        soft_tokens=config.model.soft_tokens if contextual else 0,
        negatives_per_query=training.negatives_per_query,
        max_widths=training.max_widths,
        packed=training.packed,
    )
    shapes = shapes_of(inputs, settings)
    vectors = inputs.vectors if loss_settings(config).needs_surrogate else None
    return BatchMaker(
        inputs.pairs, inputs.tokens, inputs.plan, settings, shapes, vectors
    )


def loss_settings(config: Config) -> LossSettings:
    """What the loss depends on, from a recipe."""
    training = config.training
    return LossSettings(
        objective_of(training),
        Relation(training.duplicates, training.false_negative_margin),
        block=training.loss_block,
        sequence_dropout=config.model.sequence_dropout,
        ring=training.ring,
    )


def local_indices(mesh: Mesh) -> list[int]:
    """Which devices of the mesh are this process's own."""
    here = jax.process_index()
    flat = enumerate(mesh.devices.flat)
    return [i for i, device in flat if device.process_index == here]


class _PlacedBatch(NamedTuple):
    """A batch on its devices."""

    batch: Batch
    real_tokens: int
    """Of all devices."""
    filled: float
    """Real tokens over computed positions, on the devices of this process."""


class _RunningStep(NamedTuple):
    """A step that the devices work on."""

    step: int
    metrics: dict[str, jax.Array]
    ready: _PlacedBatch
    waited: float
    """Seconds that the loop waited for its batch."""


def _with_wait_times(items: Iterable[T]) -> Iterator[tuple[float, T]]:
    """Each item with the seconds that it was waited for."""
    iterator, done = iter(items), object()
    while True:
        start = time.perf_counter()
        item = next(iterator, done)
        if item is done:
            return
        yield time.perf_counter() - start, cast(T, item)


class _Run:
    """One start of a run: what it needs, and where it is."""

    def __init__(
        self,
        config: Config,
        inputs: Inputs,
        folder: Path,
        evaluate: Evaluate | None,
        mesh: Mesh,
    ):
        self.compilations, self.begun = Compilations(), time.perf_counter()
        self.config, self.inputs, self.folder = config, inputs, folder
        self.evaluate, self.mesh = evaluate, mesh
        self.total = inputs.plan.total_steps
        self.schedule = jax.jit(learning_rate(config.training, self.total))
        optimizer = make_optimizer(config.training, self.total)
        with arrays_on_host():  # the model need not fit one device
            model: Model = build_model(config, mesh)
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
        self.start = 0
        if (found := self.checkpoints.restore_latest(self.state, mesh)) is not None:
            self.start, self.state = found
        self.log = MetricsLog(folder, self.start, self._start_event())
        self.clock, self.saved = time.perf_counter(), time.monotonic()

    def _start_event(self) -> dict[str, Any]:
        """What a reader of the log wants to know of this start, printed too."""
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
        """On CPUs, what bounds the kept chunks, and so the order of sums."""
        limit = self.config.training.cpu_activations
        return {"cpu_activations": limit} if has_cpu(self.mesh) else {}

    def train(self) -> None:
        """Runs the steps that are left."""
        waiting: collections.deque[_RunningStep] = collections.deque()
        title = f"train {self.folder.name}"
        with (
            stop_requests() as request,
            progress(title, self.total, self.start) as advance,
        ):
            for waited, (step, ready) in _with_wait_times(self._batches()):
                self.state, metrics = self.step(self.state, ready.batch, self.key)
                waiting.append(_RunningStep(step, metrics, ready, waited))
                if len(waiting) > 1:  # the device works on the newest meanwhile
                    self._log_step(waiting.popleft())
                stop = request.signal
                save = stop is not None or self._save_due(step + 1)
                if save or self._evaluation_due(step + 1):
                    while waiting:
                        self._log_step(waiting.popleft())
                    self._evaluate_and_save(step + 1, save)
                advance(1)
                if stop is not None:
                    self._end_by_signal(step + 1, stop)
            if request.signal is not None:  # it came behind the last step
                self._end_by_signal(self.total, request.signal)
        if self.best.score == -math.inf:  # it was lost; the last is what there is
            self._evaluate(self.total)

    def _end_by_signal(self, done: int, signal: int) -> NoReturn:
        self.checkpoints.wait()
        raise Stopped(
            signal,
            f"after step {done} of {self.total}, which is saved: the same command "
            "goes on from there",
        )

    def _batches(self) -> Iterator[tuple[int, _PlacedBatch]]:
        """Batches on their devices, made and moved by the reader threads."""
        local = local_indices(self.mesh)

        def make(step: int) -> _PlacedBatch:
            batch = self.maker.step(step, local)
            real = self.maker.real_tokens(step)
            return _PlacedBatch(put_batch(batch, self.mesh), real, fill_fraction(batch))

        threads = self.config.training.read_threads
        return batches(make, self.start, self.total, threads=threads)

    def _save_due(self, done: int) -> bool:
        """Whether a checkpoint is due after that many steps."""
        training = self.config.training
        minutes = (time.monotonic() - self.saved) / 60
        late = minutes >= (training.checkpoint_minutes or math.inf)
        return done == self.total or done % training.checkpoint_every == 0 or late

    def _evaluation_due(self, done: int) -> bool:
        every = self.config.training.eval_every or self.total
        return done == self.total or done % every == 0

    def _evaluate_and_save(self, done: int, save: bool) -> None:
        """Evaluates if that is due, and writes a checkpoint if it is wanted."""
        if self._evaluation_due(done):
            self._evaluate(done)
        if save:
            self.checkpoints.save(done, self.state)
            self.saved = time.monotonic()
        self.clock = time.perf_counter()

    def _evaluate(self, done: int) -> None:
        """Scores the parameters, and keeps them if they are the best so far."""
        if self.evaluate is not None:
            score = self._score(self.evaluate)
            measure = measure_of(self.config.training.select_by)
            self.log.add(done, {f"heldout_{measure.name.lower()}": score})
            self.best.offer(done, measure.as_gain(score), self.state.params)

    def _score(self, evaluate: Evaluate) -> float:
        """The score that process 0 gives the model, the same on all processes.

        The model is the run's own arrays: nothing but what evaluating takes is copied.
        """
        params = whole_arrays(self.state.params)
        model = nnx.merge(self.graphdef, params)
        return from_main("evaluation", lambda: evaluate(model))

    def _log_step(self, started: _RunningStep) -> None:
        """Checks a finished step and logs it."""
        step, ready = started.step, started.ready
        values = {name: float(value) for name, value in started.metrics.items()}
        if not all(map(math.isfinite, (values["loss"], values["gradient_norm"]))):
            self._stop_nonfinite(step, values)
        now = time.perf_counter()
        seconds, self.clock = max(now - self.clock, 1e-9), now
        if step == self.start:
            took = now - self.begun
            _log.info("first step after %.1f s: %s", took, self.compilations)
        if (step + 1) % self.config.training.log_every and step + 1 != self.total:
            return
        values |= {
            "learning_rate": float(np.asarray(self.schedule(step))),
            "pairs_per_second": self.inputs.plan.batch_size / seconds,
            "tokens_per_second": ready.real_tokens / seconds,
            "padding_efficiency": ready.filled,
            "loader_wait_share": min(started.waited / seconds, 1.0),
        }
        self.log.add(step + 1, values)

    def _stop_nonfinite(self, step: int, values: dict[str, float]) -> None:
        """Dumps a batch whose loss or gradient is not finite, and stops."""
        pairs, rows = self.inputs.pairs, self.inputs.plan.rows(step)
        path = self.folder / f"nonfinite-step-{step + 1}.json"
        domains = sorted({pairs.domains[d] for d in pairs.train.domain[rows]})
        if is_main():
            write_json(
                path,
                {
                    "step": step + 1,
                    "epoch": self.inputs.plan.epoch_of(step),
                    "metrics": {name: str(value) for name, value in values.items()},
                    "domains": domains,
                    "rows": rows.tolist(),
                    "query_rows": np.asarray(pairs.train.query)[rows].tolist(),
                    "document_rows": np.asarray(pairs.train.document)[rows].tolist(),
                },
            )
        raise ValueError(
            f"step {step + 1}: loss {values['loss']}, gradient norm "
            f"{values['gradient_norm']}. The batch (domains {', '.join(domains)}) is "
            f"in {path}. Lower training.learning_rate or check these rows; the last "
            "checkpoint is intact."
        )

    def close(self) -> None:
        """Waits for what is being written."""
        with contextlib.closing(self.log), contextlib.closing(self.best):
            self.checkpoints.close()
