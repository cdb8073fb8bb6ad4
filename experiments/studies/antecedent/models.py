# SPDX-License-Identifier: Apache-2.0
"""The design of the study: `pronouns` over seed, width, depth and training length.

Most models have the recipe of `pronouns_small`, which takes a minute or two on a CPU core. The
center of the design has six seeds in each language; every other model changes one of its factors,
with two seeds. Models of the README's recipe `pronouns`, with the paper's schedule, have two seeds
in each language. No two models share recipe, language and seed, so they are independent draws.
"""

import dataclasses
from typing import Literal

from experiments.configs import pronouns, pronouns_small
from experiments.data.grammars.pronouns import LANGUAGES
from experiments.studies import study_runs
from transformer.config import Config

CENTER = {"width": 64, "layers": 2, "steps": 600}
"""Factors of the center of the small recipe, which are those of its config."""
CENTER_SEEDS = 6
CHANGES = tuple(
    {factor: value}
    for factor, values in (("width", (32, 128)), ("layers", (1, 3)), ("steps", (300, 1200)))
    for value in values
)
SEEDS_PER_CHANGE = 2
README = {"width": 128, "layers": 2, "steps": 800}
"""Factors of the config of `pronouns`, which the README trains."""
README_SEEDS = 2
STAGES = (100, 200, 300, 400, 600)
"""Steps at which the README's models are also measured."""


@dataclasses.dataclass(frozen=True)
class StudyModel:
    """One model of the design."""

    recipe: Literal["small", "readme"]
    language: str
    width: int
    layers: int
    steps: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the workdir and of the JSON file."""
        factors = f"w{self.width}-l{self.layers}-n{self.steps}-s{self.seed}"
        return f"{self.recipe}-{self.language}-{factors}"

    @property
    def stages(self) -> tuple[int, ...]:
        """Earlier steps at which it is also measured."""
        return STAGES if self.recipe == "readme" else ()

    def config(self, steps: int | None = None) -> Config:
        """Config of the training, to the last step or to an earlier one.

        The README's recipe has the schedule noam, which does not depend on the number of steps, so
        a training that stops at an earlier step and continues gives the same parameters.
        """
        config = pronouns.get_config(self.language)
        fields = {
            "model.d_ff": 2 * self.width,
            "optimizer.schedule": "noam",
            "optimizer.learning_rate": 0.5,
        }
        if self.recipe == "small":
            config = pronouns_small.get_config()
            fields = {"data.dataset": f"pronouns_grammar/{self.language}"}
        return study_runs.with_fields(
            config,
            fields
            | {
                "model.d_model": self.width,
                "model.num_layers": self.layers,
                "training.steps": steps or self.steps,
                "training.seed": self.seed,
                # Validation changes no parameter; the last checkpoint is measured.
                "training.validate_every": self.steps,
                "training.validation_sentences": 64,
                "training.keep_last": 1,
            },
        )


def models() -> dict[str, StudyModel]:
    """All models by name, the most important first."""
    design = [("readme", README, seed) for seed in range(README_SEEDS)]
    design += [("small", CENTER, seed) for seed in range(CENTER_SEEDS)]
    design += [
        ("small", CENTER | change, CENTER_SEEDS + SEEDS_PER_CHANGE * index + repeat)
        for repeat in range(SEEDS_PER_CHANGE)
        for index, change in enumerate(CHANGES)
    ]
    chosen = [
        StudyModel(recipe, language, **factors, seed=seed)
        for recipe, factors, seed in design
        for language in LANGUAGES
    ]
    return {model.name: model for model in chosen}
