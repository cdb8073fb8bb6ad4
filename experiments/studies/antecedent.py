# SPDX-License-Identifier: Apache-2.0
"""Measure how several models, trained from different seeds, resolve the pronoun "it".

python -m experiments.studies.antecedent --seeds=0,1,2 --output=antecedent.json

Trains the small model of `experiments/configs/pronouns_small.py` from every seed (once; runs are
kept) and measures it on the test split of `pronouns` (`experiments.studies.resolution`). With
--workdirs=runs/de,... runs of `experiments.train` on `pronouns` are measured too. The file is
rewritten after each model; the last line on standard output is its path.
"""

import json
import sys
from typing import Any

from absl import flags
from etils import epath

from experiments.flags import run
from experiments.studies import resolution, small_model
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.translator import Translator

SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Seeds of the small models.")
WORKDIRS = flags.DEFINE_list(
    "workdirs", [], "Further workdirs of train, of English-German pronouns configs."
)
FOLDER = flags.DEFINE_string("folder", "runs", "Directory of the small models.")
OUTPUT = flags.DEFINE_string(
    "output", "experiments/studies/results/antecedent.json", "Path of the results."
)


def main() -> None:
    """Measure one model after the other."""
    try:
        seeds = [int(seed) for seed in SEEDS.value]
    except ValueError:
        raise InputError(f"--seeds={','.join(SEEDS.value)}: give integers") from None
    models = []
    for name in [*seeds, *WORKDIRS.value]:
        small = isinstance(name, int)
        translator = (
            small_model.load(name, FOLDER.value) if small else Translator.from_workdir(name)
        )
        print(f"measuring {f'seed {name}' if small else name}", file=sys.stderr, flush=True)
        models.append({"seed": name if small else None} | resolution.measure(translator))
        workdir_files.write_text(epath.Path(OUTPUT.value), _to_json(models))
    print(OUTPUT.value)


def _to_json(models: list[dict[str, Any]]) -> str:
    """The command that produces the file, and one line per model."""
    command = ["python -m experiments.studies.antecedent", f"--seeds={','.join(SEEDS.value)}"]
    if WORKDIRS.value:
        command.append(f"--workdirs={','.join(WORKDIRS.value)}")
    command.append(f"--output={OUTPUT.value}")
    lines = ",\n".join(json.dumps(model, allow_nan=False) for model in models)
    return f'{{"command": {json.dumps(" ".join(command))}, "models": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    run(main, config_from=None)
