// SPDX-License-Identifier: Apache-2.0
// The parameters of the model: read from the page, or drawn at random as before training.

// The weights of a tensor from integers of 3 bytes, the lowest first, in base64.
function readNumbers({weights, scale}) {
  const text = atob(weights);
  return Float32Array.from({length: text.length / 3}, (_, i) => {
    const upper = text.charCodeAt(3 * i) << 8 | text.charCodeAt(3 * i + 1) << 16
      | text.charCodeAt(3 * i + 2) << 24;
    return (upper >> 8) * scale;
  });
}

// Nested arrays of a shape over flat numbers; the last axis is a Float32Array.
function shaped(numbers, [length, ...rest]) {
  if (rest.length === 0) return numbers;
  const size = numbers.length / length;
  return Array.from({length}, (_, i) => shaped(numbers.subarray(i * size, (i + 1) * size), rest));
}

// The tree of parameters, for example params.encoder.layer_0.self_attention.query. The kernels of
// queries, keys and values [D, N, H] become N matrices [D, H]; those of outputs are [N, H, D].
function parameterTree(tensors, numbersOf) {
  const params = {};
  for (const tensor of tensors) {
    let value = shaped(numbersOf(tensor), tensor.shape);
    const [last, ...parents] = tensor.path.split("/").reverse();
    if (["query", "key", "value"].includes(last)) {
      value = value[0].map((_, n) => value.map(heads => heads[n]));
    }
    let node = params;
    for (const name of parents.reverse()) node = node[name] ??= {};
    node[last] = value;
  }
  return params;
}

function trainedParameters({tensors}) {
  return parameterTree(tensors, readNumbers);
}

// Random parameters from the distributions with which training begins.
function untrainedParameters({tensors}, seed = 0) {
  const uniform = randomNumbers(seed);
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  const draw = {
    normal: scale => scale * normal(),
    uniform: limit => limit * (2 * uniform() - 1),
    constant: value => value,
  };
  return parameterTree(tensors, ({shape, initial: [distribution, argument]}) =>
    Float32Array.from({length: shape.reduce((a, b) => a * b)}, () => draw[distribution](argument)));
}

// The generator mulberry32: the same seed gives the same numbers, from 0 to 1.
function randomNumbers(seed) {
  return () => {
    seed = seed + 0x6D2B79F5 | 0;
    let bits = Math.imul(seed ^ seed >>> 15, 1 | seed);
    bits = bits + Math.imul(bits ^ bits >>> 7, 61 | bits) ^ bits;
    return ((bits ^ bits >>> 14) >>> 0) / 2 ** 32;
  };
}
