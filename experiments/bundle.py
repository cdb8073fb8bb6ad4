# SPDX-License-Identifier: Apache-2.0
"""Pack a trained model into one file, without its training state.

python -m experiments.bundle --workdir=runs/de --output=de.zip

The file holds the parameters, the vocabulary, the config and a model card. Apps that only read
accept it as a workdir: python -m experiments.translate --workdir=de.zip. The last line on standard
output is one JSON object with the path and the size of the file.
"""

import contextlib
import dataclasses
import datetime
import json
import sys
from collections.abc import Mapping

import jax
from absl import flags

from experiments import checkpoint_flags
from experiments.flags import run
from experiments.formatting import byte_size
from transformer import paths
from transformer.checkpoints import archive, workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.provenance import provenance
from transformer.translator import Translator

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
    validation = {}
    with contextlib.suppress(OSError, ValueError, LookupError):  # no result yet
        validation = json.loads((opened / workdir_files.RESULT).read_text())["validation"]
    card = model_card(str(workdir), translator, config, validation)
    archive.write(output, files | {"README.md": card.encode()}, translator.params, DTYPE.value)
    size = output.stat().length
    print(f"{output}: {byte_size(size)}, parameters in {DTYPE.value}", file=sys.stderr)
    print(json.dumps({"output": str(output), "bytes": size, "dtype": DTYPE.value}))


def model_card(
    workdir: str, translator: Translator, config: Config, validation: Mapping[str, float]
) -> str:
    """The model card in Markdown: the model, its training and its use."""
    data, model = config.data, config.model
    corpora = ", ".join(data.mixture) or data.train_source or data.dataset
    parameters = sum(leaf.size for leaf in jax.tree.leaves(translator.params))
    source, target = (tokenizer.vocab_size for tokenizer in translator.vocabularies)
    shared = translator.vocabularies.are_shared
    vocabulary = (
        f"{target:,} tokens" if shared else f"{source:,} source and {target:,} target tokens"
    )
    steps = [str(step) for steps in translator.checkpoints.values() for step in steps]
    rows = {
        "model": f"{model.family}, {parameters:,} parameters ({DTYPE.value})",
        "vocabulary": f"{vocabulary} ({data.tokenizer})",
        "training data": f"{corpora} ({data.direction})",
        "weights": checkpoint_flags.description(config),
        "checkpoints": f"step {', '.join(steps)}",
        **{f"last validation, {name}": f"{value:.4g}" for name, value in validation.items()},
        "made": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        **{name: value for name, value in provenance().items() if value},
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""\
# {workdir.rstrip("/").rpartition("/")[2]}

An encoder-decoder model that translates one sentence at a time. Sentences of more than
{data.max_length} tokens are cut.

| | |
|---|---|
{table}

```bash
echo "a sentence" | python -m experiments.translate --workdir=FILE
```

```python
from transformer import Translator
Translator.from_workdir("FILE")("a sentence").text
```

Model section of the config:

```json
{json.dumps(dataclasses.asdict(model), indent=2)}
```
"""


if __name__ == "__main__":
    run(main, config_from="workdir")
