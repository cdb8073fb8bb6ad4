// SPDX-License-Identifier: Apache-2.0
// What the page computes from a sentence: the encoder, the search, and the decoder's second pass
// over the best translation, in which every number is kept.

const pageData = JSON.parse(document.getElementById("model").textContent);
const special = (({pad_id, bos_id, eos_id, unk_id}) => ({pad_id, bos_id, eos_id, unk_id}))(
  pageData.config);
const tokenizer = makeTokenizer(pageData.pieces, special);
const model = {config: pageData.config, params: trainedParameters(pageData)};

// Every step of the search for the translation of a memory, by `beamSearch`.
function searchSteps(memory, sourceLength, changes, options = {}) {
  const search = {...pageData.decode, ...options};
  const next = (token, cache) => {
    const decoded = decode(model, cache, [token], changes);
    return {logits: decoded.logits[0], cache: decoded.cache};
  };
  return [...beamSearch(next, startDecoding(model, memory),
    longestOutput(sourceLength, search), search, special)];
}

// The decoder reads BOS and a translation, and predicts each of its tokens.
function readTranslation(anyModel, memory, tokens, changes) {
  return decode(anyModel, startDecoding(anyModel, memory),
    [special.bos_id, ...tokens.slice(0, -1)], changes);
}

// Longer sentences are cut, as the library cuts them.
function sourceTokens(text) {
  const tokens = tokenizer.encode(text), longest = pageData.decode.longest_source;
  return tokens.length > longest ? [...tokens.slice(0, longest - 1), tokens.at(-1)] : tokens;
}

// Translate a text, and keep everything.
function translate(text, changes = NO_CHANGES, options = {}) {
  const source = sourceTokens(text);
  const encoder = encode(model, source.map(({id}) => id), changes);
  const steps = searchSteps(encoder.memory, source.length, changes, options);
  const {finished} = steps.at(-1), {tokens} = finished[0];
  const decoder = readTranslation(model, encoder.memory, tokens, changes);
  return {
    source, encoder, steps, results: finished, tokens, decoder,
    translation: tokenizer.decode(tokens),
    probabilities: decoder.logits.map(softmax),  // [T, V]
  };
}

// The first position at which two translations differ, and both tokens there.
function contrastOf(first, second) {
  const step = first.tokens.findIndex((token, t) => token !== second.tokens[t]);
  if (step < 0 || step >= second.tokens.length) return null;
  const answers = [first.tokens[step], second.tokens[step]];
  return {step, prefix: first.tokens.slice(0, step), answers};
}

// The effect of one state of the encoder: how the probabilities of the two answers change when it
// alone is overwritten with that of the other sentence, which has the same number of tokens.
function patchedAnswers(contrast, first, other, level, position) {
  const patches = [{level, position, state: other.encoder.states[level][position]}];
  // After the last layer there is nothing left to encode.
  const memory = level === first.encoder.layers.length
    ? finalNorm(model, "encoder", patched(first.encoder.states[level], patches, level))
    : encode(model, first.source.map(({id}) => id), {gates: null, patches}).memory;
  return answerProbabilities(contrast, memory, NO_CHANGES);
}

// The probabilities of the two answers after their common prefix, for a memory.
function answerProbabilities({prefix, answers}, memory, changes) {
  const read = [special.bos_id, ...prefix];
  const {logits} = decode(model, startDecoding(model, memory), read, changes);
  const probabilities = softmax(logits.at(-1));
  return answers.map(token => probabilities[token]);
}
