# SPDX-License-Identifier: Apache-2.0
"""Requests and replies in the formats of LibreTranslate and of DeepL.

Pure functions between parsed JSON or form fields and `TranslationRequest`, tested without HTTP.
"""

import dataclasses
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.serving.languages import Languages
from transformer.fields import nearest
from transformer.translator import EMPTY_TRANSLATION, NO_TRANSLATION, Translation

_MOST_FORM_FIELDS = 10_000

LIBRETRANSLATE = ("q", "source", "target", "format", "alternatives", "api_key", "scores")
DEEPL = ("text", "source_lang", "target_lang")
DEEPL_IGNORED = ("split_sentences", "preserve_formatting", "model_type", "show_billed_characters")
"""Fields of DeepL's clients that change nothing here: a line is a sentence."""
ATTENTION = ("source", "target", "language")


class RequestError(Exception):
    """A request that is refused: HTTP status and message."""

    def __init__(self, status: int, message: str, **headers: str):
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclasses.dataclass(frozen=True)
class TranslationRequest:
    """Texts to translate, and how to reply."""

    texts: tuple[str, ...]
    is_list: bool
    """Whether the reply is a list, as the request was."""
    alternatives: int = 0
    scores: bool = False
    detects: bool = False
    """Whether the source language is to be detected."""
    target: str = ""
    """Code of the target language."""

    def lines(self) -> list[list[str]]:
        r"""The lines of each text; only \n ends a line, and \r\n is read as \n."""
        return [text.replace("\r\n", "\n").split("\n") for text in self.texts]


def parse_body(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields of a JSON object or of a form.

    Fields that a form repeats are lists.

    Raises:
      RequestError: for other content, and for anything that is not one object in UTF-8.
    """
    kind = content_type.partition(";")[0].strip().lower()
    is_form = kind == "application/x-www-form-urlencoded"
    if is_form and not body.startswith(b"{"):  # `curl -d` calls any content a form
        return _parse_form(body)
    if kind not in ("application/json", "") and not is_form:
        raise RequestError(
            415, f"the content type is {kind!r}; send application/json, or a urlencoded form"
        )
    try:
        fields = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(400, f"byte {error.start + 1} of the body is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        raise RequestError(400, f"the body is not JSON: {reason}") from None
    if not isinstance(fields, dict):
        raise RequestError(400, "the body is not a JSON object")
    return fields


def _parse_form(body: bytes) -> dict[str, Any]:
    try:
        lists = urllib.parse.parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=_MOST_FORM_FIELDS,
        )
    except ValueError as error:  # UnicodeDecodeError is one
        raise RequestError(400, f"the body is not a urlencoded form: {error}") from None
    fields: dict[str, Any] = {
        name: values[0] if len(values) == 1 else values for name, values in lists.items()
    }
    for name, parse in (("alternatives", int), ("scores", _parse_boolean)):
        if name in fields:
            try:
                fields[name] = parse(fields[name])
            except (TypeError, ValueError, KeyError, AttributeError):
                raise RequestError(400, f"{name} is {fields[name]!r}") from None
    return fields


def _parse_boolean(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.lower()]


def libretranslate_request(
    fields: Mapping[str, Any], languages: Languages, most_results: int
) -> TranslationRequest:
    """Parse the fields of ``POST /translate``.

    Raises:
      RequestError: for a field that is unknown, missing or invalid.
    """
    _require_known(fields, LIBRETRANSLATE)
    texts, is_list = _texts(fields, "q")
    target = fields.get("target", None if languages.marked else languages.target)
    source = fields.get("source", "auto")
    _check_languages(source, target, languages)
    if fields.get("format", "text") != "text":
        raise RequestError(
            400, f"format is {_shown(fields['format'])}, but only 'text' is translated, not markup"
        )
    alternatives = fields.get("alternatives", 0)
    if isinstance(alternatives, bool) or not isinstance(alternatives, int):
        raise RequestError(400, f"alternatives is {_shown(alternatives)}; give a whole number")
    if not 0 <= alternatives < most_results:
        raise RequestError(
            400, f"alternatives is {alternatives}, but this service gives 0 to {most_results - 1}"
        )
    scores = fields.get("scores", False)
    if not isinstance(scores, bool):
        raise RequestError(400, f"scores is {_shown(scores)}; give true or false")
    return TranslationRequest(texts, is_list, alternatives, scores, source == "auto", target)


def deepl_request(fields: Mapping[str, Any], languages: Languages) -> TranslationRequest:
    """Parse the fields of ``POST /v2/translate``.

    Raises:
      RequestError: for a field that is unknown, missing or invalid.
    """
    _require_known(fields, (*DEEPL, *DEEPL_IGNORED))
    texts, _ = _texts(fields, "text")
    if "target_lang" not in fields:
        raise RequestError(400, "target_lang is missing")
    codes = []
    for name in ("source_lang", "target_lang"):
        code = fields.get(name) or "auto"
        if not isinstance(code, str):
            raise RequestError(400, f"{name} is {_shown(code)}; give a string")
        known = ("auto", languages.source) if name == "source_lang" else languages.targets
        codes.append(_nearest_code(code, known))
    _check_languages(*codes, languages)
    return TranslationRequest(texts, True, target=codes[1])


def _nearest_code(code: str, known: Sequence[str]) -> str:
    """The model's spelling of a code of DeepL's, or the code itself if the model has none like it.

    A region that the model does not tell apart is ignored: ``de-CH`` is ``de``, ``EN`` is ``en-US``
    if that is the only English.
    """
    exact, language = code.lower(), code.lower().partition("-")[0]
    spelled = {each.lower(): each for each in known}
    alike = [each for each in known if each.lower().partition("-")[0] == exact]
    if exact not in spelled and language not in spelled and len(alike) == 1:
        return alike[0]
    return spelled.get(exact, spelled.get(language, code))


def attention_request(fields: Mapping[str, Any], languages: Languages) -> tuple[str, str, str]:
    """Parse the fields of ``POST /attention``: a line of source, its translation, its language.

    Raises:
      RequestError: for a field that is unknown, missing or invalid.
    """
    _require_known(fields, ATTENTION)
    lines = []
    for name in ATTENTION[:2]:
        [line], is_list = _texts(fields, name, most=1)
        if is_list or "\n" in line:
            raise RequestError(400, f"{name} is not one line of text")
        lines.append(line)
    language = fields.get("language", None if languages.marked else languages.target)
    _check_languages("auto", language, languages)
    return *lines, language


def libretranslate_reply(
    request: TranslationRequest, nbest: Sequence[Sequence[Translation]], languages: Languages
) -> dict[str, Any]:
    """The reply of ``POST /translate``.

    Args:
      request: as parsed.
      nbest: translations of each line of all texts that is not blank.
      languages: of the model.
    """
    texts = _joined(request, nbest)
    reply: dict[str, Any] = {"translatedText": [versions[0][0] for versions in texts]}
    if request.alternatives:
        reply["alternatives"] = [[text for text, _ in versions[1:]] for versions in texts]
    if request.scores:
        reply["scores"] = [[round(score, 6) for _, score in versions] for versions in texts]
    if request.detects:
        reply["detectedLanguage"] = [{"language": languages.source, "confidence": 0} for _ in texts]
    return reply if request.is_list else {name: values[0] for name, values in reply.items()}


def deepl_reply(
    request: TranslationRequest, nbest: Sequence[Sequence[Translation]], languages: Languages
) -> dict[str, Any]:
    """The reply of ``POST /v2/translate``; see `libretranslate_reply`."""
    detected = languages.source.upper()
    return {
        "translations": [
            {"detected_source_language": detected, "text": versions[0][0]}
            for versions in _joined(request, nbest)
        ]
    }


def _joined(
    request: TranslationRequest, nbest: Sequence[Sequence[Translation]]
) -> list[list[tuple[str, float]]]:
    """The translations of each text with their scores, best first.

    Alternative k of a text joins the k-th translation of each line, or the best one of a line that
    has fewer; its score is their sum. Alternatives that repeat an earlier one are left out.
    """
    following = iter(nbest)
    texts = []
    for lines in request.lines():
        of_lines = [next(following) if line.strip() else [EMPTY_TRANSLATION] for line in lines]
        versions: dict[str, float] = {}
        for index in range(request.alternatives + 1):
            chosen = [_at(translations, index) for translations in of_lines]
            text = "\n".join(one.text for one in chosen)
            versions.setdefault(text, sum(one.score for one in chosen))
        texts.append(list(versions.items()))
    return texts


def _at(translations: Sequence[Translation], index: int) -> Translation:
    found = translations[index] if index < len(translations) else NO_TRANSLATION
    return translations[0] if found is NO_TRANSLATION else found


def _require_known(fields: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            raise RequestError(
                400, f"unknown field {_shown(name)}; did you mean {nearest(name, known)!r}?"
            )


def _texts(
    fields: Mapping[str, Any], name: str, most: int | None = None
) -> tuple[tuple[str, ...], bool]:
    """One text or several, in characters that UTF-8 can encode."""
    if name not in fields:
        raise RequestError(400, f"{name} is missing")
    value = fields[name]
    texts = value if isinstance(value, list) else [value]
    if not texts or (most and len(texts) > most):
        raise RequestError(400, f"{name} has {len(texts)} texts; give {most or 'at least 1'}")
    for text in texts:
        if not isinstance(text, str):
            raise RequestError(400, f"{name} is not text; give a string or a list of strings")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            raise RequestError(400, f"{name} has half of a surrogate pair, {code}") from None
    return tuple(texts), isinstance(value, list)


def _check_languages(source: Any, target: Any, languages: Languages) -> None:
    """Require the languages of the model, or ``auto`` as the source."""
    for side, code, known in (
        ("source", source, ("auto", languages.source)),
        ("target", target, languages.targets),
    ):
        if code not in known:
            targets = " or ".join(map(repr, languages.targets))
            raise RequestError(
                400,
                f"the {side} language is {_shown(code)}, but this model translates from "
                f"{languages.source!r} to {targets}",
            )


def _shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
