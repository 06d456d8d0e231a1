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
from train.config import Config
from train.evaluate import Rule, Size
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
    ratios: tuple[float, ...] = (1, 1.5, 2, 3, 4, 8)
    rules: tuple[Rule, ...] = (("none", "none"), ("pi", "none"), ("ntk", "none"), ("yarn", "none"))
    """Pairs of a scaling and a temperature; each encoding takes those that mean anything for it."""
    samples: int = 2000
    """Test pictures at sizes up to four times the training size."""
    samples_beyond: int = 500
    """Test pictures above that."""
    sequence: SequenceTask | None = field(default_factory=SequenceTask)

    @property
    def sizes(self) -> list[tuple[Size, int]]:
        """Test sizes in pixels, and the number of test pictures at each."""
        height, width = self.base.size
        counts = [self.samples if r <= 4 else self.samples_beyond for r in self.ratios]
        return [((round(height * r), round(width * r)), count) for r, count in zip(self.ratios, counts)]

    def models(self) -> list[Config]:
        """One config a model, seed by seed, so that models of a seed share their training pictures."""
        return [dataclasses.replace(self.base, seed=seed, **self._changes(name)) for seed in self.seeds for name in self.encodings]

    def _changes(self, name: str) -> dict[str, Any]:
        return {"label": name, **self.variants[name]} if name in self.variants else {"encoding": name}


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
