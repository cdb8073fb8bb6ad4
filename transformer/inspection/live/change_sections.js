// SPDX-License-Identifier: Apache-2.0
// Break it: switch heads off, and overwrite the state of a word with that of another sentence.

addSection("Break it: heads",
  "Every button is a head. Press it to switch the head off; what the translation loses is measured "
  + "as the change of its log-probability.",
  () => [
    html("div", {class: "gates"}, Object.entries(state.gates).map(([kind, layers]) =>
      html("figure", {},
        html("figcaption", {}, KIND_NAMES[kind]),
        layers.map((gates, layer) => html("div", {class: "gate-row"},
          html("span", {class: "label"}, `layer ${layer + 1}`),
          gates.map((gate, head) => gateButton(kind, layer, head, gate))))))),
    toolbar(button("Measure every head alone", measureHeads, {"data-key": "measure"}),
      button("All on", undo, {"data-key": "all on"})),
    html("p", {class: "note"}, headLosses.key === searchKey()
      ? "The number on a button: log-probability of the trained model's translation that is lost "
        + "without this head, in nats."
      : "Measured for your sentence alone. One sentence is an example, not evidence."),
  ]);

const headLosses = {key: null, values: {}};
const searchKey = () => `${state.sentence}\n${state.beams}`;

function gateButton(kind, layer, head, gate) {
  const key = `${kind} ${layer} ${head}`;
  const loss = headLosses.key === searchKey() ? headLosses.values[key] : undefined;
  const text = loss === undefined ? `${head + 1}` : `${head + 1}: ${fixed(loss, 2)}`;
  return button(text, () => toggleHead(kind, layer, head), {
    "aria-pressed": gate === 1, "data-key": key,
    "aria-label": `head ${head + 1} of layer ${layer + 1}, ${KIND_NAMES[kind]}`,
  });
}

// The log-probability of a translation.
function logProbability(tokens, changes) {
  const {memory} = encode(model, plain.source.map(({id}) => id), changes);
  const {logits} = readTranslation(model, memory, tokens, changes);
  return sum(tokens.map((token, t) => logSoftmax(logits[t])[token]));
}

function measureHeads() {
  const before = logProbability(plain.tokens, NO_CHANGES);
  headLosses.key = searchKey();
  headLosses.values = {};
  for (const [kind, layers] of Object.entries(allGates())) {
    layers.forEach((gates, layer) => gates.forEach((_, head) => {
      const changed = allGates();
      changed[kind][layer][head] = 0;
      headLosses.values[`${kind} ${layer} ${head}`] =
        before - logProbability(plain.tokens, {gates: changed, patches: []});
    }));
  }
  draw();
}

addSection("Break it: overwrite a word's state",
  "Two sentences that differ in a word. Replace the state of a word in your sentence by that of a "
  + "word in the other one, after any encoder layer, and see whether the translation follows.",
  () => {
    const words = wordsOf(plain.source), donors = wordsOf(secondRun.source);
    const isAligned = words.length === donors.length;
    state.donor = clamp(state.donor ?? state.word, donors.length);
    const {level, word, donor} = state;
    const levels = range(layerCount("encoder") + 1).map(levelName);
    const patchedAt = position => state.patches.some(patch =>
      patch.level === level && patch.position === position);
    const choose = position => change({word: position, ...(isAligned ? {donor: position} : {})});
    return [
      html("label", {class: "other"}, "The other sentence", otherInput()),
      html("p", {class: "note"}, `Its translation: “${secondRun.translation}”`),
      answers(),
      html("p", {class: "legend-line"}, "Replace in your sentence:"),
      wordButtons("Replace", words, word, choose,
        position => patchedAt(position) ? "differs" : ""),
      html("p", {class: "legend-line"}, "by the state of, in the other sentence:"),
      wordButtons("Donor", donors, donor, index => change({donor: index})),
      toolbar(
        select("State", levels, level, index => change({level: index})),
        button("Overwrite", () => overwrite(level, word, donor),
          {"data-key": "overwrite", class: "primary"}),
        state.patches.length ? button("Undo", undo, {"data-key": "undo patches"}) : [],
        isAligned && contrast
          ? button("Try every word and layer", measurePatches, {"data-key": "try"}) : []),
      patchMap(words, levels),
      html("p", {class: "note"}, isAligned ? "" : "The sentences have different numbers of "
        + "tokens, so both words must be chosen by hand."),
    ];
  });

function otherInput() {
  return html("input", {
    type: "text", value: state.second, maxlength: 400, spellcheck: "false", "data-key": "second",
    change: ({target}) => {
      if (tokenizer.encode(target.value).length > 1) change({second: target.value});
    },
  });
}

// Overwrite the state of one position, besides those that are overwritten already.
function overwrite(level, position, donor) {
  const others = state.patches.filter(patch =>
    patch.level !== level || patch.position !== position);
  change({level, word: position, donor, patches: [...others, {level, position, donor}]});
}

// The probabilities of the two answers, now and without changes.
function answers() {
  if (!contrast) {
    return html("p", {class: "note"}, "Both sentences have the same translation.");
  }
  const now = answerProbabilities(contrast, run.encoder.memory, changesOf(state));
  const before = answerProbabilities(contrast, plain.encoder.memory, NO_CHANGES);
  const row = (name, values) => html("tr", {}, html("th", {scope: "row"}, name),
    values.map(value => html("td", {}, bar(value))));
  return html("table", {class: "answers"},
    html("caption", {},
      `Next word after “${tokenizer.decode(contrast.prefix) || "(the beginning)"}”`),
    html("thead", {}, html("tr", {}, html("th", {scope: "col"}, ""),
      contrast.answers.map(token => html("th", {scope: "col"}, targetWord(token))))),
    html("tbody", {}, row("trained model", before),
      isChanged() ? row("with your changes", now) : []));
}

const patchEffects = {key: null, values: null};
const patchKey = () => `${searchKey()}\n${state.second}`;

// For every level and word: the share of the difference between the two sentences that
// overwriting this one state carries, in log P(second answer) - log P(first answer).
function measurePatches() {
  const preference = ([first, second]) => Math.log(second) - Math.log(first);
  const [from, to] = [plain, secondRun].map(({encoder}) =>
    preference(answerProbabilities(contrast, encoder.memory, NO_CHANGES)));
  patchEffects.key = patchKey();
  const share = (level, position) =>
    (preference(patchedAnswers(contrast, plain, secondRun, level, position)) - from) / (to - from);
  patchEffects.values = secondRun.encoder.states.map((states, level) =>
    states.map((_, position) => share(level, position)));
  draw();
}

function patchMap(words, levels) {
  if (patchEffects.key !== patchKey()) return [];
  const {values} = patchEffects, limit = Math.max(1, largestAbsolute(values));
  return [
    html("h3", {}, "Which state carries the answer"),
    scrollable(weightMap("share", values, levels, words, {
      limit, rowHeight: 28, choose: (level, position) => overwrite(level, position, position),
      describe: (level, position) =>
        `overwriting “${words[position]}” ${levels[level]}, share of the difference`})),
    toolbar(scale("share of the difference", limit, {signed: true, digits: 2}),
      html("span", {class: "note"}, "Click a cell to overwrite that state.")),
  ];
}
