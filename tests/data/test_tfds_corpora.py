# SPDX-License-Identifier: Apache-2.0
"""Any TFDS translation corpus can be read by name without TensorFlow, or the error says why."""

import functools
import gzip
import http.server
import importlib.util
import io
import pathlib
import sys
import tarfile
import threading
import urllib.error
import urllib.request

import pytest
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core import registered
from tensorflow_datasets.testing import mocking

from experiments.data import registry, tfds_corpora
from transformer.config import DataConfig
from transformer.errors import InputError

ENGLISH, PORTUGUESE = ["one", "two", "three"], ["um", "dois", "três"]


@pytest.fixture(autouse=True)
def separate_cache(tmp_path, monkeypatch):
    """A user cache folder for this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def mocked(monkeypatch):
    """TFDS with five generated pairs in every dataset."""
    # The mock of __getitems__ is called without `self`, with which it was written.
    items = mocking._getitems
    monkeypatch.setattr(
        mocking, "_getitems", lambda keys, generator: items(None, keys, generator=generator)
    )
    monkeypatch.setattr(tfds_corpora, "_require_network", lambda *_: None)
    with tfds.testing.mock_data(num_examples=5, policy=tfds.testing.MockPolicy.USE_CODE):
        yield


@pytest.fixture
def add_to_tfds(monkeypatch):
    """A function that adds a builder to those of TFDS."""

    def add(builder):
        monkeypatch.setitem(registered._DATASET_REGISTRY, builder.name, builder)
        return builder

    return add


def named(dataset, split="train", **fields):
    """The pairs of a dataset."""
    return registry.sentence_pairs(DataConfig(dataset=dataset, **fields), split)


class TwoLanguages(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A builder like those of TFDS, without files."""

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
def test_the_translation_corpora_of_tfds_are_read_as_pairs(mocked, dataset, languages):
    pairs = named(dataset)
    assert pairs.languages == languages
    assert pairs.count() == 5
    [(sources, targets)] = pairs.chunks()
    assert len(sources) == len(targets) == 5
    assert all(isinstance(line, str) and line for line in sources + targets)
    assert sources != targets
    assert pairs.location(3)[0] == f"{dataset} train record 3"


def test_data_direction_swaps_source_and_target(mocked):
    dataset = "wmt14_translate/de-en"
    forward = registry.load(DataConfig(dataset=dataset, direction="de-en"), "validation")
    assert forward == registry.load(DataConfig(dataset=dataset), "validation")
    for direction in ("backward", "en-de"):
        backward = registry.load(DataConfig(dataset=dataset, direction=direction), "validation")
        assert (backward.sources, backward.targets) == (forward.targets, forward.sources)
        assert backward.corpus_metrics(backward.targets) == {}


def test_a_language_that_the_corpus_lacks_is_refused_before_a_download(capsys):
    with pytest.raises(InputError, match="are de and en; use 'de-en' or 'en-de'"):
        named("wmt14_translate/de-en", direction="fr-en")
    assert capsys.readouterr() == ("", "")


def test_a_mixture_may_name_tfds_datasets(mocked):
    data = DataConfig(mixture=("2*wmt14_translate/de-en", "para_crawl/ende"), direction="en-de")
    [(two, wmt), (one, crawl)] = registry.training_corpora(data)
    assert (two, one) == (2.0, 1.0)
    assert wmt.languages == crawl.languages == ("en", "de")


def test_what_is_not_a_corpus_of_sentence_pairs_is_refused_with_the_reason(mocked):
    for dataset, words in (
        ("ted_multi_translate", "does not hold sentence pairs .its features are"),
        ("mnist", "does not hold sentence pairs .its features are"),
        ("wmt14_translat", "did you mean 'wmt14_translate'"),
        ("text_file", "did you mean 'text_files'"),
        ("wmt14_translate", "one of cs-en, de-en, fr-en, hi-en, ru-en.*data.direction"),
        ("wmt14_translate/en-de", "one of cs-en, de-en, fr-en, hi-en, ru-en.*data.direction"),
    ):
        with pytest.raises(InputError, match=words):
            named(dataset)


def test_a_prepared_corpus_is_read_in_order_and_prepared_once(add_to_tfds, capsys):
    add_to_tfds(TwoLanguages)
    pairs = named("two_languages")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("preparing two_languages (once, into ")
    # TFDS shuffles the examples that it writes, by a fixed seed.
    [(sources, targets)] = pairs.chunks()
    assert set(zip(targets, sources, strict=True)) == set(zip(ENGLISH, PORTUGUESE, strict=True))
    assert pairs.identity() == "tfds two_languages 1.2.3 train pt-en"
    assert list(named("two_languages", direction="en-pt").chunks()) == [(targets, sources)]
    assert capsys.readouterr() == ("", "")


def test_damaged_files_are_an_error_that_names_the_folder_to_remove(add_to_tfds, separate_cache):
    add_to_tfds(TwoLanguages)
    named("two_languages")
    with pytest.raises(InputError, match="has no split 'validation'; it has train, test"):
        named("two_languages", "validation")
    folder = separate_cache / "attention-transformer" / "datasets" / "two_languages"
    for name in ("dataset_info.json", "two_languages-train.array_record-00000-of-00001"):
        path = folder / "1.2.3" / name
        intact = path.read_bytes()
        for damaged in (b"", b"{", intact[:-30], bytes(len(intact))):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=f"remove {folder}"):
                named("two_languages").read()
        path.write_bytes(intact)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder, and its URL on a local server."""
    folder = tmp_path / "served"
    folder.mkdir()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_downloaded_archives_are_unpacked_without_tensorflow(add_to_tfds, served, tmp_path):
    """One tar file and one compressed file, which the builder asks for one after the other."""
    assert importlib.util.find_spec("tensorflow") is None, "otherwise this shows nothing"
    folder, url = served
    (tmp_path / "train.en").write_text("\n".join(ENGLISH))
    with tarfile.open(folder / "english.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "train.en", "texts/train.en")
    (folder / "portuguese.gz").write_bytes(gzip.compress("\n".join(PORTUGUESE).encode()))

    class Unpacked(TwoLanguages, skip_registration=True):
        name = "unpacked"

        def _split_generators(self, dl_manager):
            english = dl_manager.download_and_extract(f"{url}/english.tar.gz")
            portuguese = dl_manager.download_and_extract(f"{url}/portuguese.gz")
            return {"train": self._generate_examples(english, portuguese)}

        def _generate_examples(self, english, portuguese):
            texts = (pathlib.Path(english) / "texts" / "train.en"), pathlib.Path(portuguese)
            rows = [text.read_text().split("\n") for text in texts]
            for index, (en, pt) in enumerate(zip(*rows, strict=True)):
                yield index, {"en": en, "pt": pt}

    add_to_tfds(Unpacked)
    [(sources, targets)] = named("unpacked").chunks()
    assert set(zip(targets, sources, strict=True)) == set(zip(ENGLISH, PORTUGUESE, strict=True))
    assert "tensorflow" not in sys.modules


def test_a_builder_that_needs_tensorflow_names_the_extra(add_to_tfds, capsys):
    class Needy(TwoLanguages, skip_registration=True):
        name = "needy"

        def _generate_examples(self):
            import tensorflow  # noqa: F401

            yield

    add_to_tfds(Needy)
    with pytest.raises(InputError, match=r"pip install -e '.\[wmt\]'"):
        named("needy")
    assert capsys.readouterr().out == ""


def test_any_other_exception_of_a_builder_is_one_message(add_to_tfds):
    class Manual(TwoLanguages, skip_registration=True):
        name = "manual"

        def _split_generators(self, dl_manager):
            raise AssertionError("put the files\n   into the folder 'manual'")

    add_to_tfds(Manual)
    with pytest.raises(
        InputError, match="manual.*could not be prepared: put the files into the folder 'manual'$"
    ):
        named("manual")


def test_a_dataset_whose_hosts_do_not_answer_is_refused_before_tfds_retries(monkeypatch, capsys):
    def unreachable(request, timeout):
        assert timeout == tfds_corpora.TIMEOUT
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setattr(requests.Session, "get", None)
    with pytest.raises(InputError, match="no answer from http://.*qi18naacl") as raised:
        named("ted_hrlr_translate/pt_to_en")
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("answer", ["ok", "error"])
def test_any_answer_of_a_host_lets_tfds_download(monkeypatch, answer):
    def answered(request, timeout):
        if answer == "error":
            raise urllib.error.HTTPError(request.full_url, 405, "no HEAD here", {}, None)
        return io.BytesIO()

    def refused(session, url, **options):
        raise requests.ConnectionError("no way", request=requests.Request("GET", url))

    monkeypatch.setattr(urllib.request, "urlopen", answered)
    monkeypatch.setattr(requests.Session, "get", refused)
    with pytest.raises(InputError, match="no answer from http://.*qi18naacl"):
        named("ted_hrlr_translate/pt_to_en")
