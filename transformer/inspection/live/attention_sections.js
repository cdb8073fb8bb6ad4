// SPDX-License-Identifier: Apache-2.0
// Attention: one head in six steps, as matrices, all heads, and what surrounds it in a layer.

// The attention of a kind and a layer: what was computed, its kernels, the words of its queries and
// of its keys, and the query that is chosen.
function attentionOf(kind, layer) {
  const sources = wordsOf(run.source), targets = rowsOfDecoder(run.tokens);
  const parameters = layersOf(model, SIDES[kind])[layer];
  if (kind === "encoder") {
    return {
      sublayer: run.encoder.layers[layer].selfAttention, kernels: parameters.self_attention,
      queries: sources, keys: sources, row: state.word,
    };
  }
  const {selfAttention, crossAttention} = run.decoder.layers[layer];
  if (kind === "cross") {
    return {
      sublayer: crossAttention, kernels: parameters.cross_attention,
      queries: targets, keys: sources, row: state.step,
    };
  }
  const read = [special.bos_id, ...run.tokens.slice(0, -1)].map(targetWord);
  return {
    sublayer: selfAttention, kernels: parameters.self_attention,
    queries: targets, keys: read, row: state.step,
  };
}

// Controls that choose a kind of attention, a layer and a head.
function headPicker({withHead = true} = {}) {
  const kinds = Object.keys(KIND_NAMES), {kind} = state;
  const heads = headCount(SIDES[kind]);
  state.layer = clamp(state.layer, layerCount(SIDES[kind]));
  state.head = clamp(state.head, heads);
  const row = index => change(kind === "encoder" ? {word: index} : {step: index});
  const {queries, row: chosen} = attentionOf(kind, state.layer);
  return toolbar(
    select("Attention", kinds.map(name => KIND_NAMES[name]), kinds.indexOf(kind),
      index => change({kind: kinds[index]})),
    select("Layer", range(layerCount(SIDES[kind])).map(n => n + 1), state.layer,
      layer => change({layer})),
    withHead
      ? select("Head", range(heads).map(n => n + 1), state.head, head => change({head})) : [],
    select(kind === "encoder" ? "Word" : "Read → predict", queries, chosen, row));
}

addSection("Attention in six steps",
  "The chosen word's query is compared with the key of every word; the scores become weights that "
  + "sum to 1; the weighted values are added up. All heads of all layers compute exactly this.",
  () => {
    const picker = headPicker();
    const {sublayer, keys, queries, row} = attentionOf(state.kind, state.layer);
    const head = sublayer.inside.heads[state.head];
    const vectors = [head.query[row], ...head.key], limit = largestAbsolute(vectors);
    const valueLimit = largestAbsolute(head.value), size = head.query[0].length;
    const visible = keys.map((_, s) => head.weights[row][s] > 0);
    const line = s => html("div", {class: visible[s] ? "step-row" : "step-row dim"},
      html("span", {class: "label"}, keys[s]),
      strip(`key of ${keys[s]}`, head.key[s], {limit}),
      html("span", {class: "number"}, fixed(head.products[row][s], 2)),
      html("span", {class: "number"}, visible[s] ? fixed(head.scores[row][s], 2) : "masked"),
      bar(head.weights[row][s]),
      strip(`weight × value of ${keys[s]}`, head.value[s].map(v => v * head.weights[row][s]),
        {limit: valueLimit}));
    return [
      picker,
      html("div", {class: "six"},
        html("div", {class: "step-row first"},
          html("span", {class: "label"}, `1. query of “${queries[row]}”`),
          strip(`query of ${queries[row]}`, head.query[row], {limit})),
        html("div", {class: "step-row head"},
          html("span", {}, "word"), html("span", {}, "1. its key"), html("span", {}, "2. q · k"),
          html("span", {}, `3. ÷ √${size}`), html("span", {}, "4. softmax"),
          html("span", {}, "5. weight × value")),
        keys.map((_, s) => line(s)),
        html("div", {class: "step-row first"},
          html("span", {class: "label"}, "6. sum: the head's output z"),
          strip("z", head.z[row], {limit: valueLimit}))),
      toolbar(scale("queries and keys", limit, {signed: true, digits: 2}),
        scale("values and z", valueLimit, {signed: true, digits: 2})),
    ];
  });

addSection("The same with matrices",
  "All words at once: their vectors are the rows of X. Three learned matrices turn X into queries, "
  + "keys and values. One formula does the rest: softmax(Q Kᵀ / √d) V.",
  () => {
    const picker = headPicker(), {kind, layer, head: n} = state;
    const {sublayer, queries, keys, row, kernels} = attentionOf(kind, layer);
    const head = sublayer.inside.heads[n], x = sublayer.read;
    const memory = kind === "cross" ? ["memory", run.encoder.memory, keys] : ["X", x, keys];
    const matrix = (name, values, words, weight = 1) => html("figure",
      {style: `flex:${weight} 1 0`},
      html("figcaption", {}, `${name} [${values.length}, ${values[0].length}]`),
      numberMap(name, values, {
        rowHeight: words ? 12 : 128 / values.length,
        describe: (r, d) => `${name}, ${words ? words[r] : `row ${r + 1}`}, column ${d + 1}`,
        marked: words === queries ? row : null}));
    const product = (left, right, result, words) => html("div", {class: "product"},
      matrix(...left, 3), html("span", {}, "×"), matrix(...right, null, 1), html("span", {}, "="),
      matrix(...result, words, 1));
    return [
      picker,
      product(["X", x, queries], ["W_Q", kernels.query[n]], ["Q", head.query], queries),
      product(memory, ["W_K", kernels.key[n]], ["K", head.key], keys),
      product(memory, ["W_V", kernels.value[n]], ["V", head.value], keys),
      html("h3", {}, "softmax(Q Kᵀ / √d), and times V"),
      html("div", {class: "pair"},
        scrollable(weightMap("weights", head.weights, queries, keys, {marked: row})),
        html("div", {class: "z"}, matrix("Z", head.z, queries))),
      toolbar(scale("attention weight"), html("span", {class: "note"},
        "Every other matrix has its own scale, from its largest negative to its largest positive "
        + "number.")),
    ];
  });

addSection("All heads, and switches",
  "Every head of a layer has its own queries, keys and values, and reads different words. Their "
  + "outputs are put side by side and multiplied by one more matrix. Switch a head off and look at "
  + "the translation above.",
  () => {
    const picker = headPicker({withHead: false});
    const {sublayer, queries, keys, row} = attentionOf(state.kind, state.layer);
    const {kind, layer} = state, {heads, output} = sublayer.inside;
    const outputs = heads.map(head => head.output[row]);
    const limit = largestAbsolute([...outputs, output[row]]);
    return [
      picker,
      html("div", {class: "heads"}, heads.map((head, n) => {
        const on = state.gates[kind][layer][n] === 1;
        return html("figure", {class: on ? "" : "off"},
          html("figcaption", {},
            button(`head ${n + 1}: ${on ? "on" : "off"}`, () => toggleHead(kind, layer, n),
              {"aria-pressed": on, "data-key": `gate ${n}`})),
          numberMap(`head ${n + 1}`, head.weights, {
            limit: 1, rowHeight: 12, marked: row, choose: r => change({
              head: n, ...(kind === "encoder" ? {word: r} : {step: r})}),
            describe: (r, c) => `head ${n + 1}: ${queries[r]} reads ${keys[c]}`}),
          html("p", {class: "note"}, strongest(head.weights[row], keys)));
      })),
      toolbar(scale("attention weight"),
        html("span", {class: "note"}, "rows: who reads; columns: who is read")),
      html("h3", {}, `What each head adds to “${queries[row]}”`),
      strips([
        ...heads.map((head, n) => [`z${n + 1} × W_O`, head.output[row],
          `length ${fixed(Math.hypot(...head.output[row]), 2)}`]),
        ["their sum", output[row], `length ${fixed(Math.hypot(...output[row]), 2)}`],
      ], limit),
      toolbar(scale("value", limit, {signed: true, digits: 2})),
    ];
  });

// The three largest weights in words.
function strongest(weights, words) {
  const order = range(words.length).sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  return order.map(s => `${words[s]} ${fixed(weights[s], 2)}`).join(", ");
}

addSection("Around each part: add and normalize",
  "What a part of a layer computes is added to what it has read (the residual connection), and the "
  + "sum is normalized. Then a small network changes each word by itself, with the same two steps "
  + "around it.",
  () => {
    const s = state.word, words = wordsOf(run.source);
    state.layer = clamp(state.layer, layerCount("encoder"));
    const {selfAttention, feedForward} = run.encoder.layers[state.layer];
    const pre = model.config.norm === "pre";
    const note = vector => `length ${fixed(Math.hypot(...vector), 2)}`;
    const line = (name, matrix) => [name, matrix[s], note(matrix[s])];
    const lines = [
      line("x, read", selfAttention.input), line("self-attention", selfAttention.inside.output),
      line("their sum", selfAttention.total),
      ...(pre ? [] : [line("normalized", selfAttention.output)]),
      line("feed-forward", feedForward.inside.output), line("their sum", feedForward.total),
      ...(pre ? [] : [line("normalized", feedForward.output)]),
    ];
    const limit = largestAbsolute(lines.map(([, vector]) => vector));
    return [
      toolbar(
        select("Encoder layer", range(layerCount("encoder")).map(n => n + 1), state.layer,
          layer => change({layer})),
        select("Word", words, s, word => change({word}))),
      strips(lines, limit),
      toolbar(scale("value", limit, {signed: true, digits: 2})),
      html("h3", {}, "Inside the feed-forward network"),
      strips([[`hidden, ${feedForward.inside.hidden[s].length} units`, feedForward.inside.hidden[s],
        `${[...feedForward.inside.hidden[s]].filter(value => value > 0).length} not 0`]]),
    ];
  });
