# SPDX-License-Identifier: Apache-2.0
"""Pack a trained model into one file, without its training state.

python -m experiments.bundle --workdir=runs/de --output=de.zip

The file holds the parameters, the vocabulary, the config, with the --config.FIELD=VALUE given, and
a model card. Apps that only read accept it as a workdir: python -m experiments.translate
--workdir=de.zip. The last line on standard output is one JSON object with the path and the size of
the file.
"""

import json
import sys

from absl import flags
from etils import epath

from experiments.cli import checkpoint_flags
from experiments.cli.command_line import run
from experiments.cli.formatting import byte_size
from transformer import paths
from transformer.checkpoints import archive, workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.interop.model_card import Export, model_card

OUTPUT = flags.DEFINE_string("output", None, "Path of the bundle, for example model.zip.")
DTYPE = flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "bfloat16"],
    "dtype of the parameters. bfloat16 takes half the space and rounds to 8 bits of precision.",
)


def main(config: Config) -> None:
    """Load the parameters, and write the bundle."""
    if not OUTPUT.value:
        raise InputError("missing --output=FILE, the path of the bundle")
    if checkpoint_flags.ENSEMBLE.value:
        raise InputError("--ensemble: a bundle holds one model; make a bundle of each")
    output, workdir = paths.reachable(OUTPUT.value), checkpoint_flags.directory()
    if output.is_dir():
        raise InputError(f"--output={output} is a directory; name a file")
    translator = checkpoint_flags.translator(config)
    opened = workdir_files.opened(workdir)
    present = [name for name in workdir_files.INFERENCE_FILES if (opened / name).exists()]
    files = {name: (opened / name).read_bytes() for name in sorted(present)}
    files[workdir_files.CONFIG] = _config_file(workdir, config)
    card = model_card(
        opened,
        translator,
        Export(_USAGE, DTYPE.value),
        "An encoder-decoder model that translates one sentence at a time. Sentences of more than "
        f"{config.data.max_length} tokens are cut.",
        checkpoint_flags.description(config),
    )
    archive.write(output, files | {"README.md": card.encode()}, translator.params, DTYPE.value)
    size = output.stat().length
    print(f"{output}: {byte_size(size)}, parameters in {DTYPE.value}", file=sys.stderr)
    print(json.dumps({"output": str(output), "bytes": size, "dtype": DTYPE.value}))


def _config_file(workdir: epath.Path, config: Config) -> bytes:
    """The workdir's config with the overrides; those of `parallel` are for this process alone."""
    parallel = workdir_files.load_config(workdir).parallel
    runs = workdir_files.load_runs(workdir)
    return workdir_files.config_text(config.replace(parallel=parallel), runs).encode()


_USAGE = """\
```bash
echo "a sentence" | python -m experiments.translate --workdir=FILE
```

```python
from transformer import Translator
Translator.from_workdir("FILE")("a sentence").text
```
"""


if __name__ == "__main__":
    run(main, config_from="workdir")
