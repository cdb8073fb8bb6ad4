// SPDX-License-Identifier: Apache-2.0
// The encoder-decoder Transformer ("Attention Is All You Need"): token ids in, logits out.
//
// Letters of shapes: S source positions, T target positions, D d_model, N heads, H size of a head,
// F d_ff, V vocabulary. A matrix [T, D] is an array of T rows. Every function returns its
// intermediate values as well, which are what the page draws.
//
// `model` is {config, params}; `params` has the names of the library. `changes` are interventions:
//   gates: {encoder, decoder, cross}[layer][head], a factor of the head's output
//   patches: [{level, position, state}], states of the encoder that are overwritten;
//            level 0 is the embedding, level L the output of layer L

const NO_CHANGES = {gates: null, patches: []};

// Embedding and positions (paper 3.4, 3.5).

// PE[p, 2i] = sin(p / 10000^(2i/D)), PE[p, 2i+1] = cos(the same)
function positionEncoding(position, width) {
  return Float64Array.from({length: width}, (_, d) => {
    const angle = position / 10000 ** ((d - d % 2) / width);
    return d % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

// [T] -> [T, D]
function embed({config, params}, tokens, firstPosition = 0) {
  const factor = Math.sqrt(config.d_model);
  const embedded = tokens.map(token =>
    Float64Array.from(params.embedding.table[token], value => value * factor));
  const positions = tokens.map((_, t) => positionEncoding(firstPosition + t, config.d_model));
  return {embedded, positions, output: addMatrices(embedded, positions)};
}

// Layers (paper 3.1, 3.3).

// (x - mean) / sqrt(variance + epsilon) * scale + bias, row by row
function layerNorm({scale, bias}, x, epsilon) {
  return x.map(row => {
    const average = row.reduce((a, b) => a + b) / row.length;
    const centered = row.map(value => value - average);
    const deviation = Math.sqrt(dot(centered, centered) / row.length + epsilon);
    return centered.map((value, d) => value / deviation * scale[d] + bias[d]);
  });
}

// FFN(x) = max(0, x W1 + b1) W2 + b2: [T, D] -> [T, F] -> [T, D]
function feedForward({kernel_in, bias_in, kernel_out, bias_out}, x) {
  const hidden = matmul(x, kernel_in)
    .map(row => addVectors(row, bias_in).map(value => Math.max(0, value)));
  return {hidden, output: matmul(hidden, kernel_out).map(row => addVectors(row, bias_out))};
}

// The residual connection around a sublayer.
//   post: LayerNorm(x + Sublayer(x)), as in the paper;  pre: x + Sublayer(LayerNorm(x))
function residual({config}, norm, x, sublayer) {
  const normalized = rows => layerNorm(norm, rows, config.norm_epsilon);
  const read = config.norm === "pre" ? normalized(x) : x;
  const inside = sublayer(read);
  const total = addMatrices(x, inside.output);
  return {input: x, read, inside, total, output: config.norm === "pre" ? total : normalized(total)};
}

// Attention (paper 3.2).

// softmax(Q K^T / sqrt(d_k)) V of one head: [T, H], [S, H], [S, H] -> [T, H]
// Query t sees the keys 0 to lastKey(t).
function attention(query, key, value, lastKey) {
  const products = dotProducts(query, key);  // [T, S]
  const scores = products.map(row => row.map(product => product / Math.sqrt(key[0].length)));
  const weights = scores.map((row, t) =>
    softmax(row.map((score, s) => s <= lastKey(t) ? score : -Infinity)));
  return {query, key, value, products, scores, weights, z: matmul(weights, value)};
}

// The keys and values of all heads: [S, D] -> N matrices [S, H] each
function keysAndValues(kernels, x) {
  return {
    keys: kernels.key.map(kernel => matmul(x, kernel)),
    values: kernels.value.map(kernel => matmul(x, kernel)),
  };
}

// Concat(head_1, ..., head_N) W^O. As each head has its rows of W^O, that is the sum over heads of
// z W^O_head; a gate of 0 switches a head off.
function multiHeadAttention(kernels, x, {keys, values}, lastKey, gates) {
  const heads = kernels.query.map((kernel, n) => {
    const head = attention(matmul(x, kernel), keys[n], values[n], lastKey);
    const gate = gates ? gates[n] : 1;
    const z = gate === 1 ? head.z : head.z.map(row => row.map(value => gate * value));
    return {...head, z, output: matmul(z, kernels.output[n])};  // [T, D]
  });
  return {heads, output: addMatrices(...heads.map(head => head.output))};
}

// The two stacks (paper 3.1, figure 1).

const everyKey = () => Infinity;

// Overwrite states of the encoder: [S, D] -> [S, D]
function patched(x, patches, level) {
  return x.map((row, s) =>
    patches.find(patch => patch.level === level && patch.position === s)?.state ?? row);
}

function layersOf({params}, side) {
  return Array.from({length: Object.keys(params[side]).filter(name => /^layer_/.test(name)).length},
    (_, index) => params[side][`layer_${index}`]);
}

// With post-norm the last layer ends with a norm already.
function finalNorm({config, params}, side, x) {
  return config.norm === "pre" ? layerNorm(params[side].final_norm, x, config.norm_epsilon) : x;
}

// The memory, one vector for each source token: [S] -> [S, D]
function encode(model, source, {gates, patches} = NO_CHANGES) {
  const embedding = embed(model, source);
  let x = patched(embedding.output, patches, 0);
  const states = [x];
  const layers = layersOf(model, "encoder").map((layer, index) => {
    const attended = residual(model, layer.self_attention_residual.norm, x, y =>
      multiHeadAttention(layer.self_attention, y, keysAndValues(layer.self_attention, y), everyKey,
        gates?.encoder[index]));
    const transformed = residual(model, layer.feed_forward_residual.norm, attended.output, y =>
      feedForward(layer.feed_forward, y));
    x = patched(transformed.output, patches, index + 1);
    states.push(x);
    return {selfAttention: attended, feedForward: transformed};
  });
  return {embedding, layers, states, memory: finalNorm(model, "encoder", x)};
}

// What the decoder keeps: for every layer the keys and values of the memory, which are computed
// once, and those of the target positions so far.
function startDecoding(model, memory) {
  return layersOf(model, "decoder").map(layer => ({
    cross: keysAndValues(layer.cross_attention, memory),
    own: keysAndValues(layer.self_attention, []),
  }));
}

// Read T further target tokens: [T] -> logits [T, V]. All of a translation at once, as in training,
// or one token after the other, as in a search; both give the same numbers.
function decode(model, cache, tokens, {gates} = NO_CHANGES) {
  const past = cache[0].own.keys[0].length;
  let x = embed(model, tokens, past).output;
  const newCache = [];
  const layers = layersOf(model, "decoder").map((layer, index) => {
    const attended = residual(model, layer.self_attention_residual.norm, x, y => {
      const {keys, values} = keysAndValues(layer.self_attention, y), {own, cross} = cache[index];
      const all = {
        keys: keys.map((rows, n) => [...own.keys[n], ...rows]),
        values: values.map((rows, n) => [...own.values[n], ...rows]),
      };
      newCache.push({own: all, cross});
      // The causal mask: position past + t sees itself and what is before it.
      return multiHeadAttention(
        layer.self_attention, y, all, t => past + t, gates?.decoder[index]);
    });
    const informed = residual(model, layer.cross_attention_residual.norm, attended.output, y =>
      multiHeadAttention(
        layer.cross_attention, y, cache[index].cross, everyKey, gates?.cross[index]));
    const transformed = residual(model, layer.feed_forward_residual.norm, informed.output, y =>
      feedForward(layer.feed_forward, y));
    x = transformed.output;
    return {selfAttention: attended, crossAttention: informed, feedForward: transformed};
  });
  const output = finalNorm(model, "decoder", x);
  // The embedding table is the output map too (paper 3.4): [T, D] x [V, D]^T -> [T, V]
  const logits = dotProducts(output, model.params.embedding.table);
  return {layers, output, logits, cache: newCache};
}
