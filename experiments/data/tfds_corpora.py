# SPDX-License-Identifier: Apache-2.0
"""Translation corpora of TFDS by name, downloaded and prepared into the user's cache folder.

TFDS unpacks archives with TensorFlow. Where it is not installed, the archives that TFDS downloaded
are unpacked here, into the folder where TFDS looks for unpacked archives first. A builder that uses
TensorFlow for anything else, as those of WMT do, needs the extra ``wmt``.
"""

import contextlib
import io
import pathlib
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence

import tensorflow_datasets as tfds
from tensorflow_datasets.core import registered

from experiments.console.progress import say
from experiments.data.pairs import Records, SentencePairs, is_backward
from experiments.storage import file_lock, user_cache
from transformer.errors import InputError
from transformer.fields import nearest

TIMEOUT = 10.0
"""Seconds to wait for a host of the dataset to answer."""


def names() -> list[str]:
    """All builders that TFDS knows, translation or not, without their configs."""
    # Importing the builders registers them.
    import tensorflow_datasets.translate  # noqa: F401

    return tfds.list_builders(with_community_datasets=False)


def pairs(
    dataset: str, split: str, direction: str, other_names: Sequence[str] = ()
) -> SentencePairs:
    """The sentence pairs of one split; the dataset is downloaded and prepared on first use.

    Args:
      dataset: ``name`` or ``name/config``, for example ``wmt14_translate/de-en``.
      split: for example ``train``.
      direction: a value of ``data.direction``.
      other_names: further dataset names to suggest for a misspelled one.

    Raises:
      InputError: for an unknown dataset, config, split or language, when the dataset holds no
      sentence pairs, or when it cannot be downloaded and prepared.
    """
    builder = _builder(dataset, other_names)
    features = _text_features(dataset, builder)
    translation = isinstance(builder.info.features, tfds.features.Translation)
    languages = features if translation else None
    # Check the direction before a download of gigabytes.
    is_backward(dataset, languages, direction)
    _prepare(dataset, builder)
    # Mocked builders have no splits.
    if builder.info.splits and split not in builder.info.splits:
        raise InputError(
            f"data.dataset is {dataset!r}, which has no split {split!r}; it has "
            f"{', '.join(builder.info.splits)}"
        )
    with _input_errors(dataset):
        records = builder.as_data_source(split)
    folder = str(builder.data_path)
    corpus = Records(dataset, str(builder.version), split, records, features, languages, folder)
    return corpus.in_direction(direction)


def _builder(dataset: str, other_names: Sequence[str]) -> tfds.core.DatasetBuilder:
    name, _, config = dataset.partition("/")
    with _input_errors(dataset):
        # TFDS also lists the builders of this repository.
        known = set(names()) - {other.partition("/")[0] for other in other_names}
        if name not in known:
            suggestions = [*other_names, *sorted(known)]
            raise InputError(
                f"data.dataset is {dataset!r}, which is unknown; did you mean "
                f"{nearest(dataset, suggestions)!r}?"
            )
        builder = registered.imported_builder_cls(name)
        configs = list(builder.builder_configs)
        if config not in (configs or [""]):
            raise InputError(
                f"data.dataset is {dataset!r}; it must be "
                + (f"{name}/ and one of {', '.join(configs)}" if configs else name)
                + " (data.direction swaps source and target)"
            )
        options = {"config": config} if configs else {}
        return builder(
            data_dir=user_cache.folder("datasets"), file_format="array_record", **options
        )


def _text_features(dataset: str, builder: tfds.core.DatasetBuilder) -> tuple[str, str]:
    """The names of the features that hold source and target."""
    features, keys = builder.info.features, builder.info.supervised_keys
    texts = [key for key, kind in features.items() if isinstance(kind, tfds.features.Text)]
    for pair in (keys, ("source_sentence", "target_sentence")):
        if pair and len(pair) == 2 and all(key in texts for key in pair):
            return pair
    raise InputError(
        f"data.dataset is {dataset!r}, which does not hold sentence pairs (its features are "
        f"{', '.join(features)}); name a translation corpus, for example "
        "ted_hrlr_translate/pt_to_en, or use text_files"
    )


def _prepare(dataset: str, builder: tfds.core.DatasetBuilder) -> None:
    """Download the dataset and write its files, unless they exist."""
    if builder.data_path.exists():
        return
    home = user_cache.folder("datasets")
    downloads = home / "downloads"
    with file_lock.hold(home, f"waiting for another run that prepares a dataset in {home}"):
        if builder.data_path.exists():
            return
        for interrupted in builder.data_path.parent.glob(f"{builder.data_path.name}.incomplete*"):
            shutil.rmtree(interrupted)
        say(f"preparing {dataset} (once, into {home})")
        if not (downloads / builder.name).exists():
            _require_network(dataset, builder)
        # Progress bars only for a terminal.
        (tfds.enable_progress_bar if sys.stderr.isatty() else tfds.disable_progress_bar)()
        config = tfds.download.DownloadConfig(try_download_gcs=False)
        with _input_errors(dataset):
            while True:
                try:
                    builder.download_and_prepare(download_dir=downloads, download_config=config)
                    return
                except Exception as error:  # noqa: BLE001 - builders raise anything
                    # Each attempt downloads and unpacks more, until no new archive is left.
                    if "tensorflow" not in _missing_modules(error) or not _unpack(downloads):
                        raise


def _require_network(dataset: str, builder: tfds.core.DatasetBuilder) -> None:
    """Fail within seconds when no host of the dataset answers; TFDS retries for minutes."""
    by_host = {urllib.parse.urlsplit(url).netloc: url for url in builder.url_infos or ()}
    for url in list(by_host.values())[:3]:
        try:
            urllib.request.urlopen(
                urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT
            ).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            continue
    if by_host:
        raise _unreachable(dataset, url)


def _unreachable(dataset: str, url: str) -> InputError:
    return InputError(
        f"data.dataset is {dataset!r}, which could not be downloaded: no answer from "
        f"{url}; connect this machine to the network, or prepare the dataset on another machine "
        f"and copy {user_cache.folder('datasets')} here"
    )


def _unpack(downloads: pathlib.Path) -> bool:
    """Unpack the archives that TFDS downloaded, without TensorFlow.

    TFDS uses ``extracted/METHOD.NAME`` instead of unpacking an archive again, as the documentation
    of `tfds.download.DownloadManager` describes.

    Returns:
      whether a new archive was unpacked.
    """
    unpacked = False
    for info in downloads.rglob("*.INFO"):
        archive = tfds.download.Resource(path=info.with_suffix(""))
        method = archive.extract_method
        home = downloads / "extracted" / f"{method.name}.{archive.path.name}"
        if method is tfds.download.ExtractMethod.NO_EXTRACT or home.exists():
            continue
        partial = home.with_name(f"partial.{home.name}")
        with open(archive.path, "rb") as file:
            # Given a path instead of a file, `iter_archive` would open it with TensorFlow.
            for name, member in tfds.download.iter_archive(file, method):
                path = partial / name  # A compressed file has one member without a name.
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as output:
                    shutil.copyfileobj(member, output)
        partial.rename(home)
        unpacked = True
    return unpacked


@contextlib.contextmanager
def _input_errors(dataset: str) -> Iterator[None]:
    """Turn the exceptions of TFDS and its builders into one InputError.

    Their output on stdout is dropped, because stdout is for results.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - builders raise anything
        if missing := _missing_modules(error):
            package = "-e '.[wmt]'" if "tensorflow" in missing else missing.pop()
            raise InputError(
                f"data.dataset is {dataset!r}, which is prepared with packages that are not "
                f"installed; install them with: pip install {package}"
            ) from None
        urls = [cause.request.url for cause in _causes(error) if getattr(cause, "request", None)]
        if urls:
            raise _unreachable(dataset, urls[0]) from None
        message = " ".join(str(error).split()) or type(error).__name__
        folder = user_cache.folder("datasets") / dataset
        if any(folder.rglob("dataset_info.json")):
            message += f"; if its files are damaged, remove {folder}"
        raise InputError(
            f"data.dataset is {dataset!r}, which could not be prepared: {message}"
        ) from None


def _missing_modules(error: BaseException) -> set[str]:
    return {cause.name for cause in _causes(error) if isinstance(cause, ModuleNotFoundError)}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
