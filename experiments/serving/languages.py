# SPDX-License-Identifier: Apache-2.0
"""The languages of a model: codes, inferred from its data by default, and English names."""

import dataclasses
import re
from collections.abc import Sequence

from transformer.config import Config
from transformer.text.tokenizer import Vocabularies

NAMES = {
    **{"ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish"},
    **{"de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish"},
    **{"et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish"},
    **{"he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian"},
    **{"ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch"},
    **{"no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian"},
    **{"sk": "Slovak", "sl": "Slovenian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian"},
    **{"ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese"},
}
UNKNOWN = ("source", "target")
"""Codes of unknown languages."""
_PAIR = re.compile(r"(?:^|[/_.])([a-z]{2,3})(?:-|_to_)([a-z]{2,3})(?:$|[/_.])")


@dataclasses.dataclass(frozen=True)
class Languages:
    """Codes of the source and of the targets, such as ``en`` and ``de``."""

    source: str
    targets: tuple[str, ...]
    marked: bool = False
    """Whether a source begins with the code of its target, as in ``>>deu<< the house``."""

    @classmethod
    def of(
        cls,
        config: Config,
        source: str | None = None,
        target: str | None = None,
        codes: Sequence[str] = (),
    ) -> "Languages":
        """Return the given languages, or infer them from the names of corpora and files.

        Args:
          config: config of the model.
          source: code of the source language.
          target: code of the target language.
          codes: replaces `target` for an imported model with several targets; see `target_codes`.
        """
        inferred = _pair(config)
        targets = tuple(code.strip("<>") for code in codes) or (target or inferred[1],)
        return cls(source or inferred[0], targets, bool(codes))

    @property
    def are_known(self) -> bool:
        """Whether all languages have a code."""
        return self.source != UNKNOWN[0] and self.targets[0] != UNKNOWN[1]

    def prefix(self, target: str) -> str:
        """Return the text to put before each source line for this target."""
        return f">>{target}<< " if self.marked else ""

    def name(self, code: str) -> str:
        """Return the English name of a language, or its code."""
        return NAMES.get(code, code)

    def listed(self) -> list[dict[str, object]]:
        """Return the reply of LibreTranslate's ``/languages``."""
        targets = {self.source: [*self.targets]}
        return [
            {"code": code, "name": self.name(code), "targets": targets.get(code, [])}
            for code in dict.fromkeys([self.source, *self.targets])
        ]


def target_codes(vocabularies: Vocabularies) -> list[str]:
    """Return the codes with which sources of an imported model begin; empty for other models."""
    vocabulary = getattr(vocabularies.source, "vocabulary", None)
    if vocabulary is None or vocabulary.source_prefix:
        return []
    return sorted(vocabulary.languages)


def _pair(config: Config) -> tuple[str, str]:
    """Source and target of the training direction, as far as names tell."""
    data = config.data
    if match := re.fullmatch(r"([a-z]{2,3})-([a-z]{2,3})", data.direction):
        return match.groups()
    grammar, _, variant = data.dataset.partition("/")
    pair = UNKNOWN
    if grammar == "pronouns_grammar":
        pair = "en", variant
    elif match := _PAIR.search(data.dataset):
        pair = match.groups()
    elif data.train_source and data.train_target:
        files = (data.train_source, data.train_target)
        endings = tuple(file.removesuffix(".gz").rpartition(".")[2] for file in files)
        pair = endings if set(endings) <= NAMES.keys() else UNKNOWN
    return pair[::-1] if pair != UNKNOWN and data.direction == "backward" else pair
