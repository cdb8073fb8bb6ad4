# SPDX-License-Identifier: Apache-2.0
"""The study of table 3: its rows, their counts, their scaled configs, and the command."""

import json

import numpy as np
import pytest
from apps import run

from experiments.configs import pronouns
from experiments.studies import table3_rows
from experiments.studies.table3_rows import BASE, ROWS
from transformer.config import Config, LanguageModelConfig, TransformerConfig
from transformer.errors import InputError

BY_NAME = {row.name: row for row in ROWS}


COUNTED = [
    pytest.param(row, id=row.name, marks=() if row.name == "N=2" else pytest.mark.slow)
    for row in ROWS
    if row.millions
]


@pytest.mark.parametrize("row", COUNTED)
def test_parameters_of_a_row_are_the_papers_to_the_million(row):
    big = row.name == "big"
    vocabulary = table3_rows.VOCABULARY_OF_BIG if big else table3_rows.VOCABULARY
    assert round(table3_rows.parameters(row, vocabulary) / 1e6) == row.millions


def test_base_is_the_default_of_the_config():
    model = {path.removeprefix("model."): value for path, value in BASE.items() if "model." in path}
    assert TransformerConfig(**model).replace(d_k=None, d_v=None) == TransformerConfig()
    assert BASE["training.label_smoothing"] == Config().training.label_smoothing


@pytest.mark.slow
def test_the_rows_of_group_a_have_the_parameters_of_base():
    """The heads divide one width, so the amount of computation is constant (section 6.2)."""
    counts = {table3_rows.parameters(row, 37_000) for row in ROWS if row.group == "A"}
    assert counts == {63_045_632}


def test_names_and_directories_are_distinct():
    assert len(BY_NAME) == len({row.directory for row in ROWS}) == len(ROWS) == 20


def test_a_scale_divides_the_widths_and_nothing_else():
    config = pronouns.get_config()
    scaled = table3_rows.config_of(BY_NAME["d_model=1024"], config, 4, 100)
    model = scaled.model
    assert (model.d_model, model.d_ff, model.d_k, model.d_v) == (256, 512, 32, 32)
    assert (model.num_layers, model.num_heads, model.vocab_size) == (6, 8, 1600)
    assert scaled.data == config.data and scaled.optimizer == config.optimizer
    assert scaled.training.steps == 100


def test_big_takes_three_times_the_steps_and_learned_positions_reach_every_output():
    config = pronouns.get_config()
    assert table3_rows.config_of(BY_NAME["big"], config, 4, 100).training.steps == 300
    far = config.replace(decode=config.decode.replace(max_length=900))
    learned = table3_rows.config_of(BY_NAME["learned positions"], far, 4, 100)
    assert (learned.model.positions, learned.model.max_positions) == ("learned", 900)


def test_bad_scales_and_other_families_are_refused():
    with pytest.raises(InputError, match="--scale=3 does not divide 16"):
        table3_rows.scaled_fields(BY_NAME["base"], 3)
    config = Config(model=LanguageModelConfig())
    with pytest.raises(InputError, match="'language_model', but table 3 varies the Transformer"):
        table3_rows.config_of(BY_NAME["base"], config, 4, 100)


def test_rank_correlation_by_hand():
    """Ranks 0, 1, 2.5, 2.5 and 1, 0, 2, 3."""
    found = table3_rows.rank_correlation([1, 2, 5, 5], [20, 10, 30, 40])
    expected = np.corrcoef([0, 1, 2.5, 2.5], [1, 0, 2, 3])[0, 1]
    assert found == pytest.approx(expected)
    assert table3_rows.rank_correlation([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)
    assert table3_rows.rank_correlation([1, 1], [1, 2]) is None


def test_the_picture_describes_every_row():
    rows = [
        {"row": name, "perplexity": p, "bleu": b, "bleu_ci": [b - 1, b + 1]}
        | {"paper_perplexity": BY_NAME[name].perplexity, "paper_bleu": BY_NAME[name].bleu}
        for name, p, b in (("base", 2.0, 30.0), ("N=2", 2.5, 27.0))
    ]
    figure = table3_rows.draw(rows)
    assert "N=2: perplexity +25.0% and -3.0 BLEU" in figure.description


@pytest.fixture(scope="module")
def study(train, tmp_path_factory):
    """The command on the letters of the tests of apps, at the smallest scale."""
    arguments = [
        flag
        for flag in train("unused")
        if not flag.startswith(("--workdir", "--config.model.d_", "--config.training."))
    ]
    return lambda output, *flags: run(
        "experiments.studies.paper_table3", *arguments, f"--output={output}", "--scale=16", *flags
    )


@pytest.mark.slow
def test_the_command_trains_rows_once_and_writes_table_and_picture(study, tmp_path):
    flags = ("--steps=3", "--rows=N=2,smoothing=0")
    first = study(tmp_path / "out", *flags)
    assert first.status == 0, first.err
    assert first.result["rows"] == 3 and first.result["steps"] == 3
    rows = json.loads((tmp_path / "out" / "table3.json").read_text())
    assert [row["row"] for row in rows] == ["base", "N=2", "smoothing=0"]
    assert rows[1]["parameters"] < rows[0]["parameters"]
    assert (tmp_path / "out" / "table3.png").stat().st_size > 1000
    again = study(tmp_path / "out", *flags)
    assert again.result == first.result
    assert "compiling the step" not in again.err


@pytest.mark.slow
def test_minutes_fix_the_number_of_steps_once(study, tmp_path):
    flags = ("--minutes=0.005", "--rows=base")
    first = study(tmp_path / "out", *flags)
    assert first.status == 0, first.err
    assert first.result["steps"] >= 1 and first.result["rank_correlation"]["bleu"] is None
    again = study(tmp_path / "out", *flags)
    assert again.result == first.result
    assert "measuring the steps" in first.err and "measuring the steps" not in again.err
    refused = study(tmp_path / "out", "--minutes=0.0000001")
    assert refused.status == 1 and "is less than a step of base" in refused.err


@pytest.mark.slow
def test_without_a_budget_the_command_only_counts(study, tmp_path):
    finished = study(tmp_path / "out")
    assert finished.status == 0, finished.err
    assert "| C | d_ff=4096 | 90 | 90.3 | 88,236,032 |" in finished.out
    assert not (tmp_path / "out" / "runs").exists()
    refused = study(tmp_path / "out", "--rows=N=3")
    assert refused.status == 1 and "--rows has 'N=3'" in refused.err
