"""What a study is: encodings × seeds, trained alike, measured at growing sizes under each scaling and temperature."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from rope_nd import list_encodings
from rope_nd._check import choose
from train import recipes
from train.cases import case
from train.config import Config
from train.evaluate import Planned
from train.sequence import SequenceTask


@dataclass(frozen=True)
class Study:
    """A recipe's `STUDY`."""

    base: Config
    encodings: tuple[str, ...]
    """Names of encodings, or of `variants`."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What else is trained, by its name in the tables: changes of the base config."""
    seeds: tuple[int, ...] = (0,)
    ratios: tuple[float, ...] | dict[str, tuple[float, ...]] = (1, 1.5, 2, 3, 4, 8)
    """Test sizes over the training size, for all tests or by test."""
    rules: tuple[tuple[str, ...], ...] | dict[str, tuple[tuple[str, ...], ...]] = (("none",), ("pi",), ("ntk",), ("yarn",))
    """A scaling, a temperature ("none") and positions ("index"), for all tests or by test; see `train.rules.Rule`. Each encoding
    takes those that mean anything for it."""
    samples: int = 2000
    """Test inputs at sizes up to four times the training size."""
    samples_beyond: int = 500
    """Test inputs above that."""
    sequence: SequenceTask | None = field(default_factory=SequenceTask)

    def plan(self) -> list[Planned]:
        """Every case, with the number of its inputs and its rules."""
        tests = self.base.measured_tests
        found = [case(self.base, test, ratio) for test in tests for ratio in of(self.ratios, test)]
        return [(at, self.samples if at.ratio <= 4 else self.samples_beyond, of(self.rules, at.test)) for at in found]

    def models(self) -> list[Config]:
        """One config a model, seed by seed, so that models of a seed share their training pictures."""
        return [dataclasses.replace(self.base, seed=seed, **self._changes(name)) for seed in self.seeds for name in self.encodings]

    def _changes(self, name: str) -> dict[str, Any]:
        return {"label": name, **self.variants[name]} if name in self.variants else {"encoding": name}


def of(given: Any, test: str) -> Any:
    """What is given for a test, of what may be given by test."""
    if not isinstance(given, dict):
        return given
    if test not in given:
        raise ValueError(f"test {test!r} is missing: the study says something for {', '.join(given)}")
    return given[test]


def names() -> list[str]:
    """The recipes that come with the project."""
    return sorted(module.name for module in pkgutil.iter_modules(recipes.__path__))


def load(recipe: str) -> tuple[Study, str]:
    """A recipe by name or file, and its claim."""
    if recipe.endswith(".py"):
        path = Path(recipe)
        if not path.is_file():
            raise ValueError(f"{recipe}: there is no such recipe file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(f"train.recipes.{choose('recipe', recipe, names())}")
    if not isinstance(getattr(module, "STUDY", None), Study):
        raise ValueError(f"{recipe}: a recipe must define STUDY = Study(...)")
    return module.STUDY, (module.__doc__ or "").strip()


def adapt(study: Study, encodings: tuple[str, ...], seeds: tuple[int, ...], steps: int | None) -> Study:
    """The study with what the command line changes; `all` stands for every encoding."""
    chosen = tuple(list_encodings()) if encodings == ("all",) else encodings
    for name in chosen:
        choose("encoding", name, [*study.variants, "timm", "native", *list_encodings()])
    base = study.base if steps is None else dataclasses.replace(study.base, steps=steps)
    return dataclasses.replace(study, base=base, encodings=chosen or study.encodings, seeds=seeds or study.seeds)
