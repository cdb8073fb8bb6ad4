# SPDX-License-Identifier: Apache-2.0
"""The study of table 3: its rows, their counts, their scaled configs, and the trainings."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.configs import pronouns
from experiments.studies.paper_table3 import __main__ as paper_table3
from experiments.studies.paper_table3 import rows
from experiments.studies.paper_table3.rows import BASE, ROWS
from transformer.config import Config, LanguageModelConfig, TransformerConfig
from transformer.errors import InputError

BY_NAME = {row.name: row for row in ROWS}


@pytest.mark.slow
def test_parameters_of_all_rows_are_the_papers_to_the_million():
    counted = {row.name: row.millions for row in ROWS if row.millions}
    assert {name: round(rows.parameters(BY_NAME[name]) / 1e6) for name in counted} == counted
    # The heads divide one width, so the amount of computation is constant (section 6.2).
    heads = {rows.parameters(row, 37_000) for row in ROWS if row.group == "A"}
    assert heads == {63_045_632}


def test_base_is_the_default_of_the_config_and_has_the_papers_parameters():
    assert len(BY_NAME) == len({row.directory for row in ROWS}) == len(ROWS) == 20
    assert round(rows.parameters(BY_NAME["base"]) / 1e6) == 65
    model = {path.removeprefix("model."): value for path, value in BASE.items() if "model." in path}
    assert TransformerConfig(**model).replace(d_k=None, d_v=None) == TransformerConfig()
    assert BASE["training.label_smoothing"] == Config().training.label_smoothing


def test_a_scale_divides_the_widths_and_big_takes_three_times_the_steps():
    config = pronouns.get_config()
    scaled = rows.config_of(BY_NAME["d_model=1024"], config, 4, 100)
    model = scaled.model
    assert (model.d_model, model.d_ff, model.d_k, model.d_v) == (256, 512, 32, 32)
    assert (model.num_layers, model.num_heads, model.vocab_size) == (6, 8, 1600)
    assert scaled.data == config.data and scaled.optimizer == config.optimizer
    assert scaled.training.steps == 100
    assert rows.config_of(BY_NAME["big"], config, 4, 100).training.steps == 300
    far = config.replace(decode=config.decode.replace(max_length=900))
    learned = rows.config_of(BY_NAME["learned positions"], far, 4, 100).model
    assert (learned.positions, learned.max_positions) == ("learned", 900)


def test_bad_scales_and_other_families_are_refused():
    with pytest.raises(InputError, match="--scale=3 does not divide 16"):
        rows.scaled_fields(BY_NAME["base"], 3)
    config = Config(model=LanguageModelConfig())
    with pytest.raises(InputError, match="'language_model', but table 3 varies the Transformer"):
        rows.config_of(BY_NAME["base"], config, 4, 100)


def test_rank_correlation_by_hand():
    """Ranks 0, 1, 2.5, 2.5 and 1, 0, 2, 3."""
    found = paper_table3.rank_correlation([1, 2, 5, 5], [20, 10, 30, 40])
    assert found == pytest.approx(np.corrcoef([0, 1, 2.5, 2.5], [1, 0, 2, 3])[0, 1])
    assert paper_table3.rank_correlation([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)
    assert paper_table3.rank_correlation([1, 1], [1, 2]) is None


def test_the_picture_describes_every_row():
    table = [
        {"row": name, "perplexity": perplexity, "bleu": bleu}
        | {"paper_perplexity": BY_NAME[name].perplexity, "paper_bleu": BY_NAME[name].bleu}
        for name, perplexity, bleu in (("base", 2.0, 30.0), ("N=2", 2.5, 27.0))
    ]
    description = paper_table3.picture(table).description
    assert "N=2: perplexity +25.0% and -3.0 BLEU" in description


@pytest.fixture
def options(tiny, tmp_path):
    return paper_table3.Options(config=tiny(), output=str(tmp_path / "out"), scale=16)


@pytest.mark.slow
def test_rows_are_trained_once_with_as_many_steps_as_fit(options, tmp_path, capsys):
    options = dataclasses.replace(options, rows=("N=2",), minutes=0.005)
    first = paper_table3.run(options)
    table = json.loads((tmp_path / "out" / "table3.json").read_text())
    assert [row["row"] for row in table] == ["base", "N=2"]
    assert table[1]["parameters"] < table[0]["parameters"]
    assert table[0]["steps"] == first["steps"] >= 1
    assert (tmp_path / "out" / "table3.png").stat().st_size > 1000
    assert "measuring the steps" in capsys.readouterr().err
    assert paper_table3.run(options) == first
    log = capsys.readouterr().err
    assert "measuring the steps" not in log and "scoring" not in log
    with pytest.raises(InputError, match="is less than a step of base"):
        paper_table3.run(dataclasses.replace(options, minutes=1e-7))


@pytest.mark.slow
def test_without_a_budget_the_study_only_counts(options, tmp_path):
    counted = paper_table3.run(dataclasses.replace(options, rows=("d_ff=4096",)))
    assert "| C | d_ff=4096 | 90 | 90.3 | 88,236,032 |" in counted["table"]
    assert not (tmp_path / "out" / "runs").exists()
    with pytest.raises(InputError, match="--rows has 'N=3'"):
        paper_table3.run(dataclasses.replace(options, rows=("N=3",)))
