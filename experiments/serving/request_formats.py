# SPDX-License-Identifier: Apache-2.0
"""Requests and replies in the formats of LibreTranslate and of DeepL.

Pure functions between parsed JSON or form fields and `TranslationRequest`, without HTTP.
"""

import contextlib
import dataclasses
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.serving.languages import Languages
from transformer.fields import nearest
from transformer.translator import EMPTY_TRANSLATION, NO_TRANSLATION, Translation

LIBRETRANSLATE = ("q", "source", "target", "format", "alternatives", "api_key", "scores")
DEEPL = ("text", "source_lang", "target_lang")
DEEPL_IGNORED = ("split_sentences", "preserve_formatting", "model_type", "show_billed_characters")
"""Fields of DeepL's clients without a meaning here, where each line is a sentence."""
ATTENTION = ("source", "target", "language")


class RequestError(Exception):
    """A request that is refused: HTTP status and message."""

    def __init__(self, status: int, message: str, **headers: str):
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclasses.dataclass(frozen=True)
class TranslationRequest:
    """Texts to translate, and how to reply."""

    texts: tuple[str, ...]
    is_list: bool
    """Whether the reply is a list, as the request was."""
    target: str
    """Code of the target language."""
    alternatives: int = 0
    scores: bool = False
    detects: bool = False
    """Whether the source language is to be detected."""

    def lines(self) -> list[list[str]]:
        r"""Return the lines of each text; only \n ends a line, and \r\n is read as \n."""
        return [text.replace("\r\n", "\n").split("\n") for text in self.texts]


def parse_body(body: bytes, content_type: str) -> dict[str, Any]:
    """Parse a JSON object or a form; fields that a form repeats are lists.

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
        fields = urllib.parse.parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=10_000,
        )
    except ValueError as error:  # UnicodeDecodeError is one
        raise RequestError(400, f"the body is not a urlencoded form: {error}") from None
    single = {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
    for name in {"alternatives", "scores"} & single.keys():
        with contextlib.suppress(TypeError, ValueError):  # an invalid value is refused later
            single[name] = json.loads(single[name])
    return single


def libretranslate_request(
    fields: Mapping[str, Any], languages: Languages, most_results: int
) -> TranslationRequest:
    """Parse the fields of ``POST /translate``.

    Raises:
      RequestError: for a field that is unknown, missing or invalid.
    """
    _require_known(fields, LIBRETRANSLATE)
    texts, is_list = _texts(fields, "q"), isinstance(fields["q"], list)
    source = fields.get("source", "auto")
    target = _check_languages(source, fields.get("target"), languages)
    if fields.get("format", "text") != "text":
        raise RequestError(
            400, f"format is {_shown(fields['format'])}, but only 'text' is translated, not markup"
        )
    alternatives, scores = fields.get("alternatives", 0), fields.get("scores", False)
    if type(alternatives) is not int or not 0 <= alternatives < most_results:
        raise RequestError(
            400,
            f"alternatives is {_shown(alternatives)}, but this service gives 0 to "
            f"{most_results - 1}",
        )
    if type(scores) is not bool:
        raise RequestError(400, f"scores is {_shown(scores)}; give true or false")
    return TranslationRequest(texts, is_list, target, alternatives, scores, source == "auto")


def deepl_request(fields: Mapping[str, Any], languages: Languages) -> TranslationRequest:
    """Parse the fields of ``POST /v2/translate``.

    Raises:
      RequestError: for a field that is unknown, missing or invalid.
    """
    _require_known(fields, (*DEEPL, *DEEPL_IGNORED))
    texts = _texts(fields, "text")
    if "target_lang" not in fields:
        raise RequestError(400, "target_lang is missing")
    source = _nearest_code(fields.get("source_lang") or "auto", ("auto", languages.source))
    target = _nearest_code(fields["target_lang"], languages.targets)
    return TranslationRequest(texts, True, _check_languages(source, target, languages))


def _nearest_code(code: Any, known: Sequence[str]) -> Any:
    """Return the model's spelling of one of DeepL's codes, or the code itself if it has none.

    A region is ignored where the model has one variant of the language: ``de-CH`` is ``de``, and
    ``EN`` is ``en-US`` if that is the only English.
    """
    if not isinstance(code, str):
        return code
    exact, language = code.lower(), code.lower().partition("-")[0]
    spelled = {each.lower(): each for each in known}
    variants = [each for each in known if each.lower().partition("-")[0] == exact]
    only_variant = variants[0] if len(variants) == 1 else code
    return spelled.get(exact) or spelled.get(language) or only_variant


def attention_request(fields: Mapping[str, Any], languages: Languages) -> tuple[str, str, str]:
    """Parse the fields of ``POST /attention``: a source line, its translation, its language.

    Raises:
      RequestError: for a field that is unknown, missing or invalid.
    """
    _require_known(fields, ATTENTION)
    for name in ("source", "target"):
        if _texts(fields, name) != (fields[name],) or "\n" in fields[name]:
            raise RequestError(400, f"{name} is not one line of text")
    language = _check_languages("auto", fields.get("language"), languages)
    return fields["source"], fields["target"], language


def libretranslate_reply(
    request: TranslationRequest, nbest: Sequence[Sequence[Translation]], languages: Languages
) -> dict[str, Any]:
    """Build the reply of ``POST /translate``.

    Args:
      request: the parsed request.
      nbest: translations of each line of all texts that is not blank.
      languages: languages of the model.
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
    """Build the reply of ``POST /v2/translate``; see `libretranslate_reply`."""
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
        found = [next(following) if line.strip() else [EMPTY_TRANSLATION] for line in lines]
        versions: dict[str, float] = {}
        for index in range(request.alternatives + 1):
            chosen = [_at(results, index) for results in found]
            text = "\n".join(each.text for each in chosen)
            versions.setdefault(text, sum(each.score for each in chosen))
        texts.append(list(versions.items()))
    return texts


def _at(results: Sequence[Translation], index: int) -> Translation:
    exists = index < len(results) and results[index] is not NO_TRANSLATION
    return results[index] if exists else results[0]


def _require_known(fields: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            raise RequestError(
                400, f"unknown field {_shown(name)}; did you mean {nearest(name, known)!r}?"
            )


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """One text or several, in characters that UTF-8 can encode."""
    if name not in fields:
        raise RequestError(400, f"{name} is missing")
    texts = fields[name] if isinstance(fields[name], list) else [fields[name]]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise RequestError(400, f"{name} is not text; give a string or a list of strings")
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(400, f"{name} has half of a surrogate pair") from None
    return tuple(texts)


def _check_languages(source: Any, target: Any, languages: Languages) -> str:
    """Require the languages of the model, or ``auto`` as the source; return the target."""
    if target is None and not languages.marked:
        target = languages.targets[0]
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
    return target


def _shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
