# SPDX-License-Identifier: Apache-2.0
"""Requests in the shapes of LibreTranslate and DeepL are parsed, or refused by name."""

import json

import pytest

from experiments.serving.languages import Languages
from experiments.serving.request_formats import (
    RequestError,
    TranslationRequest,
    attention_request,
    deepl_reply,
    deepl_request,
    libretranslate_reply,
    libretranslate_request,
    parse_body,
)
from transformer.config import Config, DataConfig
from transformer.translator import NO_TRANSLATION, Translation

LANGUAGES = Languages("en", ("de",))
JSON = "application/json; charset=utf-8"
FORM = "application/x-www-form-urlencoded"


def parse(**fields):
    return libretranslate_request(fields, LANGUAGES, 4)


def test_a_json_object_is_parsed():
    body = json.dumps({"q": "ä\n\u2028 \U0001f600", "alternatives": 2}).encode()
    assert parse_body(body, JSON) == {"q": "ä\n\u2028 \U0001f600", "alternatives": 2}
    assert parse_body(body, "") == parse_body(body, JSON)


def test_a_form_is_parsed_and_repeated_fields_are_a_list():
    body = b"q=a+b%0Ac&q=%C3%A4&alternatives=2&scores=true"
    assert parse_body(body, FORM) == {"q": ["a b\nc", "ä"], "alternatives": 2, "scores": True}
    assert parse_body(b"q=5", FORM) == {"q": "5"}
    assert parse_body(b'{"q": "a"}', FORM) == {"q": "a"}, "what curl -d sends"


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (b"{", JSON, 400, "not JSON: Expecting property name"),
        (b'"text"', JSON, 400, "not a JSON object"),
        (b'{"q": "\xff"}', JSON, 400, "byte 8 of the body is not UTF-8"),
        (b"[" * 100_000, JSON, 400, "not JSON: "),
        (b'{"q": ' + b"9" * 5000 + b"}", JSON, 400, "not JSON: "),
        (b"q=%FF", FORM, 400, "not a urlencoded form"),
        (b"no form", FORM, 400, "not a urlencoded form"),
        (b"&".join([b"q=a"] * 10_001), FORM, 400, "not a urlencoded form"),
        (b"<q/>", "text/xml", 415, "content type is 'text/xml'"),
    ],
)
def test_other_bodies_are_refused(body, kind, status, message):
    with pytest.raises(RequestError, match=message) as refusal:
        parse_body(body, kind)
    assert refusal.value.status == status


def test_the_fields_of_libretranslate_are_understood():
    assert parse(q="a") == TranslationRequest(("a",), False, "de", detects=True)
    assert parse(q=["a", "b"], source="en", target="de", format="text", api_key="x") == (
        TranslationRequest(("a", "b"), True, "de")
    )
    assert parse(q="", source="auto", alternatives=3, scores=True) == (
        TranslationRequest(("",), False, "de", 3, True, True)
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "q is missing"),
        ({"q": ["a", None]}, "q is not text"),
        ({"q": []}, "q is not text"),
        ({"q": "\ud800"}, "half of a surrogate pair"),
        ({"q": "a", "sorce": "en"}, "unknown field 'sorce'; did you mean 'source'"),
        ({"q": "a", "target": "fr"}, "the target language is 'fr', but this model translates"),
        ({"q": "a", "source": ["en"]}, "the source language is"),
        ({"q": "a", "source": "x" * 10_000}, r"the source language is 'x+\.\.\."),
        ({"q": "a", "format": "html"}, "format is 'html', but only 'text'"),
        ({"q": "a", "alternatives": 4}, "alternatives is 4, but this service gives 0 to 3"),
        ({"q": "a", "alternatives": -1}, "alternatives is -1"),
        ({"q": "a", "alternatives": True}, "alternatives is True"),
        (parse_body(b"q=a&alternatives=many", FORM), "alternatives is 'many'"),
        (parse_body(b"q=a&scores=1", FORM), "scores is 1; give true or false"),
    ],
)
def test_invalid_fields_are_refused_by_name(fields, message):
    with pytest.raises(RequestError, match=message) as refusal:
        libretranslate_request(fields, LANGUAGES, 4)
    assert refusal.value.status == 400
    assert len(str(refusal.value)) < 300


def test_the_fields_of_deepl_are_understood():
    fields = {"text": ["a", "b"], "source_lang": "EN", "target_lang": "DE"}
    assert deepl_request(fields, LANGUAGES) == TranslationRequest(("a", "b"), True, "de")
    fields = {"text": "a", "target_lang": "de-CH", "source_lang": None, "split_sentences": "0"}
    assert deepl_request(fields, LANGUAGES) == TranslationRequest(("a",), True, "de")
    for wrong, message in (
        ({"text": ["a"]}, "target_lang is missing"),
        ({"text": ["a"], "target_lang": "FR"}, "the target language is 'FR'"),
        ({"text": ["a"], "target_lang": 7}, "the target language is 7"),
        ({"text": ["a"], "target_lang": "DE", "tag_handling": "xml"}, "field 'tag_handling'"),
    ):
        with pytest.raises(RequestError, match=message):
            deepl_request(wrong, LANGUAGES)


@pytest.mark.parametrize(
    ("code", "targets", "found"),
    [
        ("PT-BR", ("pt-BR",), "pt-BR"),
        ("zh-hans", ("zh-Hans", "zh"), "zh-Hans"),
        ("ZH-HANT", ("zh-Hans", "zh"), "zh"),
        ("srp_cyrl", ("bos_Latn", "srp_Cyrl"), "srp_Cyrl"),
        ("PT", ("pt-BR",), "pt-BR"),
        ("PT-PT", ("pt-BR",), None),
        ("PT", ("pt-BR", "pt-PT"), None),
        ("es-419", ("de",), None),
    ],
)
def test_codes_of_deepl_are_those_of_the_model_but_another_region_is_refused(code, targets, found):
    fields, languages = {"text": ["a"], "target_lang": code}, Languages("en", targets)
    if found:
        assert deepl_request(fields, languages).target == found
    else:
        with pytest.raises(RequestError, match=f"the target language is '{code}', but"):
            deepl_request(fields, languages)


def test_attention_takes_one_line():
    assert attention_request({"source": "a b", "target": "c"}, LANGUAGES) == ("a b", "c", "de")
    for wrong in ({}, {"target": "c", "source": "a\nb"}, {"target": "c", "source": ["a"]}):
        with pytest.raises(RequestError, match="source is"):
            attention_request(wrong, LANGUAGES)


def test_the_lines_of_a_text_end_at_line_feeds_only():
    request = parse(q="a\r\nb\u2028c\n\n d")
    assert request.lines() == [["a", "b\u2028c", "", " d"]]


def translation(text, score):
    return Translation(text, score, 2 * score, (4, 2))


def test_replies_join_the_lines_of_each_text():
    request = parse(q=["a\n\nb", "c"], alternatives=2, scores=True, source="en")
    nbest = [
        [translation("A", -1.0), translation("AA", -2.0), translation("AAA", -3.0)],
        [translation("B", -0.25), translation("BB", -0.5), NO_TRANSLATION],
        [translation("C", -1.0), NO_TRANSLATION, NO_TRANSLATION],
    ]
    assert libretranslate_reply(request, nbest, LANGUAGES) == {
        "translatedText": ["A\n\nB", "C"],
        "alternatives": [["AA\n\nBB", "AAA\n\nB"], []],
        "scores": [[-1.25, -2.5, -3.25], [-1.0]],
    }
    assert libretranslate_reply(parse(q="a"), nbest[:1], LANGUAGES) == {
        "translatedText": "A",
        "detectedLanguage": {"language": "en", "confidence": 0},
    }
    assert deepl_reply(request, nbest, LANGUAGES) == {
        "translations": [
            {"detected_source_language": "EN", "text": "A\n\nB"},
            {"detected_source_language": "EN", "text": "C"},
        ]
    }


@pytest.mark.parametrize(
    ("data", "pair"),
    [
        ({}, ("en", "de")),
        ({"dataset": "pronouns_grammar/fr", "direction": "backward"}, ("fr", "en")),
        ({"dataset": "wmt14_translate/de-en"}, ("de", "en")),
        ({"dataset": "wmt14_translate/de-en", "direction": "en-de"}, ("en", "de")),
        ({"dataset": "ted_hrlr_translate/pt_to_en"}, ("pt", "en")),
        ({"dataset": "scan_grammar/simple"}, ("source", "target")),
        ({"train_source": "a/train.en", "train_target": "t.de.gz"}, ("en", "de")),
        ({"train_source": "a.src", "train_target": "a.tgt"}, ("source", "target")),
    ],
)
def test_languages_are_those_that_the_data_names(data, pair):
    kind = {"dataset": "text_files"} if "train_source" in data else {}
    config = Config(data=DataConfig(**(kind | data)))
    languages = Languages.of(config)
    assert (languages.source, *languages.targets) == pair
    assert languages.are_known == (pair != ("source", "target"))
    assert Languages.of(config, target="nl").targets == ("nl",)


def test_a_model_of_several_targets_requires_one_of_them():
    codes = (">>deu<<", ">>nld<<")
    languages = Languages.of(Config(data=DataConfig(dataset="x")), source="en", codes=codes)
    assert languages.targets == ("deu", "nld")
    assert languages.prefix("nld") == ">>nld<< "
    assert LANGUAGES.prefix("de") == ""
    assert languages.listed()[0] == {"code": "en", "name": "English", "targets": ["deu", "nld"]}
    assert libretranslate_request({"q": "a", "target": "nld"}, languages, 1).target == "nld"
    assert deepl_request({"text": "a", "target_lang": "NLD"}, languages).target == "nld"
    with pytest.raises(RequestError, match="language is None, .* from 'en' to 'deu' or 'nld'"):
        libretranslate_request({"q": "a"}, languages, 1)
    with pytest.raises(RequestError, match="is 'fra'"):
        attention_request({"source": "a", "target": "b", "language": "fra"}, languages)
