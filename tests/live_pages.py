# SPDX-License-Identifier: Apache-2.0
"""Compare the model of a live page with that of the library."""

import base64
import functools

import jax
import numpy as np
import pytest

COMPUTE = """(sentences) => sentences.map(text => {
  const {source, results, tokens, translation, decoder} = translate(text);
  const bytes = decoder.logits.flatMap(row => [...new Uint8Array(Float32Array.from(row).buffer)]);
  return {source: source.map(({id}) => id), translation, tokens, result: results[0],
    logits: btoa(bytes.map(byte => String.fromCharCode(byte)).join(""))};
})"""


def logits_error(shown, translator, sentences):
    """The largest difference of a logit of the page from the library's.

    Tokens and translations must be equal, and scores to 1e-3.
    """
    errors = []
    expected = translator(sentences)
    ids = translator.tokenizer.encode(sentences)
    for start in range(0, len(sentences), 20):
        found = shown.evaluate(COMPUTE, sentences[start : start + 20])
        for each, best, source in zip(found, expected[start:], ids[start:], strict=False):
            assert each["source"] == source
            assert each["translation"] == best.text
            assert each["tokens"] == list(best.tokens)
            assert each["result"]["score"] == pytest.approx(best.score, abs=1e-3)
            assert each["result"]["logProb"] == pytest.approx(best.log_prob, abs=1e-3)
            logits = np.frombuffer(base64.b64decode(each["logits"]), np.float32)
            library = logits_of(translator, translator.params, source, best.tokens)
            errors.append(np.abs(logits - library.ravel()).max())
    assert len(errors) == len(sentences)
    return max(errors)


def logits_of(translator, params, source, tokens):
    """The library's logits of a translation."""
    padded = np.zeros((2, 90), np.int32)
    padded[0, : len(source)] = source
    padded[1, : len(tokens)] = [translator.config.model.bos_id, *tokens[:-1]]
    return np.asarray(forward(translator.model)(params, padded[:1], padded[1:]))[0, : len(tokens)]


@functools.cache
def forward(model):
    """The compiled model, for one padded sentence pair."""
    return jax.jit(lambda params, *tokens: model.apply({"params": params}, *tokens))
