# SPDX-License-Identifier: Apache-2.0
"""The app that converts: a complete directory with a model card, or nothing and one message."""

import functools
import json

import pytest
from apps import run

from experiments import convert as convert_app
from experiments import score
from transformer.errors import InputError
from transformer.interop.new_directory import new_directory


def convert(*flags):
    return run("experiments.convert", *flags)


def test_an_export_has_a_model_card_that_says_what_made_it(given_copy, tmp_path):
    workdir, output = given_copy / "run", tmp_path / "out"
    (workdir / "evaluations").mkdir()
    score = {
        **{"bleu": 31.25, "bleu_ci": [29.0, 33.5], "bleu_signature": "nrefs:1|case:mixed"},
        **{"chrf": 55.5, "sentences": 20},
        "origin": {
            **{"time": "2026", "dataset": "words", "split": "test", "weights": "the best"},
            "decode": {"method": "beam", "beams": 3, "length_penalty": "gnmt", "alpha": 0.6},
        },
    }
    (workdir / "evaluations" / "test-1.json").write_text(json.dumps(score))
    score["origin"]["time"] = "2027"  # and again
    (workdir / "evaluations" / "test-2.json").write_text(json.dumps(score))
    (workdir / "evaluations" / "cut.json").write_text('{"bleu"')
    finished = convert("--to=huggingface", f"--workdir={workdir}", f"--output={output}")
    assert finished.status == 0, finished.err
    size = sum(path.stat().st_size for path in output.iterdir())
    assert finished.result == {"output": str(output), "bytes": size, "format": "huggingface"}
    card = (output / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\npipeline_tag: translation\nlibrary_name: transformers\n---\n")
    assert f"--to=huggingface --workdir={workdir} --output={output}`" in card
    assert "| checkpoints | step 2 |" in card
    assert "/words (forward) |" in card
    search = "3 beams, length penalty gnmt 0.6"
    row = f"| words, test | 20 | the best | {search} | 31.2, 29.0 to 33.5 | 55.5 |"
    assert card.count(f"{row} `nrefs:1\\|case:mixed` |") == 1
    assert "MarianMTModel.from_pretrained(" in card
    assert "- Layer norms add 1e-05 to the variance, here 1e-06" in card


BAD = [
    ("", "missing --to=FORMAT, one of huggingface, ctranslate2, stablehlo"),
    ("--to=ctranslate2", "missing --output=DIRECTORY"),
    (
        "--to=huggingface --output={here}/x --quantization=int8",
        "--quantization is only for --to=ctranslate2; leave it out",
    ),
    ("--to=huggingface --output={here}/x --ensemble=a", "--ensemble: an export holds one model"),
    ("--to=huggingface --output={here}", "exists; name a new directory, or remove it"),
    (
        "--to=stablehlo --output={here}/x --platforms=cpu,gpu",
        "--platforms: 'gpu' is not a platform of JAX; choose from cpu, cuda, rocm, tpu",
    ),
    ("--from=marian --output=x", "--output is only for --to; leave it out"),
    ("--from=marian --average=1", "--average is only for --to; leave it out"),
    ("--from=huggingface --ensemble=1", "--ensemble is only for --to; leave it out"),
    ("--from=huggingface --lengths=1", "--lengths is only for --to=stablehlo; leave it out"),
    (
        "--from=marian --source_language=1",
        "--source_language is only for --from=huggingface; leave it out",
    ),
    ("--to=ctranslate2 --input=1", "--input is only for --from; leave it out"),
    ("--to=ctranslate2 --target_language=1", "--target_language is only for --from; leave it out"),
    (
        "--to=huggingface --source_language=1",
        "--source_language is only for --from=huggingface; leave it out",
    ),
]


def test_bad_flags_are_refused_and_nothing_is_written(given, tmp_path):
    (tmp_path / "file").touch()
    for flags, message in BAD:
        finished = convert(f"--workdir={given / 'run'}", *flags.format(here=tmp_path).split())
        assert (finished.status, finished.out) == (1, ""), flags
        assert message in finished.err and finished.err.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_bundle_is_exported_like_the_workdir_that_it_was_made_from(given, tmp_path):
    bundle, contents = tmp_path / "model.zip", []
    run("experiments.bundle", f"--workdir={given / 'run'}", f"--output={bundle}")
    for workdir in (given / "run", bundle):
        output = tmp_path / f"of_{workdir.name}"
        finished = convert(
            *("--to=ctranslate2", "--quantization=int8"),
            *(f"--workdir={workdir}", f"--output={output}"),
        )
        assert finished.status == 0, finished.err
        contents.append((output / "model.bin").read_bytes())
    assert contents[0] == contents[1]
    card = (tmp_path / "of_model.zip" / "README.md").read_text(encoding="utf-8")
    assert "# model.zip\n" in card and "## Scores" not in card
    assert " parameters (int8) |" in card


def test_a_new_directory_appears_complete_or_not_at_all(tmp_path):
    target = tmp_path / "parent" / "new"
    with pytest.raises(ZeroDivisionError), new_directory(target) as directory:
        (directory / "half").write_text("written")
        raise ZeroDivisionError
    assert [*target.parent.iterdir()] == []
    refused = functools.partial(pytest.raises, InputError)
    with refused(match="new cannot be written: no space left"), new_directory(target):
        raise OSError("no space left")
    assert [*target.parent.iterdir()] == []
    target.mkdir()
    with new_directory(target) as directory:
        assert not any(target.iterdir())
        (directory / "all").write_text("written")
    assert (target / "all").read_text() == "written"
    with refused(match="exists; name a new directory, or remove it"), new_directory(target):
        pass
    with refused(match="s3://a/b must be a local directory"), new_directory("s3://a/b"):
        pass


def test_options_without_effect_are_refused_and_a_missing_workdir_is_named():
    with pytest.raises(InputError, match="--around is only for --to; leave it out"):
        convert_app.run(convert_app.Options(from_="marian", around="best"))
    with pytest.raises(InputError, match="missing --workdir=DIRECTORY"):
        score.run(score.Options())
