# SPDX-License-Identifier: Apache-2.0
"""The model that a training starts from (``training.init_from``): its weights and vocabulary.

A training reads it once. The workdir then has the vocabulary, the weights in its checkpoints and,
with LoRA, a copy of the model (`base_model`), so the run continues without it.
"""

import zipfile

from etils import epath

from experiments.training.compose import Experiment
from transformer import paths, trained_model
from transformer.arrays import Params
from transformer.checkpoints import base_model, workdir_files
from transformer.errors import InputError


def load(experiment: Experiment, directory: epath.Path) -> tuple[Params, dict[str, list[int]]]:
    """The weights that a new training starts from, on the mesh, and the checkpoints they are from.

    With LoRA the model is copied into the workdir.

    Raises:
      InputError: when the model cannot be read, differs from the config's, or has adapters itself.
    """
    config, path = experiment.config, experiment.config.training.init_from
    opened = workdir_files.opened(path)
    saved = workdir_files.load_config(path)
    is_bundle = isinstance(opened, zipfile.Path)
    if config.training.lora_rank and saved.training.lora_rank and not is_bundle:
        raise InputError(
            f"training.lora_rank is {config.training.lora_rank}, but {path} has adapters itself; "
            "merge them first: transformer bundle "
            f"--workdir={path} --output=merged.zip, then training.init_from=merged.zip"
        )
    model, parallel = config.model, config.parallel
    starting = saved.replace(model=model, parallel=parallel)
    initial = trained_model.load(path, starting)
    vocabularies = experiment.data.vocabularies
    if [side.model for side in initial.vocabularies] != [side.model for side in vocabularies]:
        raise InputError(
            f"the vocabulary in {directory} is not that of training.init_from={path}; use another "
            "--workdir"
        )
    if config.training.lora_rank:
        steps = [step for steps in initial.checkpoints.values() for step in steps]
        source = paths.reachable(path)
        base_model.copy_into(directory, source, None if is_bundle else steps[0])
    return initial.params, initial.checkpoints or {str(paths.absolute(path)): []}
