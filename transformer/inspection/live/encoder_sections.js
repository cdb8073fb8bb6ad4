// SPDX-License-Identifier: Apache-2.0
// From the black box to the states of the encoder.

addSection("A black box, opened",
  "A sentence goes in, its translation comes out. Inside are encoder layers and decoder layers. "
  + "The output of the last encoder layer goes to every decoder layer, as keys and values.",
  () => [
    toolbar(["The box", "Two stacks", "All layers"].map((name, opened) =>
      button(name, () => change({opened}), {
        "aria-pressed": state.opened === opened, "data-key": `opened ${opened}`,
      }))),
    html("div", {class: "box"},
      html("p", {class: "out"}, run.translation),
      blackBox(state.opened, layerCount("encoder"), layerCount("decoder")),
      html("p", {class: "in"}, state.sentence)),
  ]);

// Figure 1 of the paper in three stages of detail, the input at the bottom.
function blackBox(opened, encoderLayers, decoderLayers) {
  const names = layers => opened === 2 ? range(layers).map(layer => `layer ${layer + 1}`)
    : [`${layers} ${layers > 1 ? "layers" : "layer"}`];
  const encoder = names(encoderLayers), decoder = names(decoderLayers);
  const unit = opened === 2 ? 92 : 64, gap = 12;
  const base = 34 + unit * Math.max(encoder.length, decoder.length), height = base + 38;
  const top = layers => base - unit * layers + gap;

  const box = (x, y, width, tall, name, parts) => svg("g", {},
    svg("rect", {x, y, width, height: tall, rx: 6, class: "layer"}),
    [name, ...parts].map((text, line) => svg("text", {
      x: x + width / 2, y: y + (parts.length ? 17 + 15 * line : tall / 2), "text-anchor": "middle",
      "dominant-baseline": "middle", class: line ? "" : "name"}, text)));
  const arrow = path => svg("path", {d: path, class: "arrow", "marker-end": "url(#arrowhead)"});
  const head = svg("marker", {id: "arrowhead", viewBox: "0 0 8 8", refX: 7, refY: 4,
    markerWidth: 6, markerHeight: 6, orient: "auto"}, svg("path", {d: "M0,0L8,4L0,8"}));

  // A stack of boxes, and the arrows between them.
  const stack = (x, width, side, layers, parts) => layers.map((name, layer) => [
    box(x, top(layer + 1), width, unit - gap, `${side}: ${name}`, opened === 2 ? parts : []),
    layer ? arrow(`M${x + width / 2},${top(layer)}V${top(layer) - gap + 1}`) : [],
  ]);

  const drawn = opened === 0
    ? [box(60, top(1), 240, unit - gap, "Transformer", []),
      arrow(`M120,${height}V${base + 1}`), arrow(`M240,${top(1)}V2`)]
    : [
      stack(4, 138, "encoder", encoder, ["self-attention", "feed-forward"]),
      stack(212, 144, "decoder", decoder, ["self-attention", "reads the encoder", "feed-forward"]),
      // Keys and values of the last encoder layer's output go to every decoder layer.
      range(decoder.length).map(layer =>
        arrow(`M142,${top(encoder.length) + 18}H176V${top(layer + 1) + 38 * unit / 92}H211`)),
      svg("text", {x: 177, y: top(encoder.length) + 8, "text-anchor": "middle"}, "K, V"),
      arrow(`M73,${height}V${base + 1}`), arrow(`M284,${height}V${base + 1}`),
      svg("text", {x: 292, y: base + 26}, "so far"),
      arrow(`M284,${top(decoder.length)}V2`),
    ];
  return svg("svg", {viewBox: `0 0 360 ${height}`, class: "stacks", role: "img",
    "aria-label": "Encoder and decoder stacks"}, svg("defs", {}, head), drawn.flat(3));
}

addSection("Words become vectors",
  "Every token has a learned vector. A fixed pattern of sines and cosines that depends on the "
  + "position alone is added, because attention by itself does not know the order of words.",
  () => {
    const words = wordsOf(run.source), {embedded, positions, output} = run.encoder.embedding;
    const s = state.word, limit = largestAbsolute([embedded[s], output[s]]);
    return [
      wordButtons("Word", words, s, word => change({word})),
      strips([
        [`“${words[s]}”`, embedded[s], "× √D"],
        [`position ${s}`, positions[s], "added"],
        ["their sum", output[s], "goes in"],
      ], limit),
      toolbar(scale("value", limit, {signed: true, digits: 2})),
      html("h3", {}, "All words, and all positions"),
      html("div", {class: "pair"},
        labeledRows(words, numberMap("sums", output, {
          describe: (r, d) => `${words[r]}, sum, dimension ${d + 1}`, marked: s,
          choose: word => change({word})})),
        labeledRows(range(words.length).map(String), numberMap("positions", positions, {
          limit: 1, describe: (r, d) => `position ${r}, dimension ${d + 1}`, marked: s}))),
    ];
  });

addSection("The encoder at work",
  "Each column is a word, each tile its vector. In every layer a word reads the others (lines: "
  + "attention of the chosen word, mean over heads) and is then changed by the same small network. "
  + "Choose a word and watch its state.",
  () => {
    const words = wordsOf(run.source), {states, layers} = run.encoder;
    const {flow = states.length - 1} = state;  // the last level that is shown
    const changedWords = new Set(state.patches.map(({position}) => position));
    const parts = [];
    states.forEach((vectors, level) => {
      const shown = flow >= level, limit = largestAbsolute(vectors);
      if (level) parts.push(attentionLines(layers[level - 1].selfAttention.inside.heads, shown));
      parts.push(html("div", {class: shown ? "tiles" : "tiles dim"},
        vectors.map((vector, s) => html("div", {class: s === state.word ? "tile selected" : "tile"},
          tile(`${words[s]} ${levelName(level)}`, vector, limit, () => change({word: s}),
            `tile ${level} ${s}`)))));
      parts.push(html("p", {class: "level"}, level ? `after layer ${level}` : "at the input"));
    });
    return [
      stepper("Encoder", states.length, flow, level => change({flow: level})),
      scrollable(html("div", {class: "columns", style: `min-width:${19 * words.length}px`},
        html("div", {class: "slanted"}, words.map((word, s) =>
          html("span", {class: changedWords.has(s) ? "differs" : ""}, html("span", {}, word)))),
        parts)),
    ];
  });

// A vector as a block of 8 columns.
function tile(name, vector, limit, choose, key) {
  const rows = range(Math.ceil(vector.length / 8)).map(r => [...vector.slice(8 * r, 8 * r + 8)]);
  while (rows.at(-1).length < 8) rows.at(-1).push(0);
  return numberMap(name, rows, {
    limit, rowHeight: null, choose, key,
    describe: (r, c) => 8 * r + c < vector.length
      ? `${name}, dimension ${8 * r + c + 1}` : "no number; the vector ends before",
  });
}

// Lines from the words that the chosen word reads, below, to it.
function attentionLines(heads, shown) {
  const count = run.source.length, x = index => 100 * (index + .5) / count;
  const weights = range(count).map(s => mean(heads.map(head => head.weights[state.word][s])));
  return svg("svg", {viewBox: "0 0 100 12", preserveAspectRatio: "none", class: "lines",
    opacity: shown ? 1 : .15, role: "img", "aria-label": "Attention of the chosen word"},
    weights.map((weight, s) => svg("line", {x1: x(s), y1: 0, x2: x(state.word), y2: 12,
      "stroke-opacity": weight, "vector-effect": "non-scaling-stroke",
      "stroke-width": 1 + 5 * weight})));
}
