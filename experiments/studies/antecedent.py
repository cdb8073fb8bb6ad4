# SPDX-License-Identifier: Apache-2.0
"""Does a head read what "it" refers to? Several models, trained alike from different seeds.

python -m experiments.studies.antecedent --seeds=0,1,2 --output=antecedent.json

Trains the small model of `experiments/configs/pronouns_small.py` from every seed (once; runs are
kept), and measures on the test split of `pronouns` where its heads read for the pronoun, what is
lost without each head, which places of the residual stream carry the answer, and which words the
answer rests on (`experiments.studies.resolution`). With --workdirs=runs/de,... runs of
`experiments.train` on `pronouns` are measured in the same way. The file is written anew after each
model; the last line on standard output is its path.
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

SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Of the small models.")
WORKDIRS = flags.DEFINE_list(
    "workdirs", [], "Further runs of train on pronouns, to English-German."
)
FOLDER = flags.DEFINE_string("folder", "runs", "Where the small models are kept.")
OUTPUT = flags.DEFINE_string(
    "output", "experiments/studies/results/antecedent.json", "Where the results go."
)


def main() -> None:
    """Measures one model after the other."""
    try:
        seeds = [int(seed) for seed in SEEDS.value]
    except ValueError:
        raise InputError(f"--seeds={','.join(SEEDS.value)}: give whole numbers") from None
    models = []
    for name in [*seeds, *WORKDIRS.value]:
        small = isinstance(name, int)
        translator = (
            small_model.load(name, FOLDER.value) if small else Translator.from_workdir(name)
        )
        print(f"measuring {f'seed {name}' if small else name}", file=sys.stderr, flush=True)
        models.append({"seed": name if small else None} | resolution.measure(translator))
        workdir_files.write_text(epath.Path(OUTPUT.value), _as_json(models))
    print(OUTPUT.value)


def _as_json(models: list[dict[str, Any]]) -> str:
    """The file: the command that makes it, and one line a model."""
    lines = ",\n".join(json.dumps(model, allow_nan=False) for model in models)
    return f'{{"command": {json.dumps(_command())}, "models": [\n{lines}\n]}}\n'


def _command() -> str:
    """What makes this file again."""
    given = [f"--seeds={','.join(SEEDS.value)}"]
    if WORKDIRS.value:
        given.append(f"--workdirs={','.join(WORKDIRS.value)}")
    return " ".join(
        ["python -m experiments.studies.antecedent", *given, f"--output={OUTPUT.value}"]
    )


if __name__ == "__main__":
    run(main, config_from=None)
