"""The loop of a retrofit: fade, see, compare, step; measured and saved now and then, and gone on with from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rope_nd import fade
from train.draws import draws, seed_all
from train.retrofit import model as models
from train.retrofit import schedule, state
from train.retrofit.config import Config
from train.retrofit.distil import Features, features, fidelity, loss, normalise, target_size
from train.retrofit.images import split, views, whole
from train.retrofit.picture import over_time, write_picture
from train.retrofit.weights import add_lora, freeze_others, groups, mean_of, merge_lora
from train.rows import write_csv
from train.stop import Stop, Stopped

Report = Callable[[dict[str, Any]], None]


class Retrofit:
    """One run: `Retrofit(config).fit()` trains, or goes on, and writes the folder `config.output`."""

    def __init__(self, config: Config, report: Report = lambda event: None) -> None:
        self.config, self.report, self.folder = config, report, Path(config.output)
        if config.threads:
            torch.set_num_threads(config.threads)
        self.train_files, self.val_files = split(Path(config.data))
        first = models.original(config)
        self.sizes = models.sizes(config, first)
        self.home = config.home or (models.pretrained_size(first),) * 2
        self.teacher = models.teacher(first, antialias=config.antialias).to(config.device)
        self.student = models.student(first, config)
        if config.fold:
            models.fold(self.student)
        if config.train == "lora":
            add_lora(self.student, config.rank)
        self.student.to(config.device)
        self.weights = freeze_others(self.student, config.train)
        self.optimizer = torch.optim.AdamW(groups(self.student, config.train, config.weight_decay), lr=config.lr)
        self.mean = mean_of(self.weights, config)
        self.rows: list[dict[str, Any]] = []
        self.drawn = 0
        self.before, self.began = 0.0, time.perf_counter()  # seconds of earlier parts of this run, and the start of this one

    def fit(self) -> dict[str, Any]:
        """Train from the last checkpoint, or from the start; returns the last row of the fidelity a size."""
        config, start = self.config, self._go_on()
        self.began, apart = time.perf_counter(), 0.0
        end = min(config.steps, config.stop_after or config.steps)
        if start == 0:
            self._measure(0, 0.0)
        with Stop() as stop:
            for done in range(start + 1, end + 1):
                apart = self._step(done - 1)
                self.report({"step": done, "steps": config.steps, "loss": apart})
                if done % config.measure_every == 0 or done == config.steps:
                    self._measure(done, apart)
                if done % config.save_every == 0 or done == end or stop.asked:
                    self._save(done)
                if stop.asked:
                    raise Stopped(stop.signum)
        if end == config.steps:
            self._finish()
        return {f"{row['size']}": row for row in self.rows}

    @property
    def seconds(self) -> float:
        """How long the run has taken, in all its parts."""
        return self.before + time.perf_counter() - self.began

    def _step(self, step: int) -> float:
        """One update; returns the loss."""
        config = self.config
        seed_all(config.seed, step, 4)
        fade(self.student, strength=schedule.strength(step, config), absolute=schedule.absolute(step, config))
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.rate(step, config)
        size = schedule.size(step, self.sizes, config.seed)
        shown = {"batch": config.batch_size, "sizes": (size, target_size(size, self.home)), "crop": config.crop}
        small, large = views(self.train_files, step, **shown, seed=config.seed)  # type: ignore[arg-type]
        with torch.no_grad():
            target = self._features(self.teacher, large, config.inside)
        apart = loss(self._features(self.student.train(), small, config.inside), target, config)
        self.optimizer.zero_grad(set_to_none=True)
        apart.backward()
        norm = nn.utils.clip_grad_norm_(self.weights.values(), config.clip_grad)
        if not (apart + norm).isfinite():
            raise ValueError(f"step {step + 1}: loss or gradients are not finite: lower --lr; what was saved before is untouched")
        self.optimizer.step()
        if self.mean is not None:
            self.mean.update(self.weights, step)
        return apart.item()

    def _features(self, model: nn.Module, images: Tensor, inside: int = 0) -> Features:
        device = torch.device(self.config.device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.config.bf16):
            return features(model, normalise(images, model, device), inside)

    @torch.no_grad()
    def _measure(self, step: int, apart: float) -> None:
        """Fidelity on held-out images at each measured size, as the model would be used: turning fully, the table gone."""
        config = self.config
        fade(self.student, strength=1.0, absolute=config.keep_absolute)
        trained = self._swap_in_mean()
        self.student.eval()
        faded = {"strength": schedule.strength(step, config), "absolute": schedule.absolute(step, config)}
        told = {"step": step, "seconds": round(self.seconds, 1), **faded, "loss": apart}
        for size in config.measure_sizes or self.sizes:
            patches, pooled = self._fidelity(size)
            self.rows.append({**told, "size": size, "patches": patches, "pooled": pooled})
        self._put_back(trained)
        self.report({"step": step, "rows": self.rows[-len(config.measure_sizes or self.sizes) :]})

    def _fidelity(self, size: int) -> tuple[float, float]:
        """Mean cosine of patch tokens and of what is pooled, over the first held-out images of a fixed shuffle."""
        order = torch.randperm(len(self.val_files), generator=draws(0)).tolist()[: self.config.measure_images]
        found = []
        for start in range(0, len(order), 8):
            paths = [self.val_files[index] for index in order[start : start + 8]]
            seen, target = (torch.stack([whole(path, s) for path in paths]) for s in (size, target_size(size, self.home)))
            found.append(fidelity(self._features(self.student, seen), self._features(self.teacher, target)))
        patches, pooled = (torch.cat(part).mean().item() for part in zip(*found))
        return patches, pooled

    @torch.no_grad()
    def _swap_in_mean(self) -> dict[str, Tensor]:
        """Measure and save with the running mean, if there is one; returns what was there."""
        if self.mean is None:
            return {}
        kept = {name: parameter.detach().clone() for name, parameter in self.weights.items()}
        self._put_back(self.mean.values)
        return kept

    @torch.no_grad()
    def _put_back(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.weights[name].copy_(value)

    def _save(self, step: int) -> None:
        weights = {name: parameter.detach() for name, parameter in self.weights.items()}
        mean = {} if self.mean is None else self.mean.values
        found = state.State(step, weights, mean, self.optimizer.state_dict(), self.rows, self.seconds)
        state.write(found, self.config, self.folder)
        self._draw()

    def _draw(self) -> None:
        """The table and the picture of fidelity over the steps, where something was measured since."""
        if self.drawn != len(self.rows):
            write_csv(self.folder / "fidelity.csv", list(self.rows[0]), self.rows)
            write_picture(self.folder / "fidelity.png", over_time(self.rows, self.config))
            self.drawn = len(self.rows)

    def _go_on(self) -> int:
        """Take up the last checkpoint; returns the steps that are done."""
        found, notes = state.read(self.config, self.folder)
        for note in notes:
            self.report({"note": note})
        if found is None:
            return 0
        self._put_back(found.weights)
        if self.mean is not None:
            self.mean.values = {name: value.to(self.config.device) for name, value in found.mean.items()}
        self.optimizer.load_state_dict(found.optimizer)
        self.rows, self.before = found.rows, found.seconds
        return found.step

    def _finish(self) -> None:
        """The model as it will be used: the running mean if there is one, low-rank additions merged."""
        self._swap_in_mean()
        fade(merge_lora(self.student), strength=1.0, absolute=self.config.keep_absolute)
        models.save(self.student, self.config, self.folder)
        self._draw()
