# SPDX-License-Identifier: Apache-2.0
"""The models of the study `antecedent`: `pronouns` over seed, width, depth and training length.

Most are trained with the recipe of `pronouns_small`, which takes a minute or two on a CPU core. The
center of that design has six seeds in each language, and every other model changes one factor of
it, with two seeds. Models of the README's recipe `pronouns`, with the paper's schedule, have two
seeds in each language. No two models share recipe, language and seed, so they are independent
draws.
"""

import dataclasses
from typing import Literal

from experiments.configs import pronouns, pronouns_small
from experiments.data.grammars.pronouns import LANGUAGES
from experiments.studies import study_runs
from transformer.config import Config

CENTER = {"width": 64, "layers": 2, "steps": 600}
"""Of the small recipe; its config as it is."""
CENTER_SEEDS = 6
CHANGES = tuple(
    {factor: value}
    for factor, values in (("width", (32, 128)), ("layers", (1, 3)), ("steps", (300, 1200)))
    for value in values
)
SEEDS_PER_CHANGE = 2
README = {"width": 128, "layers": 2, "steps": 800}
"""The config of `pronouns`, which the README trains."""
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
        """Of the workdir and of the model's JSON file."""
        factors = f"w{self.width}-l{self.layers}-n{self.steps}-s{self.seed}"
        return f"{self.recipe}-{self.language}-{factors}"

    @property
    def is_center(self) -> bool:
        """Whether it differs from another model of its recipe and language in the seed alone."""
        center = CENTER if self.recipe == "small" else README
        return {factor: getattr(self, factor) for factor in center} == center

    @property
    def stages(self) -> tuple[int, ...]:
        """Steps at which it is also measured."""
        return STAGES if self.recipe == "readme" else ()

    def config(self, steps: int | None = None) -> Config:
        """The config of its training, up to the last step or an earlier one.

        Training to an earlier step and continuing gives the same parameters with noam, which does
        not depend on the number of steps. The README's recipe gets it for that reason.
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
