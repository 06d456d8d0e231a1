"""The training loop: timm's optimisers, schedules, losses and EMA around a wrapped model, on one process or several.

A step is a function of the seed, its number, and the state before it, and that state is what a checkpoint holds. So a run that
was killed anywhere goes on from its newest checkpoint to the same bits.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from train import processes
from train.config import Config
from train.data import Batch, training_set
from train.draws import STEP, batches, seed_all
from train.durable import publish
from train.guard import Guard, too_many
from train.modelling import save
from train.objective import Objective
from train.optimisation import optimisation
from train.resume import Parts, Record
from train.sift import Missing, WorkerLost
from train.spread import Spread, accuracies
from train.stop import Stop, Stopped

Report = Callable[[dict[str, Any]], None]


class Trainer:
    """One run: `Trainer(config, folder).fit()` trains, measures at the training size, and writes `folder`.

    `resume`: auto goes on from the newest whole checkpoint in the folder, if there is one; none begins, where there is none; a path
    goes on from that checkpoint or fails. `report` is told of steps, measurements, updates left out, and of what is saved.
    """

    @processes.together()
    def __init__(self, config: Config, folder: Path, report: Report = lambda event: None, resume: str = "auto") -> None:
        self.config, self.report = config, report
        if config.threads:
            torch.set_num_threads(config.threads)
        self.rank, self.world = processes.join(config.device)
        self.folder = folder = processes.from_all(folder, self.world)[0]  # whose name may be made of the time
        torch.manual_seed(config.seed)
        self.device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if config.device == "cuda" else config.device)
        self.data = training_set(config)
        self.spread = Spread(config, self.rank, self.world, self.device)
        self.model, self.ema, self.runner = self.spread.model, self.spread.ema, self.spread.runner
        per_epoch = len(self.data) // (config.batch_size * self.world)
        self.steps = config.steps or config.epochs * max(1, per_epoch // config.grad_accum_steps)
        self.optimizer, self.scheduler, self.scaler = optimisation(self.model, config, self.steps)
        self.objective = Objective(config, getattr(self.model, "num_classes", 0), self.device)
        self.guard = Guard(self.model, self.world)
        team = {"rank": self.rank, "world": self.world, "shared": self.spread.shared}
        self.record = Record(config, folder / "checkpoints", len(self.data), **team)
        self.progress = self.record.take_up(self._parts(), resume)
        self.due = False  # is a checkpoint, by the first process's clock
        if (ledger := getattr(self.data, "ledger", None)) is not None:
            ledger.known = {event["sample"]: event["why"] for event in self.progress.log if event["event"] == "bad"}
            ledger.tell = self._left_out
        for note in self.record.notes:
            self._tell({"event": "note", "note": note})

    def _parts(self) -> Parts:
        """What a checkpoint holds the state of."""
        return Parts(self.model, None if self.ema is None else self.ema.module, self.optimizer, self.scheduler, self.scaler)

    @processes.together()
    def fit(self) -> dict[str, Any]:
        """Train what is left; returns what the `trained` event says. Asked to end, it saves and raises `Stopped`."""
        config, progress = self.config, self.progress
        with Stop(several=self.world > 1) as stop:
            if progress.step < self.steps:
                start, end = (n * config.grad_accum_steps for n in (progress.step, self.steps))
                self.batches = batches(self.data, config, start=start, end=end, rank=self.rank, world=self.world)
                stop.leave_children_alone()
            try:
                self._train(stop)
            finally:
                self.batches = iter(())  # its workers end here, while nobody listens for it
        return self._finish()

    def _train(self, stop: Stop) -> None:
        """Step by step to the end, or until asked to end."""
        progress, mark = self.progress, time.perf_counter()
        self.runner.train()
        while progress.step < self.steps:
            done, signum = progress.step, self._step(stop)
            mark, taken = time.perf_counter(), time.perf_counter() - mark
            progress.seconds += taken
            self._look(moved=progress.step > done, ending=signum > 0)
            if signum:
                processes.part()
                raise Stopped(signum)

    def _step(self, stop: Stop) -> int:
        """One update; returns the number of the signal that asks for an end, or 0."""
        config, step = self.config, self.progress.step
        if self.scheduler is not None:
            self.scheduler.step_update(step)
        self.guard.remember()
        total, seen = torch.zeros((), device=self.device), list[int]()
        for part in range(config.grad_accum_steps):
            try:
                indices, batch = self._next()
            except WorkerLost:
                if not stop.asked or self.world > 1:
                    raise
                self.guard.undo()
                return stop.signum  # the signal reached the worker, too
            seen += indices
            micro, last = step * config.grad_accum_steps + part, part + 1 == config.grad_accum_steps
            seed_all(config.seed, micro, self.rank, STEP)
            with self.spread.gathering(last):
                loss = self.objective(self.runner, batch, micro) / config.grad_accum_steps
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return self._update(total.item(), seen, stop)

    def _next(self) -> tuple[list[int], Batch]:
        """The next micro-batch and its samples."""
        asked = time.perf_counter()
        found = next(self.batches)
        self.progress.waited += time.perf_counter() - asked
        return found

    def _update(self, loss: float, seen: list[int], stop: Stop) -> int:
        """Let the gradients into the weights, if they and the loss are finite on all processes."""
        config, progress, scaler = self.config, self.progress, self.scaler
        scaler.unscale_(self.optimizer)
        norm = self.guard.norm()
        due = self.rank == 0 and self.record.due(progress.step + 1)
        flags = not math.isfinite(loss), not math.isfinite(norm), stop.signum if stop.asked else 0, due
        wrong_loss, wrong_norm, signum, self.due = processes.largest(flags, self.world, self.device)
        if not wrong_loss and not wrong_norm:
            if config.clip_grad is not None:
                nn.utils.clip_grads_with_norm_(self.model.parameters(), config.clip_grad, norm)
            scaler.step(self.optimizer)
            self._took(loss)
        elif wrong_loss or not scaler.is_enabled() or scaler.get_scale() <= 1:
            self._leave_out(self.guard.to_blame(seen, loss))
        else:  # the scale of float16 was too high, and falls
            self.guard.undo()
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        return signum

    def _took(self, loss: float) -> None:
        progress = self.progress
        if self.ema is not None:
            self.ema.update(self.model, progress.step)
        progress.loss, progress.in_a_row = loss, 0
        if progress.step % 20 == 0 or progress.step + 1 == self.steps:
            lr = self.optimizer.param_groups[0]["lr"]
            self._log({"event": "step", "step": progress.step + 1, "steps": self.steps, "loss": loss, "lr": lr})

    def _leave_out(self, samples: list[int]) -> None:
        """An update that changes nothing, and is told with its samples."""
        progress = self.progress
        self.guard.undo()
        progress.skipped, progress.in_a_row = progress.skipped + 1, progress.in_a_row + 1
        self._log({"event": "skipped", "step": progress.step + 1, "samples": samples, "in_a_row": progress.in_a_row})
        if progress.in_a_row >= self.config.max_skipped:
            raise too_many(progress.in_a_row, progress.step + 1, samples)

    def _look(self, moved: bool, ending: bool) -> None:
        """After a step: measure and save, where it is time."""
        config, progress = self.config, self.progress
        best = bool(moved and config.measure_every and progress.step % config.measure_every == 0) and self._measure()
        if not (best or ending or progress.step == self.steps or self.due):
            return
        if self.rank == 0 or self.spread.shared:
            path = self.record.save(self._parts(), progress)
            self._tell({"event": "saved", "step": progress.step, "path": str(path)})

    def _measure(self) -> bool:
        """On the first process; returns, on all, whether it is the best so far."""
        progress, best = self.progress, False
        if (used := self.spread.used()) is not None:
            found = accuracies(used, self.config, self.objective.told)
            told = {"step": progress.step, "accuracy": sum(found.values()) / max(1, len(found))}
            self._log({"event": "measured", **told, "accuracies": found})
            if best := progress.best is None or told["accuracy"] > progress.best["accuracy"]:
                progress.best = told
            self.runner.train()
        return bool(processes.largest((best,), self.world, self.device)[0])

    def _finish(self) -> dict[str, Any]:
        """Save the model as it is used, then measure at the training size, as `train.evaluate` does."""
        config, progress = self.config, self.progress
        if (used := self.spread.used()) is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            publish(self.folder / "run.json", json.dumps(self.record.told(), indent=2))
            save(used, config, self.folder)
        measured = accuracies(used, config, self.objective.told)
        event = {
            "event": "trained",
            "encoding": config.title,
            "seed": config.seed,
            "steps": self.steps,
            "seconds": round(progress.seconds, 2),
            "wait_share": round(progress.waited / max(progress.seconds, 1e-9), 4),
            "loss": None if progress.loss is None else round(progress.loss, 4),
            "accuracy": sum(measured.values()) / max(1, len(measured)),
            "accuracies": measured,
            "parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            "skipped": progress.skipped,
        }
        self._log(event)
        processes.part()
        return event

    def _left_out(self, one: Missing) -> None:
        """A training file that is broken, and may be."""
        self._log({"event": "bad", "sample": one.index, "why": one.why})

    def _log(self, event: dict[str, Any]) -> None:
        """What is kept with the run."""
        self.progress.log.append(event)
        self._tell(event)

    def _tell(self, event: dict[str, Any]) -> None:
        if self.rank == 0:
            self.report(event)
