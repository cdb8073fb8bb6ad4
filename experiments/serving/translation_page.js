// SPDX-License-Identifier: Apache-2.0
// The translation page: translate while the user types, show alternatives and attention.
// Text of the user and of the model is only inserted as text.

const settings = JSON.parse(document.getElementById("settings").textContent);
const byId = id => document.getElementById(id);
const source = byId("source"), marks = byId("marks"), target = byId("target");

const TYPING_PAUSE = 120;  // milliseconds
const CACHED_LINES = 2000;
const END = "(end of sentence)";
const LANGUAGE = "(target language)";

// By source line: {versions: [{text, score}], chosen}. Lines that have not changed are not sent again.
const translations = new Map();
const attentions = new Map();
const selected = {line: 0, offset: null};  // offset: characters before the selected word, or null
let layer = 0;  // 0: the mean of all layers
let pending = null, timer = 0, token = "";
let language = settings.targets[0].code;

const linesOf = text => text.split("\n");
const isBlank = line => !line.trim();
const shownVersion = line => {
  const known = translations.get(line);
  return known && known.versions[known.chosen];
};

// Requests.

class Refused extends Error {}

async function post(path, fields, signal) {
  const headers = {"Content-Type": "application/json"};
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(path, {
    method: "POST", headers, body: JSON.stringify(fields), signal,
  });
  const reply = await response.json();
  if (response.ok) return reply;
  const refusal = new Refused(reply.error);
  refusal.status = response.status;
  refusal.retryAfter = Number(response.headers.get("Retry-After"));
  throw refusal;
}

function report(text, isProblem = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("problem", isProblem);
}

// Translate the lines that are not known yet; a newer call replaces an older one.
async function translate() {
  clearTimeout(timer);
  pending?.abort();
  const lines = [...new Set(linesOf(source.value))];
  const unknown = lines.filter(line => !isBlank(line) && !translations.has(line));
  if (!unknown.length) {
    pending = null;
    report("");
    show();
    return;
  }
  const request = pending = new AbortController();
  const began = performance.now();
  target.classList.add("outdated");
  target.setAttribute("aria-busy", "true");
  try {
    const fields = {
      q: unknown, target: language, scores: true, alternatives: settings.alternatives,
    };
    const reply = await post("translate", fields, request.signal);
    if (translations.size > CACHED_LINES) translations.clear();
    unknown.forEach((line, index) => {
      const texts = [reply.translatedText[index], ...(reply.alternatives?.[index] ?? [])];
      const versions = texts.map((text, rank) => ({text, score: reply.scores[index][rank]}));
      translations.set(line, {versions, chosen: 0});
    });
    pending = null;
    report(`${Math.round(performance.now() - began)} ms`);
    if (linesOf(source.value).every(line => isBlank(line) || translations.has(line))) show();
    else translate();
  } catch (error) {
    if (request.signal.aborted) return;
    pending = null;
    target.removeAttribute("aria-busy");
    failed(error);
  }
}

function failed(error) {
  if (!(error instanceof Refused)) {
    report("The service does not answer.", true);
    timer = setTimeout(translate, 3000);
    return;
  }
  report(error.message, true);
  if (error.status === 401 || error.status === 403) askForToken();
  if (error.retryAfter) timer = setTimeout(translate, 1000 * error.retryAfter);
}

// Add a field for the token; the focus stays where the user types.
function askForToken() {
  if (byId("token").hasChildNodes()) return;
  const field = html("input", {type: "password", autocomplete: "off"});
  const use = () => {
    token = field.value;
    byId("token").replaceChildren();
    source.focus();
    translate();
  };
  field.addEventListener("keydown", onKeys({Enter: use}));
  byId("token").replaceChildren(html("label", {}, "Token ", field, button("Use", use)));
}

// The translation.

function show() {
  target.classList.remove("outdated");
  target.removeAttribute("aria-busy");
  const lines = linesOf(source.value);
  selected.line = clamp(selected.line, lines.length);
  if (isBlank(lines[selected.line])) {
    selected.line = Math.max(0, lines.findIndex(line => !isBlank(line)));
    selected.offset = null;
  }
  target.replaceChildren(...lines.map(lineElement));
  if (lines.every(isBlank)) target.replaceChildren();
  const first = target.querySelector(".word[aria-pressed=true]") ?? target.querySelector(".word");
  if (first) first.tabIndex = 0;
  showDetails();
}

// A line of the translation; its words are those of the attention, or else what spaces divide.
function lineElement(line, number) {
  const element = html("p", {class: "line", "data-line": number});
  const version = isBlank(line) ? null : shownVersion(line);
  if (!version) return element;
  const characters = [...version.text];
  let position = 0;
  for (const [start, end] of wordSpans(line, version.text)) {
    element.append(characters.slice(position, start).join(""));
    const pressed = number === selected.line && start === selected.offset;
    element.append(html("span", {
      class: "word", role: "button", tabindex: -1, "aria-pressed": pressed,
      "data-line": number, "data-offset": start,
    }, characters.slice(start, end).join("")));
    position = end;
  }
  element.append(characters.slice(position).join(""));
  return element;
}

function wordSpans(line, text) {
  const known = attentions.get(attentionKey(line, text));
  if (known?.target) return known.target;
  const spans = [];
  let start = null;
  [...text, " "].forEach((character, index) => {
    if (isBlank(character)) {
      if (start !== null) spans.push([start, index]);
      start = null;
    } else start ??= index;
  });
  return spans;
}

function wordElements() {
  return [...target.querySelectorAll(".word")];
}

async function selectWord(element, focus = false) {
  const line = linesOf(source.value)[Number(element.dataset.line)];
  selected.line = Number(element.dataset.line);
  selected.offset = Number(element.dataset.offset);
  await loadAttention(line);
  show();
  if (focus) target.querySelector(".word[aria-pressed=true]")?.focus();
}

// Move between words with the arrow keys; the words of a line may change when one is selected.
function moveFocus(down, right) {
  const words = wordElements();
  const index = words.indexOf(document.activeElement);
  if (index < 0) return;
  if (right) {
    selectWord(words[clamp(index + right, words.length)], true);
    return;
  }
  const line = Number(words[index].dataset.line);
  const others = words.filter(word => Math.sign(Number(word.dataset.line) - line) === down);
  const next = down > 0 ? others[0]
    : others.find(word => word.dataset.line === others.at(-1).dataset.line);
  if (next) selectWord(next, true);
}

// Attention.

const attentionKey = (line, text) => JSON.stringify([line, text]);

async function loadAttention(line) {
  const version = shownVersion(line);
  if (!settings.attention || !version || isBlank(version.text)) return;
  const key = attentionKey(line, version.text);
  if (attentions.has(key)) return;
  try {
    const fields = {source: line, target: version.text, language};
    const reply = await post("attention", fields);
    if (attentions.size > CACHED_LINES) attentions.clear();
    attentions.set(key, reply);
    const containing = reply.target.find(([, end]) => end > selected.offset);
    if (containing) selected.offset = containing[0];
  } catch (error) {
    failed(error);
  }
}

// The selected word's number and its weights over the source words, or null.
function selectedWeights() {
  const line = linesOf(source.value)[selected.line];
  const version = shownVersion(line);
  const attention = version && attentions.get(attentionKey(line, version.text));
  if (!attention || selected.offset === null) return null;
  const word = attention.target.findIndex(([start]) => start === selected.offset);
  if (word < 0) return null;
  const text = ([start, end], of) => [...of].slice(start, end).join("");
  return {
    line, attention, word,
    weights: layerWeights(attention)[word],
    name: text(attention.target[word], version.text),
    sources: [...attention.source.map(span => text(span, line) || LANGUAGE), END],
    targets: attention.target.map(span => text(span, version.text)),
  };
}

function layerWeights({weights}) {
  if (layer) return weights[layer - 1];
  return weights[0].map((row, t) => row.map((_, s) => mean(weights.map(one => one[t][s]))));
}

// Mark the source words behind the text.
function showMarks(chosen) {
  if (!chosen) {
    marks.textContent = `${source.value}\n`;
    return;
  }
  const lines = linesOf(source.value);
  const parts = [lines.slice(0, selected.line).map(line => `${line}\n`).join("")];
  const characters = [...chosen.line];
  let position = 0;
  chosen.attention.source.forEach(([start, end], index) => {
    parts.push(characters.slice(position, start).join(""));
    const percent = Math.round(100 * Math.min(1, chosen.weights[index] * 1.1));
    const style = `background:color-mix(in srgb, var(--accent) ${percent}%, transparent)`;
    parts.push(html("mark", {style}, characters.slice(start, end).join("")));
    position = end;
  });
  parts.push(characters.slice(position).join(""));
  parts.push(lines.slice(selected.line + 1).map(line => `\n${line}`).join(""), "\n");
  marks.replaceChildren(...parts);
}

// What is below the boxes: alternatives of the selected line, and the attention of its word.
function showDetails() {
  const lines = linesOf(source.value);
  const known = translations.get(lines[selected.line]);
  const chosen = selectedWeights();
  showMarks(chosen);
  const parts = [];
  if (known && known.versions.length > 1) parts.push(alternatives(lines, known));
  if (chosen) parts.push(attentionOf(chosen), wholeMap(chosen));
  else if (known && settings.attention) {
    parts.push(html("section", {}, html("h2", {}, "Attention"),
      hint("Choose a word of the translation to see which source words the model read for it.")));
  }
  byId("details").replaceChildren(...parts);
}

function alternatives(lines, known) {
  const many = lines.filter(line => !isBlank(line)).length > 1;
  const items = known.versions.map(({text, score}, index) => {
    const content = [
      html("span", {dir: "auto"}, ...differing(text, known.versions[0].text)),
      html("span", {class: "score", title: "log probability / length penalty"},
        fixed(score).replace("-", "\u2212")),
    ];
    const choose = () => {
      known.chosen = index;
      selected.offset = null;
      show();
      byId("details").querySelectorAll(".alternatives button")[index].focus();
    };
    return html("li", {}, button(content, choose, {"aria-pressed": index === known.chosen}));
  });
  return html("section", {},
    html("h2", {}, many ? `Alternatives for line ${selected.line + 1}` : "Alternatives"),
    html("ol", {class: "alternatives"}, items));
}

// The text, with what lies between the common beginning and the common end in bold.
function differing(text, best) {
  const words = text.split(" "), others = best.split(" ");
  let start = 0, end = 0;
  while (start < words.length && words[start] === others[start]) start += 1;
  if (start === words.length && start === others.length) return [text];
  while (end < Math.min(words.length, others.length) - start
    && words.at(-1 - end) === others.at(-1 - end)) end += 1;
  const middle = words.slice(start, words.length - end).join(" ");
  return [
    words.slice(0, start).map(word => `${word} `).join(""),
    html("b", {}, middle),
    words.slice(words.length - end).map(word => ` ${word}`).join(""),
  ];
}

function attentionOf({name, weights, sources, attention}) {
  const order = range(weights.length).sort((a, b) => weights[b] - weights[a]).slice(0, 5);
  const rows = order.flatMap(index => [
    html("dt", {dir: "auto"}, sources[index]),
    html("dd", {class: "track"}, html("div", {
      class: "bar", style: `width:${fixed(100 * weights[index], 1)}%`,
    })),
    html("dd", {class: "number"}, fixed(weights[index], 2)),
  ]);
  const names = ["all, mean", ...attention.weights.map((_, index) => index + 1)];
  const change = chosen => {
    layer = chosen;
    showDetails();
    byId("details").querySelector("select").focus();
  };
  return html("section", {},
    html("h2", {}, "Attention of ", html("bdi", {}, `“${name}”`), " over the source"),
    html("dl", {class: "weights"}, rows),
    names.length > 2 ? select("Layer", names, layer, change) : "",
    hint("Mean over the heads while the model predicts the word."));
}

let mapIsOpen = false;

function wholeMap({word, attention, sources, targets, line}) {
  const values = layerWeights(attention);
  const details = html("details", {}, html("summary", {}, "Attention of every word"));
  const draw = () => {
    const summary = announcement();
    const map = heatMap("Attention", targets, sources, (t, s) => values[t][s], (t, s) => {
      summary.textContent = `${targets[t]} reads ${sources[s]}: ${fixed(values[t][s], 2)}`;
    });
    details.append(scrollable(map.drawing), summary);
    map.moveTo(word, 0);
  };
  details.addEventListener("toggle", () => {
    mapIsOpen = details.open;
    if (details.open && details.children.length === 1) draw();
  });
  details.open = mapIsOpen;
  return details;
}

// Events.

source.addEventListener("input", () => {
  const before = linesOf(source.value.slice(0, source.selectionStart));
  selected.line = before.length - 1;
  selected.offset = null;
  showMarks(null);
  clearTimeout(timer);
  timer = setTimeout(translate, TYPING_PAUSE);
});
source.addEventListener("keyup", () => {
  const number = linesOf(source.value.slice(0, source.selectionStart)).length - 1;
  if (number === selected.line || pending) return;
  selected.line = number;
  selected.offset = null;
  show();
});
source.addEventListener("keydown", event => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  translate();
});

target.addEventListener("click", event => {
  const word = event.target.closest(".word");
  if (word) selectWord(word, true);
});
target.addEventListener("keydown", event => {
  if (!event.target.closest(".word")) return;
  onKeys({
    ...arrowKeys(moveFocus),
    Enter: () => selectWord(event.target, true),
    " ": () => selectWord(event.target, true),
    Escape: () => source.focus(),
  })(event);
});

if (settings.targets.length > 1) {
  byId("choice").append(select("Language", settings.targets.map(({name}) => name), 0, index => {
    language = settings.targets[index].code;
    translations.clear();
    attentions.clear();
    selected.offset = null;
    translate();
  }));
}
byId("clear").addEventListener("click", () => {
  source.value = "";
  translate();
  source.focus();
});
byId("copy").addEventListener("click", async () => {
  const text = linesOf(source.value)
    .map(line => isBlank(line) ? "" : shownVersion(line)?.text ?? "").join("\n");
  try {
    await navigator.clipboard.writeText(text);
    report("Copied.");
  } catch {
    getSelection().selectAllChildren(target);
    report("Selected; press Ctrl+C.");
  }
});

translate();
