# SPDX-License-Identifier: Apache-2.0
"""Every source of sentence pairs is read in chunks, in order, in the configured direction."""

import gzip
import itertools
import os

import pytest
import tensorflow_datasets as tfds

from experiments.data import registry
from experiments.data.embedded import EmbeddedCorpus
from experiments.data.pairs import Records
from experiments.data.text_files import TwoFiles
from transformer.config import DataConfig
from transformer.errors import InputError


@pytest.fixture
def write(tmp_path):
    """Writes text to a file of that name and returns its path."""

    def to(name, text):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return to


@pytest.fixture
def english(write):
    """Three English lines."""
    return write("few.en", "one\ntwo\nthree\n")


@pytest.fixture
def german(write):
    """Their translations."""
    return write("few.de.gz", gzip.compress(b"eins\nzwei\ndrei\n"))


@pytest.fixture
def tsv(write):
    """The same in the second and fourth column of a TSV file."""
    rows = ["1\tone\tx\teins", '2\t"two\t\tzwei', "3\tthree\ty\tdrei\tmore"]
    return write("few.tsv", "".join(f"{row}\n" for row in rows))


def text_data(**fields):
    """The config of text files."""
    return DataConfig(dataset="text_files", **fields)


def read_all(pairs, size=2):
    """All sources and all targets."""
    chunks = list(pairs.chunks(size))
    assert all(len(source) == len(target) <= size for source, target in chunks)
    return [line for chunk, _ in chunks for line in chunk], [
        line for _, chunk in chunks for line in chunk
    ]


def test_two_files_are_read_in_chunks(english, german):
    pairs = registry.sentence_pairs(text_data(train_source=english, train_target=german), "train")
    assert list(pairs.chunks(2)) == [
        (["one", "two"], ["eins", "zwei"]),
        (["three"], ["drei"]),
    ]
    assert pairs.count() == 3
    assert pairs.location(1) == (f"{english}:2", f"{german}:2")


def test_a_tsv_file_holds_both_sides_of_any_split(tsv, tmp_path):
    (tmp_path / "few.TSV.gz").write_bytes(gzip.compress((tmp_path / "few.tsv").read_bytes()))
    for path, split in itertools.product((tsv, str(tmp_path / "few.TSV.gz")), registry.SPLITS):
        data = text_data(tsv_columns=(2, 4), **{f"{split}_source": path})
        pairs = registry.sentence_pairs(data, split)
        assert read_all(pairs) == (["one", '"two', "three"], ["eins", "zwei", "drei"])
        assert pairs.count() == 3
        assert pairs.location(2) == (f"{path}:3", f"{path}:3")
        assert registry.load(data, split).sources == ["one", '"two', "three"]
    # Beside a target file it is a text file.
    data = text_data(train_source=tsv, train_target=tsv)
    assert registry.load(data, "train").sources[0] == "1\tone\tx\teins"


def test_a_line_that_lacks_a_configured_column_is_named(write):
    path = write("few.tsv", "one\teins\ntwo\n")
    with pytest.raises(InputError) as raised:
        registry.load(text_data(test_source=path), "test")
    assert str(raised.value).startswith(f"{path}:2: no column 2, the line has 1")
    assert "data.tsv_columns names those of both sides, here [1, 2]" in str(raised.value)


def test_a_source_that_is_no_tsv_file_and_a_target_need_each_other(english):
    with pytest.raises(InputError, match="--config.data.validation_target=FILE"):
        registry.load(text_data(validation_source=english), "validation")
    with pytest.raises(InputError, match="--config.data.validation_source=FILE"):
        registry.load(text_data(validation_target=english), "validation")


def test_a_pipe_is_refused_by_name_before_it_is_read(tmp_path, english):
    pipe = str(tmp_path / "pipe.de")
    os.mkfifo(pipe)
    for split in registry.SPLITS:
        data = text_data(**{f"{split}_source": english, f"{split}_target": pipe})
        with pytest.raises(InputError, match=f"{pipe}', which is a pipe or a device"):
            registry.sentence_pairs(data, split)
    with pytest.raises(InputError, match=f"{pipe}', which is a pipe or a device"):
        registry.training_corpora(text_data(mixture=(f"2*{english},{pipe}",)))


def test_text_files_have_three_splits(english, german):
    data = text_data(train_source=english, train_target=german)
    with pytest.raises(InputError, match="'dev'; they have train, validation, test"):
        registry.load(data, "dev")


def test_a_split_of_text_files_is_all_pairs_without_corpus_metrics(english, german):
    split = registry.load(text_data(test_source=english, test_target=german), "test")
    assert (split.sources, split.targets) == (["one", "two", "three"], ["eins", "zwei", "drei"])
    assert len(split) == 3
    assert split.first(1).sources == ["one"]
    assert split.corpus_metrics(["eins", "zwei", "drei"]) == {}
    assert registry.from_files(english, german) == split
    # Without a mixture, training reads the training split.
    data = text_data(train_source=english, train_target=german)
    assert registry.training_corpora(data) == [(1.0, TwoFiles(english, german))]


def test_empty_lines_are_kept(write):
    split = registry.from_files(write("s", "one\n\nthree\n"), write("t", "eins\nzwei\n\n"))
    assert (split.sources, split.targets) == (["one", "", "three"], ["eins", "zwei", ""])


@pytest.mark.parametrize("longer", ["source", "target"])
def test_unequal_numbers_of_lines_are_both_named_for_any_chunk_size(write, longer):
    lines = {side: "x\n" * (5 if side == longer else 3) for side in ("source", "target")}
    pairs = TwoFiles(*(write(side, text) for side, text in lines.items()))
    named = " lines but .*".join(f"{side} has {text.count('x')}" for side, text in lines.items())
    chunked = [lambda size=size: list(pairs.chunks(size)) for size in (1, 2, 3, 10)]
    for reading in (pairs.count, *chunked):
        with pytest.raises(InputError, match=named):
            reading()


def test_backward_makes_the_target_the_source(english, german, tsv):
    two = text_data(train_source=english, train_target=german, direction="backward")
    pairs = registry.sentence_pairs(two, "train")
    assert read_all(pairs) == (["eins", "zwei", "drei"], ["one", "two", "three"])
    assert pairs.location(0) == (f"{german}:1", f"{english}:1")
    assert pairs.count() == 3
    one = text_data(train_source=tsv, tsv_columns=(4, 2))
    assert registry.load(one, "train").sources == registry.load(two, "train").sources


def test_files_name_their_languages_by_their_endings(english, german, tsv):
    for direction, first in (("en-de", "one"), ("de-en", "eins")):
        data = text_data(train_source=english, train_target=german, direction=direction)
        assert registry.load(data, "train").sources[0] == first
        # The order of the two files does not matter.
        data = data.replace(train_source=german, train_target=english)
        assert registry.load(data, "train").sources[0] == first
    with pytest.raises(InputError, match="are de and en; use 'de-en' or 'en-de'"):
        registry.sentence_pairs(data.replace(direction="en-fr"), "train")
    with pytest.raises(InputError, match="does not name its languages; use 'forward' or 'backward"):
        registry.sentence_pairs(text_data(train_source=tsv, direction="en-de"), "train")


def test_an_embedded_corpus_is_the_same_in_chunks_and_at_once_and_backward():
    data = DataConfig(dataset="symbols_grammar/sort")
    pairs, split = registry.sentence_pairs(data, "validation"), registry.load(data, "validation")
    assert read_all(pairs, 150) == (split.sources, split.targets)
    assert pairs.count() == len(split) == 500
    assert pairs.location(7) == ("symbols_grammar/sort validation record 7",) * 2
    forward = registry.load(data, "test")
    backward = registry.load(data.replace(direction="backward"), "test")
    assert (backward.sources, backward.targets) == (forward.targets, forward.sources)
    assert len(forward.examples) == len(forward)
    assert backward.corpus_metrics(backward.targets) == {}


@pytest.mark.parametrize("reading", [registry.load, registry.sentence_pairs])
def test_a_split_or_config_that_is_unknown_is_refused_with_the_known_ones(reading):
    assert "symbols_grammar/sort" in registry.embedded_datasets()
    known = "symbols_grammar/copy, symbols_grammar/reverse, symbols_grammar/sort"
    for dataset, split, words in (
        ("symbols_grammar/sort", "dev", "no split 'dev'; it has train, validation, test"),
        ("symbols_gramar/sort", "train", "did you mean 'symbols_grammar/sort'"),
        ("symbols_grammar/sorted", "train", f"'symbols_grammar/sorted'.*choose one of {known}"),
    ):
        with pytest.raises(InputError, match=words):
            reading(DataConfig(dataset=dataset), split)


def test_the_identity_changes_with_the_text_the_columns_and_the_direction(write, english, german):
    pairs = TwoFiles(english, german)
    seen = {pairs.identity(), pairs.in_direction("backward").identity()}
    assert TwoFiles(english, german).identity() in seen
    write("few.en", "one\ntwo\nthree.\n")
    seen.add(pairs.identity())
    path = write("few.tsv", "a\tb\tc\n")
    for columns in ((1, 2), (2, 1), (1, 3)):
        data = text_data(train_source=path, tsv_columns=columns)
        seen.add(registry.sentence_pairs(data, "train").identity())
    for dataset in ("symbols_grammar/sort", "symbols_grammar/copy"):
        for split in ("train", "test"):
            seen.add(registry.sentence_pairs(DataConfig(dataset=dataset), split).identity())
    assert len(seen) == 3 + 3 + 4


def test_a_corpus_is_added_by_a_builder_and_one_line_of_the_registry(monkeypatch, tmp_path):
    class TinyGrammar(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="upper")]

        def _info(self):
            text = tfds.features.Text()
            features = tfds.features.FeaturesDict({"source": text, "target": text})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples("ab"), "test": self._generate_examples("c")}

        def _generate_examples(self, letters):
            for index, letter in enumerate(letters):
                yield index, {"source": letter, "target": letter.upper()}

    def share(examples, hypotheses):
        return {"right": sum(a["target"] == b for a, b in zip(examples, hypotheses, strict=True))}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    line = EmbeddedCorpus(TinyGrammar, metrics=share)
    monkeypatch.setattr(registry, "EMBEDDED", (*registry.EMBEDDED, line))
    assert "tiny_grammar/upper" in registry.embedded_datasets()
    data = DataConfig(dataset="tiny_grammar/upper")
    train = registry.load(data, "train")
    assert (train.sources, train.targets) == (["a", "b"], ["A", "B"])
    assert train.corpus_metrics(["A", "a"]) == {"right": 1}
    assert read_all(registry.sentence_pairs(data, "test")) == (["c"], ["C"])


def test_a_record_that_is_not_utf8_is_named():
    records = [{"a": b"good", "b": "text"}, {"a": b"sch\xf6n", "b": b""}]

    class Source(list):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    pairs = Records("d/c", "1.0.0", "train", Source(records), ("a", "b"))
    with pytest.raises(InputError, match=r"^d/c train record 1: byte 0xf6 is not UTF-8"):
        list(pairs.chunks())


def test_a_mixture_is_corpora_of_every_kind_with_weights(english, german, tsv):
    data = text_data(
        tsv_columns=(2, 4),
        mixture=(f"2*{english},{german}", f"0.5*{tsv}", "symbols_grammar/sort"),
    )
    weights, corpora = zip(*registry.training_corpora(data), strict=True)
    assert weights == (2.0, 0.5, 1.0)
    assert [pairs.count() for pairs in corpora] == [3, 3, 50_000]
    assert read_all(corpora[0]) == (["one", "two", "three"], ["eins", "zwei", "drei"])
    assert read_all(corpora[1])[1] == ["eins", "zwei", "drei"]


def test_the_direction_is_that_of_every_corpus_of_the_mixture(english, german):
    data = text_data(mixture=(f"{english},{german}", f"3*{german},{english}"), direction="de-en")
    for _, pairs in registry.training_corpora(data):
        assert read_all(pairs)[0] == ["eins", "zwei", "drei"]


def test_a_malformed_corpus_of_a_mixture_is_refused():
    for weight in ("0", "-1", "nan", "inf", "1e300", "two", ""):
        with pytest.raises(InputError, match=f"whose weight '{weight}' is not a number above 0"):
            registry.training_corpora(text_data(mixture=(f"{weight}*a,b",)))
    for corpus in ("a,b,c", "a,", ",b"):
        with pytest.raises(InputError, match="'SOURCE,TARGET'.*or 'FILE.tsv'"):
            registry.training_corpora(text_data(mixture=(f"2*{corpus}",)))
