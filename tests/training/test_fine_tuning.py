# SPDX-License-Identifier: Apache-2.0
"""Training that starts from a trained model: its config, its weights, and adapters on disk."""

import json
import re
import shutil

import numpy as np
import pytest
from apps import CONFIGS, parameters, run, start
from etils import epath

from experiments.cli import config_flags
from experiments.training import training_data, workdir
from transformer.checkpoints import workdir_files
from transformer.config import Config, DataConfig, TrainingConfig, TransformerConfig
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer, Vocabularies

FINE_TUNE = CONFIGS / "fine_tune.py"
SAVED = Config(
    model=TransformerConfig(vocab_size=8, num_layers=1, d_model=8, d_ff=8, num_heads=2),
    data=DataConfig(tokenizer="word", max_length=16, bucket_lengths=(8, 16)),
)
VOCABULARIES = Vocabularies.shared(Tokenizer.train(["a b c d"], 8, "word"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A workdir with config and vocabulary."""
    directory = epath.Path(tmp_path_factory.mktemp("model"))
    workdir.initialize(directory, SAVED, VOCABULARIES)
    return directory


def fine_tune(init_from, *overrides):
    """The config of a command line."""
    arguments = [f"--config.training.init_from={init_from}", *overrides]
    return config_flags.load([f"--config={FINE_TUNE}", *arguments], "config")[0]


def test_the_config_is_that_of_the_model_but_for_text_optimizer_and_training(model):
    config = fine_tune(model, "--config.model.dropout=0.3")
    assert config.model == SAVED.model.replace(dropout=0.3)
    assert config.data.dataset == "text_files"
    assert (config.data.tokenizer, config.data.bucket_lengths) == ("word", (8, 16))
    assert config.training.init_from == str(model)
    assert training_data.load_vocabularies(config, []).target.model == VOCABULARIES.target.model


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.d_model=16", "model.d_model is 16, but .* was trained with 8"),
        ("data.tokenizer=bpe", "data.tokenizer is 'bpe', but .* was trained with 'word'"),
        ("data.tokenizer_model=other", "data.tokenizer_model is 'other'.* leave the override out"),
    ],
)
def test_what_the_weights_were_trained_with_is_kept(model, override, message):
    with pytest.raises(InputError, match=message):
        training_data.load_vocabularies(fine_tune(model, f"--config.{override}"), [])


def test_a_model_to_start_from_is_required():
    with pytest.raises(InputError, match="missing --config.training.init_from=WORKDIR"):
        config_flags.load([f"--config={FINE_TUNE}", "--workdir=runs/new"], "config")
    for fields in ({"freeze": ("encoder",)}, {"lora_rank": 4}):
        with pytest.raises(InputError, match="left out unless training.init_from"):
            TrainingConfig(**fields)


def test_a_run_continues_with_its_config_when_the_model_is_gone(model, tmp_path):
    shutil.copytree(model, tmp_path / "moved")
    config = workdir.with_absolute_paths(fine_tune(tmp_path / "moved"))
    directory = epath.Path(tmp_path / "run")
    directory.mkdir()
    workdir.initialize(directory, config, VOCABULARIES, 0, {str(model): [30]})
    assert workdir_files.load_runs(directory)[0]["init_from"] == {str(model): [30]}
    shutil.rmtree(tmp_path / "moved")
    assert fine_tune(tmp_path / "moved", f"--workdir={directory}") == config
    assert training_data.load_vocabularies(config, [], directory).target.model
    with pytest.raises(InputError, match="moved does not exist"):
        fine_tune(tmp_path / "moved")


# Trainings of a tiny model.

LORA = ("--config.training.lora_rank=2", "--config.training.keep_last=9")


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """The workdir of a short training."""
    directory = tmp_path_factory.mktemp("trained") / "base"
    finished = run("experiments.train", *train(directory, "--config.training.steps=20"))
    assert finished.status == 0, finished.err
    return directory


@pytest.fixture(scope="module")
def tune(trained, texts):
    """The arguments that fine-tune it: (workdir, flags) -> arguments."""

    def arguments(directory, *flags):
        return (
            f"--config={FINE_TUNE}",
            f"--workdir={directory}",
            f"--config.training.init_from={trained}",
            *texts[1],
            "--config.optimizer.learning_rate=0.01",
            "--config.optimizer.warmup_steps=2",
            "--config.optimizer.schedule=constant",
            "--config.training.validate_every=4",
            "--config.training.validation_sentences=4",
            *flags,
        )

    return arguments


def tuned(arguments):
    """The result of a training that succeeds."""
    finished = run("experiments.train", *arguments)
    assert finished.status == 0, finished.err
    return finished.result


@pytest.fixture(scope="module")
def adapters(tune, tmp_path_factory):
    """The workdir of eight steps with adapters."""
    directory = tmp_path_factory.mktemp("adapters") / "run"
    result = tuned(tune(directory, *LORA, "--config.training.steps=8"))
    assert result["trained_parameters"] < result["parameters"]
    return directory


@pytest.mark.slow
def test_training_starts_from_the_best_weights_and_freezing_keeps_them(trained, tune, tmp_path):
    still = "--config.optimizer.learning_rate=1e-30"
    tuned(tune(tmp_path / "still", still, "--config.training.steps=4"))
    freeze = "--config.training.freeze=('encoder','embedding')"
    result = tuned(tune(tmp_path / "frozen", freeze, "--config.training.steps=4"))
    assert result["trained_parameters"] < result["parameters"]
    before, after, frozen = (
        parameters(directory)[1] for directory in (trained, tmp_path / "still", tmp_path / "frozen")
    )
    assert before == after
    kept = sum(one == other for one, other in zip(before, frozen, strict=True))
    assert 0 < kept < len(before)
    [begun] = workdir_files.load_runs(tmp_path / "still")
    assert begun["init_from"] == {str(trained): [20]}


@pytest.mark.slow
def test_adapters_continue_bit_for_bit_without_the_model_they_started_from(
    adapters, trained, tune, tmp_path
):
    gone = trained.with_name("gone")
    tuned(tune(tmp_path / "run", *LORA, "--config.training.steps=4"))
    trained.rename(gone)
    try:
        tuned(tune(tmp_path / "run", *LORA, "--config.training.steps=8"))
    finally:
        gone.rename(trained)
    assert last_validation(tmp_path / "run") == last_validation(adapters)


def last_validation(directory):
    """The scores of the last validation, a function of the adapters."""
    return json.loads((directory / "result.json").read_text())["validation"]


@pytest.mark.slow
def test_checkpoints_hold_adapters_alone_and_a_bundle_is_the_merged_model(
    adapters, trained, tune, tmp_path
):
    sizes = [
        sum(
            path.stat().st_size
            for path in (folder / "checkpoints" / step).rglob("params/**/*")
            if path.is_file()
        )
        for folder, step in ((adapters, "8"), (trained, "20"))
    ]
    assert sizes[0] < sizes[1]
    assert not any((adapters / "base" / "checkpoints" / "20").glob("progress"))
    bundle = tmp_path / "merged.zip"
    finished = run("experiments.bundle", f"--workdir={adapters}", f"--output={bundle}")
    assert finished.status == 0, finished.err
    text = b"a b c\nd e\n"
    outputs = [
        run("experiments.translate", f"--workdir={path}", "--scores", stdin=text).out
        for path in (adapters, bundle, trained)
    ]
    assert outputs[0] == outputs[1] != outputs[2]
    arguments = tune(tmp_path / "run", *LORA, f"--config.training.init_from={bundle}")
    tuned((*arguments, "--config.training.steps=2"))
    assert (tmp_path / "run" / "base").read_bytes() == bundle.read_bytes()
    averaged = run("experiments.translate", f"--workdir={adapters}", "--average=2", stdin=text)
    assert averaged.status == 0 and averaged.out.count("\n") == 2


@pytest.mark.slow
def test_adapters_do_not_depend_on_the_number_of_devices(adapters, tune, tmp_path):
    arguments = tune(
        tmp_path / "run",
        *LORA,
        "--config.training.steps=8",
        "--config.parallel.data=4",
        "--config.parallel.model=2",
        "--config.parallel.preset=fsdp_tensor",
        "--config.parallel.rules=('vocab=',)",
    )
    process = start("experiments.train", *arguments, devices=8)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    nll = json.loads(out.splitlines()[-1])["validation"]["nll"]
    np.testing.assert_allclose(nll, last_validation(adapters)["nll"], rtol=1e-4)


@pytest.mark.slow
def test_adapters_of_another_base_and_of_other_fields_are_refused(adapters, tune, tmp_path):
    def refused(directory, pattern):
        finished = run("experiments.translate", f"--workdir={directory}", stdin=b"a\n")
        assert finished.status == 1
        assert re.search(pattern, finished.err), finished.err

    missing, other = tmp_path / "missing", tmp_path / "other"
    shutil.copytree(adapters, missing)
    shutil.rmtree(missing / "base")
    refused(missing, "base is missing: the adapters")
    shutil.copytree(adapters, other)
    config = json.loads((other / "config.json").read_text())
    config["training"]["lora_alpha"] = 8.0
    (other / "config.json").write_text(json.dumps(config))
    refused(other, r"the adapters' alpha is 8.0, but .* was trained with 16.0")
    again = run(
        "experiments.train",
        *tune(tmp_path / "again", *LORA, f"--config.training.init_from={adapters}"),
    )
    assert (again.status, "merge them first" in again.err) == (1, True), again.err
    changed = run("experiments.train", *tune(adapters, "--config.training.lora_rank=3"))
    assert (changed.status, "training.lora_rank: 2 there, 3 now" in changed.err) == (1, True)
