# SPDX-License-Identifier: Apache-2.0
"""Any translation corpus of TFDS by name, without TensorFlow.

A corpus is downloaded and prepared once, into the user's cache folder. TFDS itself calls TensorFlow
only to open files while it unpacks an archive; where TensorFlow is not installed, they are opened
without it. A builder that calls TensorFlow elsewhere needs the extra ``wmt``.
"""

import contextlib
import difflib
import functools
import importlib.util
import io
import os
import sys
import types
from collections.abc import Iterator, Sequence
from unittest import mock

import tensorflow_datasets as tfds
from tensorflow_datasets.core import registered
from tensorflow_datasets.core.download import downloader, extractor

from experiments import file_lock, user_cache
from experiments.pipeline.pairs import Pairs, Records, directed, is_backward
from transformer.errors import InputError

TIMEOUTS = (10.0, 60.0)
"""Seconds after which a host is given up that cannot be connected to, and one that is silent."""


def names() -> list[str]:
    """The datasets that TFDS knows, translation or not, without their configs."""
    # They are known only when they have been imported.
    import tensorflow_datasets.translate  # noqa: F401

    return tfds.list_builders(with_community_datasets=False)


def pairs(dataset: str, split: str, direction: str, also: Sequence[str] = ()) -> Pairs:
    """The pairs of one split, downloaded and prepared if they are not there yet.

    Args:
      dataset: ``name`` or ``name/config``, for example ``wmt14_translate/de-en``.
      split: for example ``train``.
      direction: as ``data.direction``.
      also: other names that a mistyped `dataset` may have meant.

    Raises:
      InputError: when there is no such dataset, config or split, when it does not hold pairs of
      texts or these languages, or when it cannot be downloaded and prepared.
    """
    builder = _builder(dataset, also)
    features = _texts(dataset, builder)
    translation = isinstance(builder.info.features, tfds.features.Translation)
    languages = features if translation else None
    # Before it is downloaded for nothing.
    is_backward(dataset, languages, direction)
    _prepare(dataset, builder)
    # Of mock data no splits are known.
    if builder.info.splits and split not in builder.info.splits:
        raise InputError(
            f"dataset {dataset} has no split {split!r}; it has {', '.join(builder.info.splits)}"
        )
    with _blamed_on(dataset):
        records = builder.as_data_source(split)
    corpus = Records(dataset, str(builder.version), split, records, features, languages)
    return directed(corpus, direction)


def _builder(dataset: str, also: Sequence[str]) -> tfds.core.DatasetBuilder:
    name, _, config = dataset.partition("/")
    with _blamed_on(dataset):
        # This project's own are known to TFDS as well, but are among the others here.
        known = set(names()) - {other.partition("/")[0] for other in also}
        if name not in known:
            [nearest] = difflib.get_close_matches(dataset, [*also, *sorted(known)], n=1, cutoff=0.0)
            raise InputError(
                f"data.dataset is {dataset!r}, which is unknown; did you mean {nearest!r}?"
            )
        builder = registered.imported_builder_cls(name)
        configs = list(builder.builder_configs)
        if config not in (configs or [""]):
            raise InputError(
                f"data.dataset is {dataset!r}; it must be "
                + (f"{name}/ and one of {', '.join(configs)}" if configs else name)
                + " (data.direction turns a corpus round)"
            )
        options = {"config": config} if configs else {}
        return builder(
            data_dir=user_cache.folder("datasets"), file_format="array_record", **options
        )


def _texts(dataset: str, builder: tfds.core.DatasetBuilder) -> tuple[str, str]:
    """The names of the features that hold source and target."""
    features, keys = builder.info.features, builder.info.supervised_keys
    texts = [key for key, kind in features.items() if isinstance(kind, tfds.features.Text)]
    for pair in (keys, ("source_sentence", "target_sentence")):
        if pair and len(pair) == 2 and all(key in texts for key in pair):
            return pair
    raise InputError(
        f"dataset {dataset} does not hold pairs of sentences (its features are "
        f"{', '.join(features)}); name a translation corpus, for example "
        "ted_hrlr_translate/pt_to_en, or use text_files"
    )


def _prepare(dataset: str, builder: tfds.core.DatasetBuilder) -> None:
    """Downloads the dataset and writes its files, if they are not there."""
    if builder.data_path.exists():
        return
    home = user_cache.folder("datasets")
    with file_lock.hold(home, f"waiting for another run that prepares a dataset in {home}"):
        if builder.data_path.exists():
            return
        print(f"preparing {dataset} (once, into {home})", file=sys.stderr, flush=True)
        # Bars are for a person who watches.
        (tfds.enable_progress_bar if sys.stderr.isatty() else tfds.disable_progress_bar)()
        with _blamed_on(dataset), _impatient(), _files_opened_plainly():
            builder.download_and_prepare(
                download_dir=home / "downloads",
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            )


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """A host that cannot be reached is given up within seconds; TFDS would try for minutes."""
    with (
        mock.patch.object(downloader, "MAX_RETRIES", 1),
        mock.patch.object(
            downloader,
            "_open_with_requests",
            functools.partial(downloader._open_with_requests, timeout=TIMEOUTS),
        ),
    ):
        yield


@contextlib.contextmanager
def _files_opened_plainly() -> Iterator[None]:
    """Lets TFDS unpack archives where TensorFlow, by which it opens files, is not installed."""
    if importlib.util.find_spec("tensorflow") is not None:
        yield
        return
    plain = types.SimpleNamespace(
        compat=types.SimpleNamespace(as_text=os.fsdecode),
        io=types.SimpleNamespace(gfile=types.SimpleNamespace(GFile=open)),
    )
    with mock.patch.object(extractor, "tf", plain):
        yield


@contextlib.contextmanager
def _blamed_on(dataset: str) -> Iterator[None]:
    """Turns whatever TFDS and a builder raise into one message.

    What they print is dropped, because standard output is for results.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - builders raise anything
        causes = list(_causes(error))
        missing = {cause.name for cause in causes if isinstance(cause, ModuleNotFoundError)}
        if "tensorflow" in missing:
            raise InputError(
                f"dataset {dataset} is prepared with TensorFlow, which is not installed; install "
                "it with: pip install 'attention-transformer[wmt]'"
            ) from None
        if missing:
            raise InputError(
                f"dataset {dataset} needs the package {', '.join(missing)}; install it"
            ) from None
        urls = [cause.request.url for cause in causes if getattr(cause, "request", None)]
        if urls:
            raise InputError(
                f"dataset {dataset} could not be downloaded: no answer from {urls[0]}; connect "
                "this machine to the network, or prepare the dataset on another one and copy "
                f"{user_cache.folder('datasets')} here"
            ) from None
        told = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"dataset {dataset} could not be prepared: {told}") from None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
