# SPDX-License-Identifier: Apache-2.0
"""Any translation corpus of TFDS can be named, without TensorFlow; what cannot be read says why."""

import importlib.util
import io
import pathlib
import sys
import tarfile
import time

import pytest
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core import registered
from tensorflow_datasets.core.download import downloader
from tensorflow_datasets.testing import mocking

from experiments.corpora import registry, tfds_corpora
from transformer.config import DataConfig
from transformer.errors import InputError

ENGLISH, PORTUGUESE = ["one", "two", "three"], ["um", "dois", "três"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is read from the user's cache folder or written to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def invented(monkeypatch):
    """TFDS with five invented pairs in every dataset."""
    # The mock of __getitems__ is called without `self`, with which it was written.
    items = mocking._getitems
    monkeypatch.setattr(
        mocking, "_getitems", lambda keys, generator: items(None, keys, generator=generator)
    )
    with tfds.testing.mock_data(num_examples=5, policy=tfds.testing.MockPolicy.USE_CODE):
        yield


@pytest.fixture
def brought(monkeypatch):
    """Makes a builder one of those that TFDS brings."""

    def bring(builder):
        monkeypatch.setitem(registered._DATASET_REGISTRY, builder.name, builder)
        return builder

    return bring


def named(dataset, split="train", **fields):
    """The pairs of a dataset."""
    return registry.text_pairs(DataConfig(dataset=dataset, **fields), split)


class TwoLanguages(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A builder like those of TFDS, but for where it gets its files."""

    VERSION = tfds.core.Version("1.2.3")
    name = "two_languages"

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.Translation(languages=("pt", "en")),
            supervised_keys=("pt", "en"),
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples(), "test": self._generate_examples()}

    def _generate_examples(self):
        for index, (english, portuguese) in enumerate(zip(ENGLISH, PORTUGUESE, strict=True)):
            yield index, {"en": english, "pt": portuguese}


@pytest.mark.parametrize(
    ("dataset", "languages"),
    [
        ("ted_hrlr_translate/pt_to_en", ("pt", "en")),
        ("wmt14_translate/de-en", ("de", "en")),
        ("wmt19_translate/zh-en", ("zh", "en")),
        ("wmt_t2t_translate/de-en", ("de", "en")),
        ("flores/neen", ("ne", "en")),
        ("opus/medical", ("de", "en")),
        ("para_crawl/ende", ("en", "de")),
        ("mtnt/en-fr", None),
        ("tatoeba/tatoeba_de", None),
    ],
)
def test_the_translation_corpora_of_tfds_are_read_as_pairs(invented, dataset, languages):
    pairs = named(dataset)
    assert pairs.languages == languages
    assert pairs.count() == 5
    [(sources, targets)] = pairs.chunks()
    assert len(sources) == len(targets) == 5
    assert all(isinstance(line, str) and line for line in sources + targets)
    assert sources != targets
    assert pairs.place(3)[0] == f"{dataset} train record 3"


@pytest.mark.parametrize("direction", ["backward", "en-de"])
def test_the_direction_is_a_field(invented, direction):
    dataset = "wmt14_translate/de-en"
    forward = registry.load(DataConfig(dataset=dataset, direction="de-en"), "validation")
    backward = registry.load(DataConfig(dataset=dataset, direction=direction), "validation")
    assert forward == registry.load(DataConfig(dataset=dataset), "validation")
    assert (backward.sources, backward.targets) == (forward.targets, forward.sources)
    assert backward.own_metrics(backward.targets) == {}


def test_a_language_that_the_corpus_has_not_is_refused_before_a_download(capsys):
    with pytest.raises(InputError, match="are de and en; use 'de-en' or 'en-de'"):
        named("wmt14_translate/de-en", direction="fr-en")
    assert capsys.readouterr() == ("", "")


def test_a_mixture_may_name_datasets_of_tfds(invented):
    data = DataConfig(mixture=("2*wmt14_translate/de-en", "para_crawl/ende"), direction="en-de")
    [(two, wmt), (one, crawl)] = registry.training_corpora(data)
    assert (two, one) == (2.0, 1.0)
    assert wmt.languages == crawl.languages == ("en", "de")


@pytest.mark.parametrize("dataset", ["ted_multi_translate", "mnist"])
def test_a_dataset_without_pairs_of_sentences_is_refused_with_what_it_has(invented, dataset):
    with pytest.raises(InputError, match="does not hold pairs of sentences .its features are"):
        named(dataset)


def test_an_unknown_dataset_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'wmt14_translate'"):
        named("wmt14_translat")
    with pytest.raises(InputError, match="did you mean 'text_files'"):
        named("text_file")


@pytest.mark.parametrize("dataset", ["wmt14_translate", "wmt14_translate/en-de"])
def test_an_unknown_or_missing_config_is_refused_with_those_there_are(dataset):
    with pytest.raises(InputError, match="one of cs-en, de-en, fr-en, hi-en, ru-en") as raised:
        named(dataset)
    assert "data.direction" in str(raised.value)


def test_a_prepared_corpus_is_read_in_order_and_prepared_once(brought, capsys):
    brought(TwoLanguages)
    pairs = named("two_languages")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("preparing two_languages (once, into ")
    # TFDS shuffles what it writes; both sides alike, and always in the same way.
    [(sources, targets)] = pairs.chunks()
    assert set(zip(targets, sources, strict=True)) == set(zip(ENGLISH, PORTUGUESE, strict=True))
    assert pairs.identity() == "tfds two_languages 1.2.3 train pt-en"
    assert list(named("two_languages", direction="en-pt").chunks()) == [(targets, sources)]
    assert capsys.readouterr() == ("", "")


def test_a_split_that_the_corpus_has_not_is_refused_with_those_it_has(brought):
    brought(TwoLanguages)
    with pytest.raises(InputError, match="has no split 'validation'; it has train, test"):
        named("two_languages", "validation")


def test_archives_are_unpacked_without_tensorflow(brought, tmp_path):
    assert importlib.util.find_spec("tensorflow") is None, "otherwise this shows nothing"
    archive = tmp_path / "texts.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, rows in (("en", ENGLISH), ("pt", PORTUGUESE)):
            data = "\n".join(rows).encode()
            member = tarfile.TarInfo(f"texts/train.{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

    class Unpacked(TwoLanguages, skip_registration=True):
        name = "unpacked"

        def _split_generators(self, dl_manager):
            folder = pathlib.Path(dl_manager.extract(archive)) / "texts"
            return {"train": self._generate_examples(folder)}

        def _generate_examples(self, folder):
            texts = {name: (folder / f"train.{name}").read_text() for name in ("en", "pt")}
            rows = [text.split("\n") for text in texts.values()]
            for index, pair in enumerate(zip(*rows, strict=True)):
                yield index, dict(zip(texts, pair, strict=True))

    brought(Unpacked)
    [(sources, targets)] = named("unpacked").chunks()
    assert set(zip(targets, sources, strict=True)) == set(zip(ENGLISH, PORTUGUESE, strict=True))
    assert "tensorflow" not in sys.modules


def test_a_builder_that_needs_tensorflow_names_the_extra(brought, capsys):
    class Needy(TwoLanguages, skip_registration=True):
        name = "needy"

        def _generate_examples(self):
            import tensorflow  # noqa: F401

            yield

    brought(Needy)
    with pytest.raises(InputError, match=r"pip install 'attention-transformer\[wmt\]'"):
        named("needy")
    assert capsys.readouterr().out == ""


def test_whatever_else_a_builder_raises_is_one_message(brought):
    class Manual(TwoLanguages, skip_registration=True):
        name = "manual"

        def _split_generators(self, dl_manager):
            raise AssertionError("put the files\n   into the folder 'manual'")

    brought(Manual)
    with pytest.raises(
        InputError, match="manual could not be prepared: put the files into the folder 'manual'$"
    ):
        named("manual")


def test_a_host_that_cannot_be_reached_is_one_message_within_seconds(monkeypatch, capsys):
    def refused(session, url, **options):
        assert options["timeout"] == tfds_corpora.TIMEOUTS
        assert session.get_adapter(url).max_retries.total == 1
        raise requests.ConnectionError("no way", request=requests.Request("GET", url))

    monkeypatch.setattr(requests.Session, "get", refused)
    began = time.monotonic()
    with pytest.raises(InputError, match="no answer from http://.*qi18naacl") as raised:
        named("ted_hrlr_translate/pt_to_en")
    assert time.monotonic() - began < 5
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""
    assert downloader.MAX_RETRIES > 1, "TFDS is left as it was"
