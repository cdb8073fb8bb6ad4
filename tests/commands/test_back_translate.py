# SPDX-License-Identifier: Apache-2.0
"""Pairs of text and its translations: the direction of their mixture; filters; resuming."""

import hashlib
import shlex

import jax
import pytest
from apps import REPOSITORY, run

from experiments.data import registry
from experiments.training import synthetic_pairs
from transformer.config import DataConfig
from transformer.translator import Translation, Translator

KEPT = {"max_length": 10, "options": synthetic_pairs.PairOptions(min_score=-2.0)}


def write(folder, **files):
    """Write lines to files, by name; returns the paths."""
    paths = [folder / name.replace("_", ".") for name in files]
    for path, lines in zip(paths, files.values(), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return [str(path) for path in paths]


@pytest.mark.parametrize("direction", ["forward", "backward", "en-de", "de-en"])
@pytest.mark.parametrize("as_mixture", [False, True])
@pytest.mark.parametrize("forward", [False, True])
def test_the_mixture_reads_both_corpora_in_one_direction(tmp_path, direction, as_mixture, forward):
    """Whichever way the old model read its files, the new one reads its targets, or as it did."""
    english, german = write(tmp_path, train_en=["a", "b"], train_de=["x", "y"])
    data = DataConfig(dataset="text_files", train_source=english, train_target=german)
    if as_mixture:
        data = DataConfig(mixture=(f"2*{english},{german}",))
    data = data.replace(direction=direction)
    [(_, pairs)] = registry.training_corpora(data)
    monolingual, translated = ("en", "de") if [*pairs][0] == ("a", "x") else ("de", "en")
    back = tmp_path / "back"
    back.mkdir()
    write(back, **{f"pairs_{monolingual}": ["real"], f"pairs_{translated}": ["synthetic"]})
    fields = synthetic_pairs.mixture(data, back, 0.5, forward=forward)
    assert (fields["direction"] == direction) == forward
    (first, old), (second, new) = registry.training_corpora(data.replace(**fields))
    assert (first, second) == (2.0 if as_mixture else 1.0, 0.5)
    order = 1 if forward else -1
    assert [*old] == [pair[::order] for pair in pairs]
    assert [*new] == [("real", "synthetic")[::order]]


def test_a_dataset_keeps_its_name_in_the_mixture(tmp_path):
    data = DataConfig(dataset="wmt14_translate/de-en")
    fields = synthetic_pairs.mixture(data, tmp_path, 1.0)
    pairs = f"{tmp_path}/pairs.target,{tmp_path}/pairs.source"
    assert fields == {
        "direction": "backward",
        "mixture": ("1*wmt14_translate/de-en", f"1*{pairs}"),
    }


def test_each_filter_leaves_out_what_it_names():
    for line, translation, num_tokens, log_prob, reason in (
        ("a b", "x y", (3, 3), -6.0, None),
        ("a b", "x y", (3, 3), -6.1, "score"),
        ("a b", "x", (9, 3), -1.0, None),
        ("a b", "x", (10, 3), -1.0, "ratio"),
        ("a b", "x", (3, 10), -1.0, "ratio"),
        ("a b", "x", (11, 11), -1.0, "long"),
        ("a b", " a b", (3, 3), -1.0, "copied"),
        (" ", "x", (1, 2), -1.0, "empty"),
        ("a", "", (2, 1), -1.0, "empty"),
    ):
        dropped = synthetic_pairs.dropped_by(line, translation, num_tokens, log_prob, **KEPT)
        assert dropped == reason


def test_translations_of_another_model_are_not_taken_for_its_own(tmp_path):
    """Of a bundle with the same config and other weights."""
    bundle = REPOSITORY / "docs" / "pronouns_de.zip"
    (text,) = write(tmp_path, mono_txt=["The animal is tired.", "The street is wide."])
    for change in (1.0, 0.5, 0.5):
        translator = Translator.from_workdir(bundle)
        translator.params = jax.tree.map(lambda leaf, c=change: leaf * c, translator.params)
        translator.nbest = lambda lines, *_, c=change: [
            [Translation(f"Satz {c}", -1.0, -1.0, (5, 5, 2))] for _ in lines
        ]
        synthetic_pairs.make(translator, str(text), tmp_path / "out", synthetic_pairs.PairOptions())
        lines = (tmp_path / "out" / "translations.tsv").read_text().splitlines()
        assert all(line.endswith(f"Satz {change}") for line in lines)


@pytest.mark.slow
def test_an_interrupted_run_continues_at_its_line_and_its_pairs_train(train, texts, tmp_path):
    folder, data_flags = texts
    workdir = tmp_path / "backward"
    finished = run("experiments.train", *train(workdir, "--config.training.steps=20"))
    assert finished.status == 0, finished.err
    lines = [*(folder / "test.source").read_text().splitlines(), "", "a b c"]
    (monolingual,) = write(tmp_path, mono_txt=lines)

    def back_translated(output, *flags):
        return run(
            "experiments.back_translate",
            f"--workdir={workdir}",
            f"--input={monolingual}",
            f"--output={output}",
            "--config.decode.method=sample",
            "--config.decode.batch_size=4",
            "--tag=A",
            "--max_ratio=9",
            *flags,
        )

    finished = back_translated(tmp_path / "whole")
    assert finished.status == 0, finished.err
    report = finished.result
    assert report["dropped"]["empty"] >= 1
    assert report["pairs"] + sum(report["dropped"].values()) == len(lines)
    translations = (tmp_path / "whole" / "translations.tsv").read_bytes()
    assert translations.count(b"\n") == len(lines)
    sources, targets = (
        (tmp_path / "whole" / f"pairs.{side}").read_text().splitlines()
        for side in ("target", "source")
    )
    assert len(sources) == len(targets) == report["pairs"]
    assert all(source.startswith("A ") for source in sources)
    assert set(targets) <= set(lines)

    # As a killed run leaves it, in the middle of the fourth line.
    cut = translations.split(b"\n")
    partial = b"\n".join(cut[:3]) + b"\n" + cut[3][:5]
    digest = hashlib.sha256(report["identity"].encode()).hexdigest()[:12]
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    (resumed / f"translations.tsv.{digest}.partial").write_bytes(partial)
    finished = back_translated(resumed, "--resume")
    assert finished.status == 0, finished.err
    assert (resumed / "translations.tsv").read_bytes() == translations
    assert (resumed / "pairs.source").read_text().splitlines() == targets

    # Other filters need no translation, and neither do the same lines as sources.
    finished = back_translated(resumed, "--min_score=-0.001", "--max_ratio=1.5")
    assert "is complete" in finished.err
    finished = back_translated(resumed, "--forward")
    assert "is complete" in finished.err
    assert finished.result["direction"] == "forward"
    pairs = ((resumed / f"pairs.{side}").read_text().splitlines() for side in ("source", "target"))
    tagged, translated = pairs
    assert tagged == [f"A {target}" for target in targets]
    assert [f"A {line}" for line in translated] == sources

    # Translations in another order would belong to other lines.
    (resumed / "translations.tsv").write_bytes(b"\n".join([*reversed(cut[:-1]), b""]))
    finished = back_translated(resumed)
    assert finished.status == 1
    assert "translations.tsv was changed after it was made; remove it" in finished.err

    printed = run("experiments.back_translate", "--help")
    assert "monolingual text by back-translation" in printed.out
    flags = shlex.split(back_translated(tmp_path / "whole").out.splitlines()[0])
    steps = "--config.training.steps=2"
    finished = run("experiments.train", *train(tmp_path / "forward", *flags, steps))
    assert finished.status == 0, finished.err
