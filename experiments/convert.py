# SPDX-License-Identifier: Apache-2.0
"""Convert models from and to the formats of other programs.

python -m experiments.convert --from=huggingface --input=opus-mt-en-de --workdir=runs/opus
python -m experiments.convert --to=ctranslate2 --workdir=runs/de --output=de_ct2

--from writes a workdir, which every app accepts. Nothing is downloaded, and PyTorch is not needed.

--to writes a directory with the weights, the tokenizers and a model card, README.md, with the code
that loads them. A model that a format cannot hold exactly is refused with the names of its fields.

The last line on standard output is one JSON object with the path of what was written, and its size.
"""

import json
import sys
from typing import Any

import jax
from absl import flags

from experiments.cli import average_flags, checkpoint_flags
from experiments.cli.command_line import parse_integers, run
from experiments.cli.formatting import byte_size
from experiments.cli.workdir_flag import WORKDIR
from transformer import trained_model
from transformer.checkpoints import workdir_files
from transformer.config import Config
from transformer.errors import InputError
from transformer.interop import (
    ctranslate2_export,
    huggingface_export,
    huggingface_import,
    imported_model,
    marian_files,
    stablehlo_export,
)
from transformer.interop.model_card import hub_metadata, model_card
from transformer.interop.new_directory import new_directory

EXPORTS = {
    "huggingface": huggingface_export.export,
    "ctranslate2": ctranslate2_export.export,
    "stablehlo": stablehlo_export.export,
}
"""From the name of a format to `(trained, directory, **options) -> Export`."""

IMPORTS = {"huggingface": huggingface_import.load, "marian": marian_files.load}
"""From the name of a format to `(directory, **options) -> ImportedModel`."""

FROM = flags.DEFINE_enum("from", None, [*IMPORTS], "Format to read.")
INPUT = flags.DEFINE_string("input", None, "With --from: local directory with the model's files.")
flags.DEFINE_enum(
    "positions",
    None,
    [*huggingface_import.POSITIONS],
    "With --from: sinusoids of a Marian model, those of Hugging Face or those of its training, "
    "which differ; default: those of the format.",
)
flags.DEFINE_string(
    "target_language",
    None,
    "With --from: language of the translations of a multilingual model, such as deu_Latn (NLLB); "
    "with Marian, of sentences that begin with no code such as >>deu<<.",
)
flags.DEFINE_string(
    "source_language",
    None,
    "With --from=huggingface: language of the sources, for NLLB and M2M100.",
)
TO = flags.DEFINE_enum("to", None, [*EXPORTS], "Format to write.")
OUTPUT = flags.DEFINE_string("output", None, "With --to: path of the new directory.")
flags.DEFINE_enum(
    "quantization",
    None,
    [*ctranslate2_export.QUANTIZATIONS],
    "With --to=ctranslate2: how kernels and embeddings are stored; float32 without.",
)
flags.DEFINE_list(
    "batch_sizes", ["8"], "With --to=stablehlo: numbers of sentences of the programs."
)
flags.DEFINE_list(
    "lengths",
    None,
    "With --to=stablehlo: lengths of sources in tokens; data.bucket_lengths by default.",
)
flags.DEFINE_list(
    "platforms",
    None,
    "With --to=stablehlo: where the programs run, some of "
    f"{', '.join(stablehlo_export.PLATFORMS)}; here by default.",
)

_FLAGS = {
    "--from": ("input",),
    "--to": ("output", "average", "around", "ensemble"),
}
"""The flags of each direction."""
_OPTIONS = {
    "--from": ("positions", "target_language"),
    "--from=huggingface": ("source_language",),
    "--to=ctranslate2": ("quantization",),
    "--to=stablehlo": ("batch_sizes", "lengths", "platforms"),
}
"""The flags that are options of every format of a direction, or of one format."""


def import_model() -> None:
    """Read the model of --input, and write it as a workdir."""
    if TO.value:
        raise InputError("--from and --to exclude each other; convert twice")
    options = _options(f"--from={FROM.value}")
    for flag, what in ((INPUT, "the model's files"), (WORKDIR, "which is made")):
        if not flag.value:
            raise InputError(f"missing --{flag.name}=DIRECTORY, {what}")
    imported = IMPORTS[FROM.value](INPUT.value, **options)
    imported_model.write_workdir(imported, WORKDIR.value)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(imported.params))
    languages = imported.vocabulary.languages
    if languages and not imported.vocabulary.source_prefix:
        print(
            f"note: begin every sentence with one of {', '.join(languages)}, or import with "
            "--target_language",
            file=sys.stderr,
        )
    result = {"workdir": WORKDIR.value, "parameters": parameters, "format": FROM.value}
    print(json.dumps(result))


def export_model(config: Config) -> None:
    """Load the model of the workdir, and write it in the format of --to."""
    if not TO.value:
        raise InputError(f"missing --to=FORMAT, one of {', '.join(EXPORTS)}")
    options = _options(f"--to={TO.value}")
    if not OUTPUT.value:
        raise InputError("missing --output=DIRECTORY, the path of the export")
    if checkpoint_flags.ENSEMBLE.value:
        raise InputError("--ensemble: an export holds one model; export each")
    workdir = checkpoint_flags.directory()
    trained = trained_model.load(
        workdir, config, average_flags.AVERAGE.value, average_flags.AROUND.value
    )
    with new_directory(OUTPUT.value) as directory:
        export = EXPORTS[TO.value](trained, directory, **options)
        command = " ".join(["python -m experiments.convert", *sys.argv[1:]])
        card = hub_metadata(trained.config, export.library) + model_card(
            workdir_files.opened(workdir),
            trained,
            export,
            f"A model that translates one sentence at a time, exported with `{command}`.",
            checkpoint_flags.description(config),
        )
        (directory / "README.md").write_text(card, encoding="utf-8")
        size = sum(path.stat().st_size for path in directory.iterdir())
    for note in export.differences:
        print(f"note: {note}", file=sys.stderr)
    print(f"{OUTPUT.value}: {byte_size(size)}", file=sys.stderr)
    print(json.dumps({"output": OUTPUT.value, "bytes": size, "format": TO.value}))


def _options(chosen: str) -> dict[str, Any]:
    """The options of a conversion that are given, by name.

    Args:
      chosen: its direction and format, for example ``--to=huggingface``.

    Raises:
      InputError: for a flag of another conversion, or numbers that are not positive.
    """
    applicable = (chosen, chosen.partition("=")[0])
    for conversion, names in (*_FLAGS.items(), *_OPTIONS.items()):
        for name in names:
            if flags.FLAGS[name].present and conversion not in applicable:
                raise InputError(f"--{name} is only for {conversion}; leave it out")
    names = [name for conversion in applicable for name in _OPTIONS.get(conversion, ())]
    options = {name: flags.FLAGS[name].value for name in names}
    for name in {"batch_sizes", "lengths"} & {*names}:
        if options[name] is not None:
            options[name] = parse_integers(name, options[name])
    return {name: value for name, value in options.items() if value is not None}


if __name__ == "__main__":
    # Only an export has a config, from its workdir, and help is about either.
    if any(argument.partition("=")[0] in ("-from", "--from") for argument in sys.argv[1:]):
        run(import_model, config_from=None)
    run(export_model, config_from="workdir")
