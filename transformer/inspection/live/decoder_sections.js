// SPDX-License-Identifier: Apache-2.0
// The decoder in motion, its output, what training has changed, and the search.

function stepPicker() {
  return stepper("Target position", run.tokens.length, state.step, step => change({step}));
}

addSection("The decoder in motion",
  "The decoder writes one word after the other. It reads what it has written so far, and in every "
  + "layer also the encoder: keys and values of every source word, computed once for each decoder "
  + "layer.",
  () => {
    const t = state.step, sources = wordsOf(run.source);
    const read = [special.bos_id, ...run.tokens.slice(0, -1)].map(targetWord);
    const layers = layerCount("decoder");
    const headNames = range(headCount("decoder")).map(n => `head ${n + 1}`);
    state.head = clamp(state.head, headNames.length);
    const written = html("p", {class: "written"}, read.slice(0, t + 1).map((word, index) =>
      html("span", {class: index === t ? "now" : ""}, word)),
      html("span", {class: "next"}, `→ ${targetWord(run.tokens[t])}`));
    return [
      stepPicker(), written,
      toolbar(select("Keys and values of head", headNames.map((_, n) => n + 1), state.head,
        head => change({head}))),
      html("div", {class: "decoder-layers"}, range(layers).map(layer => {
        const {selfAttention, crossAttention} = run.decoder.layers[layer];
        const ofHeads = (sublayer, count) =>
          sublayer.inside.heads.map(({weights}) => [...weights[t]].slice(0, count));
        const {key, value} = crossAttention.inside.heads[state.head];
        return html("figure", {},
          html("figcaption", {}, `Decoder layer ${layer + 1}`),
          html("p", {class: "note"}, "reads what is written"),
          scrollable(weightMap(`written, layer ${layer + 1}`,
            ofHeads(selfAttention, t + 1), headNames, read.slice(0, t + 1))),
          html("p", {class: "note"}, "reads the encoder"),
          scrollable(weightMap(`source, layer ${layer + 1}`,
            ofHeads(crossAttention), headNames, sources, {
              choose: (_, word) => change({word})})),
          html("p", {class: "note"},
            `from the encoder to this layer, head ${state.head + 1}: keys, values`),
          html("div", {class: "key-value"},
            labeledRows(sources, numberMap(`keys, layer ${layer + 1}`, key, {
              rowHeight: 16, describe: (s, d) => `key of ${sources[s]}, dimension ${d + 1}`}),
            {rowHeight: 16}),
            numberMap(`values, layer ${layer + 1}`, value, {
              rowHeight: 16, describe: (s, d) => `value of ${sources[s]}, dimension ${d + 1}`})));
      })),
      toolbar(scale("attention weight")),
    ];
  });

addSection("The last vector becomes a word",
  "The decoder's output is compared with the vector of every token of the vocabulary: the scores "
  + "are called logits. The softmax turns them into probabilities that sum to 1.",
  () => {
    const t = state.step, logits = run.decoder.logits[t], probabilities = run.probabilities[t];
    const best = largestIndices(probabilities, 8);
    const limit = largestAbsolute([logits]);
    const rowLength = Math.ceil(Math.sqrt(4 * logits.length));
    const grid = range(Math.ceil(logits.length / rowLength)).map(r =>
      range(rowLength).map(c => logits[r * rowLength + c] ?? 0));
    return [
      stepPicker(),
      html("p", {class: "note"}, `Read → predict: ${rowsOfDecoder(run.tokens)[t]}`),
      strips([["output vector", run.decoder.output[t], ""]]),
      html("h3", {}, `All ${logits.length} logits, one cell a token`),
      numberMap("logits", grid, {rowHeight: 7, limit, describe: (r, c) => {
        const id = r * rowLength + c;
        if (id >= logits.length) return "no token";
        return `probability of “${targetWord(id)}” ${fixed(probabilities[id], 5)}, its logit`;
      }}),
      toolbar(scale("logit", limit, {signed: true, digits: 1})),
      html("table", {class: "chances"},
        html("caption", {}, "The most probable next tokens"),
        html("thead", {}, html("tr", {}, ["token", "logit", "probability"].map(name =>
          html("th", {scope: "col"}, name)))),
        html("tbody", {}, best.map(id => html("tr", {class: id === run.tokens[t] ? "now" : ""},
          html("th", {scope: "row"}, targetWord(id)),
          html("td", {class: "number"}, fixed(logits[id], 2)),
          html("td", {}, bar(probabilities[id])))))),
    ];
  });

// A model of the same shape before training; drawn when it is first needed.
let untrained;

addSection("Before and after training",
  "In training, what the decoder should say at each position is known: the next word of the "
  + `translation, with probability ${fixed(1 - pageData.labelSmoothing, 2)}; the rest is spread `
  + "over all other tokens (label smoothing). Before training, with random weights drawn in this "
  + "page as training draws them, no word is expected. Training brings out the diagonal.",
  () => {
    untrained ??= {config: model.config, params: untrainedParameters(pageData)};
    const ids = run.source.map(({id}) => id);
    const before = readTranslation(untrained, encode(untrained, ids).memory, run.tokens);
    const columns = [...new Set(run.tokens)], words = columns.map(targetWord);
    const rows = rowsOfDecoder(run.tokens);
    const smoothed = pageData.labelSmoothing, others = pageData.pieces.length - 1;
    const targets = run.tokens.map(token =>
      columns.map(id => id === token ? 1 - smoothed : smoothed / others));
    const chances = logits => logits.map(softmax).map(row => columns.map(id => row[id]));
    const loss = logits => mean(run.tokens.map((token, t) => -logSoftmax(logits[t])[token]));
    const cases = [
      ["Target", targets, null],
      ["Before training", chances(before.logits), loss(before.logits)],
      ["After training", chances(run.decoder.logits), loss(run.decoder.logits)],
    ];
    return [
      html("div", {class: "trio"}, cases.map(([name, matrix, nats]) => html("figure", {},
        html("figcaption", {},
          name, nats === null ? "" : `: cross-entropy ${fixed(nats, 3)} nats a token`),
        scrollable(weightMap(name, matrix, rows, words, {
          marked: state.step, choose: step => change({step}),
          describe: (r, c) => `${name}: ${rows[r]}; probability of ${words[c]}`}))))),
      toolbar(scale("probability"), html("span", {class: "note"},
        "The target here is the model's own translation. Columns: the words that occur in it.")),
    ];
  });

// The model's own number of beams is always a choice.
const beamChoices = [...new Set([1, 2, 3, 4, 5, 6, pageData.decode.beams])].sort((a, b) => a - b);

addSection("Greedy search and beam search",
  "With one beam, the most probable token is taken at every step. Beam search keeps several "
  + "hypotheses, and may find a translation that begins with a less probable word. A finished "
  + "hypothesis is scored by its log-probability, divided by a penalty for short ones.",
  () => {
    const {steps, source} = run, at = clamp(state.searchStep, steps.length), step = steps[at];
    const text = tokens => tokens.length ? tokenizer.decode(tokens) || "…" : "(nothing yet)";
    const {active, candidates, finished} = step;
    return [
      toolbar(select("Beams", beamChoices.map(beams => beams === 1 ? "1: greedy" : beams),
        beamChoices.indexOf(state.beams), index => change({beams: beamChoices[index]})),
        html("span", {class: "note"}, `${steps.length} steps for ${source.length} source tokens`)),
      stepper("Search step", steps.length, at, searchStep => change({searchStep})),
      searchTree(steps, at),
      html("div", {class: "pair"},
        html("div", {},
          html("h3", {}, `Hypotheses before step ${at + 1}`),
          html("ol", {class: "hypotheses"}, active.map(({tokens, logProb}) => html("li", {},
            text(tokens), html("span", {class: "note"}, ` log P ${fixed(logProb, 2)}`))))),
        html("div", {},
          html("h3", {}, "Best extensions"),
          html("table", {},
            html("thead", {}, html("tr", {}, ["of", "token", "log P", ""].map(name =>
              html("th", {scope: "col"}, name)))),
            html("tbody", {}, candidates.map(({parent, token, logProb, fate}) =>
              html("tr", {class: fate}, html("td", {class: "number"}, String(parent + 1)),
                html("th", {scope: "row"}, targetWord(token)),
                html("td", {class: "number"}, fixed(logProb, 2)), html("td", {}, fate))))))),
      html("h3", {}, step.isDone ? "Finished: the search is over" : "Finished so far"),
      finished.length ? html("ol", {class: "hypotheses"}, finished.map(({tokens, score}) =>
        html("li", {}, text(tokens), html("span", {class: "note"}, ` score ${fixed(score, 3)}`))))
        : html("p", {class: "note"}, "none yet"),
    ];
  });

// The tree of hypotheses up to a step; the best result is marked.
function searchTree(steps, at) {
  const width = 92, tall = 30, best = run.tokens;
  const rows = Math.max(...steps.map(({active}) => active.length));
  const onBest = tokens => tokens.every((token, t) => best[t] === token);
  const drawn = steps.flatMap(({active}, index) => active.map(({tokens, parent}, k) => {
    const x = 4 + width * index, y = 4 + tall * k;
    const dim = index > at ? .25 : 1, chosen = onBest(tokens);
    return svg("g", {opacity: dim, class: chosen ? "best" : ""},
      parent === null ? [] : svg("path", {
        d: `M${x - 14},${4 + tall * parent + 11}L${x},${y + 11}`, class: "arrow"}),
      svg("rect", {x, y, width: width - 14, height: 22, rx: 4, class: "layer"}),
      svgText(tokens.length ? targetWord(tokens.at(-1)) : "(start)", x + 6, y + 12, width - 26));
  }));
  const total = width * steps.length, picture = html("div", {class: "wide"},
    svg("svg", {viewBox: `0 0 ${total} ${tall * rows + 4}`, width: total, height: tall * rows + 4,
      role: "img", "aria-label": "Tree of hypotheses"}, drawn));
  requestAnimationFrame(() => picture.scrollTo(Math.max(0, width * (at - 2)), 0));
  return picture;
}
