# SPDX-License-Identifier: Apache-2.0
"""Pack a trained model into one file, without its training state.

transformer bundle --workdir=runs/de --output=de.zip

The file holds the parameters, the vocabulary, the config, with the --config.FIELD=VALUE given, and
a model card. Apps that only read accept it as a workdir: transformer translate
--workdir=de.zip. The last line on standard output is one JSON object with the path and the size of
the file.
"""

import dataclasses
import json
from typing import Any, Literal

from etils import epath

from experiments.cli import command_line
from experiments.cli.options import output_file
from experiments.cli.weights import Weights
from experiments.console.formatting import byte_size
from experiments.console.progress import say
from transformer.checkpoints import archive, workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.interop.model_card import Export, model_card


@dataclasses.dataclass(frozen=True)
class Options(Weights):
    """The model, and where it goes."""

    output: str | None = None
    """Path of the bundle, for example model.zip."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the parameters. bfloat16 takes half the space and rounds to 8 bits of precision."""


def run(options: Options) -> dict[str, Any]:
    """Load the parameters, and write the bundle; return its path, size and dtype."""
    output = output_file(options.output)
    if options.ensemble:
        raise InputError("--ensemble: a bundle holds one model; make a bundle of each")
    workdir, config = options.directory, options.config
    translator = options.translator()
    opened = workdir_files.opened(workdir)
    present = [name for name in workdir_files.INFERENCE_FILES if (opened / name).exists()]
    files = {name: (opened / name).read_bytes() for name in sorted(present)}
    files[workdir_files.CONFIG] = _config_file(workdir, config)
    card = model_card(
        opened,
        translator,
        Export(_USAGE, options.dtype),
        "An encoder-decoder model that translates one sentence at a time. Sentences of more than "
        f"{config.data.max_length} tokens are cut.",
        options.description(),
    )
    archive.write(output, files | {"README.md": card.encode()}, translator.params, options.dtype)
    return {"output": str(output), "bytes": output.stat().length, "dtype": options.dtype}


def main(options: Options) -> None:
    """Write the bundle and print its path and size."""
    result = run(options)
    size = byte_size(result["bytes"])
    say(f"{result['output']}: {size}, parameters in {options.dtype}")
    print(json.dumps(result))


def _config_file(workdir: epath.Path, config: Config) -> bytes:
    """The workdir's config with the overrides; those of `parallel` are for this process alone."""
    parallel = workdir_files.load_config(workdir).parallel
    runs = workdir_files.load_runs(workdir)
    return workdir_files.config_text(config.replace(parallel=parallel), runs).encode()


_USAGE = """\
```bash
echo "a sentence" | transformer translate --workdir=FILE
```

```python
from transformer import Translator
Translator.from_workdir("FILE")("a sentence").text
```
"""


if __name__ == "__main__":
    command_line.run(main, "workdir", Options)
