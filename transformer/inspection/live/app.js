// SPDX-License-Identifier: Apache-2.0
// The page: what the reader has chosen, what follows from it, and the sections that show it.

const layerCount = side => layersOf(model, side).length;
const headCount = side => model.params[side].layer_0.self_attention.query.length;
const SIDES = {encoder: "encoder", decoder: "decoder", cross: "decoder"};  // of a kind of attention
const KIND_NAMES = {
  encoder: "encoder self-attention",
  decoder: "decoder self-attention",
  cross: "encoder-decoder attention",
};

const allGates = () => Object.fromEntries(Object.entries(SIDES).map(([kind, side]) =>
  [kind, range(layerCount(side)).map(() => range(headCount(side)).map(() => 1))]));

const state = {
  sentence: pageData.sentences[0],
  second: pageData.sentences[1],
  beams: pageData.decode.beams,
  gates: allGates(),
  patches: [],  // {level, position, donor}: the donor is a position of the second sentence
  word: 0, layer: 0, head: 0, step: 0, searchStep: 0, level: layerCount("encoder"), opened: 2,
  kind: "encoder",
};
let run, plain, secondRun, contrast, finding;

const isChanged = () => state.patches.length > 0
  || Object.values(state.gates).flat(2).some(gate => gate !== 1);

// States of the second sentence in the form that `encode` takes.
function changesOf({gates, patches}) {
  return {
    gates,
    patches: patches.map(({level, position, donor}) =>
      ({level, position, state: secondRun.encoder.states[level][donor]})),
  };
}

// Compute everything that depends on the changed fields, and draw the page again.
function change(changes) {
  const text = "sentence" in changes || "second" in changes, beams = "beams" in changes;
  Object.assign(state, changes);
  if (text) state.patches = [];
  if (text || beams) {
    plain = translate(state.sentence, NO_CHANGES, {beams: state.beams});
    if (!secondRun || beams || "second" in changes) {
      secondRun = translate(state.second, NO_CHANGES, {beams: state.beams});
    }
    const before = JSON.stringify(contrast);
    contrast = contrastOf(plain, secondRun);
    // If other beams find the same answers, what the reader has chosen stays.
    if (text || JSON.stringify(contrast) !== before) openOnAnswer();
  }
  if (text || beams || "gates" in changes || "patches" in changes) {
    run = isChanged() ? translate(state.sentence, changesOf(state), {beams: state.beams}) : plain;
    state.searchStep = Math.min(state.searchStep, run.steps.length - 1);
  }
  state.word = clamp(state.word, run.source.length);
  state.step = clamp(state.step, run.tokens.length);
  draw();
}

// Open every section on the position where the two translations differ, and on the source word
// whose state makes the difference.
function openOnAnswer() {
  state.step = contrast?.step ?? 0;
  state.word = mostRead(plain, state.step);
  state.donor = undefined;
  finding = null;
  clearTimeout(findingTimer);
  if (contrast && plain.source.length === secondRun.source.length) {
    findingTimer = setTimeout(findAnswer);
  }
  openOnHead();
}

let findingTimer = 0;

// The source word whose state after the last encoder layer changes the answer most.
function findAnswer() {
  const chances = plain.source.map((_, position) =>
    patchedAnswers(contrast, plain, secondRun, layerCount("encoder"), position));
  const word = chances.reduce((best, [, second], s) => second > chances[best][1] ? s : best, 0);
  finding = {before: answerProbabilities(contrast, plain.encoder.memory, NO_CHANGES),
    after: chances[word], word};
  state.word = state.donor = word;
  openOnHead();
  draw();
}

// The head that reads another word most from the chosen one.
function openOnHead() {
  const read = plain.encoder.layers.flatMap(({selfAttention}, layer) =>
    selfAttention.inside.heads.map(({weights}, head) => ({layer, head, weight: Math.max(
      ...weights[state.word].map((weight, s) => s === state.word ? 0 : weight))})));
  const {layer, head} = read.reduce((best, each) => each.weight > best.weight ? each : best);
  Object.assign(state, {kind: "encoder", layer, head});
}

// The source word that the last decoder layer reads most at a step, over all heads.
function mostRead({decoder, source}, step) {
  const {heads} = decoder.layers.at(-1).crossAttention.inside;
  const total = range(source.length - 1).map(s => sum(heads.map(({weights}) => weights[step][s])));
  return Math.max(0, total.indexOf(Math.max(...total)));
}

function toggleHead(kind, layer, head) {
  const gates = structuredClone(state.gates);
  gates[kind][layer][head] = 1 - gates[kind][layer][head];
  change({gates});
}

const undo = () => change({gates: allGates(), patches: []});

// What differs from the trained model, in words.
function describeChanges() {
  const off = Object.entries(state.gates).flatMap(([kind, layers]) =>
    layers.flatMap((gates, layer) => gates.flatMap((gate, head) =>
      gate ? [] : `head ${layer + 1}.${head + 1} of the ${KIND_NAMES[kind]} is off`)));
  const sources = wordsOf(plain.source), donors = wordsOf(secondRun.source);
  const patched = state.patches.map(({level, position, donor}) =>
    `the state of “${sources[position]}” ${levelName(level)} is that of “${donors[donor]}” `
    + "in the other sentence");
  return [...off, ...patched].join("; ");
}

const levelName = level => level ? `after layer ${level}` : "at the input";

// The header: the sentence, its translation, and what is changed.

const input = html("input", {
  id: "sentence", type: "text", value: state.sentence, autocomplete: "off", spellcheck: "false",
  maxlength: 400, input: () => later(() => {
    if (tokenizer.encode(input.value).length > 1) change({sentence: input.value});
  }),
});
const translated = html("p", {class: "translation", "aria-live": "polite"});
const changed = html("p", {class: "changed"}), found = html("p", {class: "found"});

let timer = 0;
function later(action) {
  clearTimeout(timer);
  timer = setTimeout(action, 250);
}

function drawHeader() {
  const words = run.tokens.map((token, step) => button(targetWord(token), () => change({step}), {
    "aria-pressed": step === state.step, "data-key": `translation ${step}`,
    class: plain.tokens[step] === token ? "" : "differs",
  }));
  const longest = pageData.decode.longest_source;
  const isCut = tokenizer.encode(state.sentence).length > longest;
  translated.replaceChildren(...words.slice(0, -1));
  translated.setAttribute("aria-label", run.translation);
  const notes = isCut ? [`Only the first ${longest - 1} tokens are read, as in training. `] : [];
  if (isChanged()) {
    notes.push(
      `Changed: ${describeChanges()}. The trained model says: “${plain.translation}” `,
      button("Undo", undo, {"data-key": "undo"}));
  }
  changed.replaceChildren(...notes);
  found.replaceChildren(...findingText());
}

// Which word the answer rests on, in one sentence of numbers.
function findingText() {
  if (!finding) return [];
  const [first, second] = contrast.answers.map(targetWord);
  const {word, before, after} = finding;
  const patch = {level: layerCount("encoder"), position: word, donor: word};
  const moved = index => `${fixed(before[index], 2)} → ${fixed(after[index], 2)}`;
  return [
    "Which word made it ", html("strong", {}, first), "? Of all states after the last encoder ",
    "layer, that of ", html("strong", {}, `“${wordsOf(plain.source)[word]}”`),
    " carries most of it: replaced by the one from ", html("q", {}, state.second),
    `, it moves the probability of ${first} ${moved(0)} and that of ${second} ${moved(1)}. `,
    button("Do it", () => change({patches: [patch]}), {"data-key": "do it", class: "primary"}),
  ];
}

// Sections.

const sections = [];  // {title, section, body, build}

function addSection(title, lead, build) {
  const body = html("div", {class: "picture"}), number = sections.length + 1;
  const section = html("section", {id: `part-${number}`, "aria-label": title},
    html("h2", {}, `${number}. ${title}`), html("p", {}, lead), body);
  sections.push({title, section, body, build});
}

function draw() {
  const focused = document.activeElement;
  const key = focused?.dataset?.key, within = focused?.closest("section") ?? document;
  drawHeader();
  // What is in view or has the focus is drawn at once, the rest when nothing else is to be done.
  const inView = ({section}) => {
    const {top, bottom} = section.getBoundingClientRect();
    return section === within || bottom > 0 && top < innerHeight;
  };
  const waiting = sections.filter(each => !inView(each));
  sections.filter(inView).forEach(drawSection);
  clearTimeout(idle);
  const drawNext = () => {
    if (waiting.length === 0) return;
    drawSection(waiting.shift());
    idle = setTimeout(drawNext);
  };
  idle = setTimeout(drawNext);
  if (key) {
    within.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({preventScroll: true});
  }
}

let idle = 0;

function drawSection({body, build}) {
  body.replaceChildren(...[build()].flat(2));
}

function start() {
  const [first, second] = pageData.sentences;
  const choices = [...new Set([first, second])].map(text => button(text, () => {
    input.value = text;
    change({sentence: text, second: text === first ? second : first});
  }));
  const contents = html("nav", {"aria-label": "Contents"}, sections.map(({title}, index) =>
    html("a", {href: `#part-${index + 1}`}, `${index + 1} ${title}`)));
  document.getElementById("live").replaceChildren(
    html("p", {class: "lead"},
      "The trained model itself runs in this page. Every number is computed here, from your "
      + `sentence; nothing is sent anywhere. The weights: ${pageData.description || "as given"}.`),
    html("div", {class: "sticky"},
      html("label", {for: "sentence"}, "Your sentence"), input, translated, changed),
    found, html("div", {class: "examples"}, "Sentences to begin with: ", choices),
    contents, ...sections.map(({section}) => section), reader);
  readColors();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColors();
    draw();
  });
  change({sentence: first});
}
