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
_GRAMMARS = {"pronouns_grammar": "en"}
"""Source language of the embedded corpora that are named after their target language."""
_PAIR = re.compile(r"(?:^|[/_.])([a-z]{2,3})(?:-|_to_)([a-z]{2,3})(?:$|[/_.])")


@dataclasses.dataclass(frozen=True)
class Languages:
    """Codes of the source and of the targets, such as ``en`` and ``de``."""

    source: str
    targets: tuple[str, ...]
    marked: bool = False
    """Whether the source must begin with the code of the target, as in ``>>deu<< the house``."""

    @classmethod
    def of(
        cls,
        config: Config,
        source: str | None = None,
        target: str | None = None,
        codes: Sequence[str] = (),
    ) -> "Languages":
        """Languages from the arguments, or else inferred from the names of corpora and files.

        Args:
          config: of the model.
          source: code of the source.
          target: code of the target.
          codes: of an imported model with several targets (`target_codes`), instead of `target`.
        """
        found = _pair(config) or UNKNOWN
        targets = tuple(code.strip("<>") for code in codes) or (target or found[1],)
        return cls(source or found[0], targets, bool(codes))

    @property
    def target(self) -> str:
        """The first target."""
        return self.targets[0]

    @property
    def are_known(self) -> bool:
        """Whether all languages have a code."""
        return self.source != UNKNOWN[0] and self.target != UNKNOWN[1]

    def prefix(self, target: str) -> str:
        """Text to put before each source line for this target."""
        return f">>{target}<< " if self.marked else ""

    def name(self, code: str) -> str:
        """English name of a language, or its code."""
        return NAMES.get(code, code)

    def listed(self) -> list[dict[str, object]]:
        """The reply of LibreTranslate's ``/languages``."""
        source = {"code": self.source, "name": self.name(self.source), "targets": [*self.targets]}
        others = [code for code in self.targets if code != self.source]
        return [source, *({"code": c, "name": self.name(c), "targets": []} for c in others)]


def target_codes(vocabularies: Vocabularies) -> list[str]:
    """Target codes of an imported model whose sources begin with one; empty for other models."""
    vocabulary = getattr(vocabularies.source, "vocabulary", None)
    if vocabulary is None or vocabulary.source_prefix:
        return []
    return sorted(vocabulary.languages)


def _pair(config: Config) -> tuple[str, str] | None:
    """Source and target of the training direction, or None if unknown."""
    data = config.data
    if match := re.fullmatch(r"([a-z]{2,3})-([a-z]{2,3})", data.direction):
        return match.groups()
    pair = None
    grammar, _, variant = data.dataset.partition("/")
    if grammar in _GRAMMARS:
        pair = _GRAMMARS[grammar], variant
    elif match := _PAIR.search(data.dataset):
        pair = match.groups()
    elif data.train_source and data.train_target:
        endings = [
            path.removesuffix(".gz").rpartition(".")[2]
            for path in (data.train_source, data.train_target)
        ]
        pair = tuple(endings) if all(ending in NAMES for ending in endings) else None
    return pair[::-1] if pair and data.direction == "backward" else pair
