// SPDX-License-Identifier: Apache-2.0
// Parts of all pictures: maps of numbers that can be read, words, and the reader, the line at the
// bottom of the window that names the number under the pointer or the cursor.

const reader = html("output", {class: "reader", "aria-live": "polite"},
  "Point at any number, or choose a picture with Tab and move with the arrow keys.");

// Words.

// A token as text: a continued word begins with a dot, and no sign stands for spaces.
function wordText({id, piece}, index) {
  if (id === special.unk_id) return `${piece.replaceAll(WORD_BEGIN, "")}?`;
  const text = piece.replaceAll(WORD_BEGIN, "");
  const continues = index > 0 && !piece.startsWith(WORD_BEGIN) && /^[\p{L}\p{N}]/u.test(piece);
  return continues ? `·${text}` : text || "·";
}

const wordsOf = tokens => tokens.map(wordText);
const targetWord = id => wordText({id, piece: pageData.pieces[id]}, 1);

// Decoder rows are named after the token that is read and the token that is predicted.
function rowsOfDecoder(tokens) {
  return tokens.map((token, t) =>
    `${targetWord(t ? tokens[t - 1] : special.bos_id)} → ${targetWord(token)}`);
}

// Colors: linear between the paper, which is 0, and the colors of the largest values.

let colors = {};

function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "high", "low"]) {
    const hex = style.getPropertyValue(`--${name}`).trim();
    colors[name] = [1, 3, 5].map(start => parseInt(hex.slice(start, start + 2), 16));
  }
}

function colorOf(value, limit) {
  const share = Math.min(1, Math.abs(value) / limit) || 0;
  const end = value < 0 ? colors.low : colors.high;
  return colors.paper.map((paper, channel) => paper + share * (end[channel] - paper));
}

function largestAbsolute(matrix) {
  return Math.max(1e-9, ...matrix.map(row => row.reduce((a, b) => Math.max(a, Math.abs(b)), 0)));
}

// A map of numbers, one cell each.
//   describe(row, column) names a number in the reader;  choose(row, column), if any, is called on
//   click and Enter;  marked: a row that is framed;  rowHeight: pixels, or null for square cells.
function numberMap(name, matrix, {
  limit = largestAbsolute(matrix), describe, choose, marked = null, rowHeight = 20, key = name,
}) {
  const rows = matrix.length, columns = matrix[0].length;
  const canvas = html("canvas", {width: columns, height: rows, "aria-hidden": true});
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  matrix.forEach((row, r) => row.forEach((value, c) =>
    image.data.set([...colorOf(value, limit), 255], 4 * (r * columns + c))));
  context.putImageData(image, 0, 0);

  const cursor = html("span", {class: "cursor", hidden: ""});
  let position = [marked ?? 0, 0];
  function point(row, column) {
    position = [clamp(row, rows), clamp(column, columns)];
    const [r, c] = position;
    cursor.hidden = false;
    cursor.style.cssText = `left:${100 * c / columns}%;top:${100 * r / rows}%;`
      + `width:${100 / columns}%;height:${100 / rows}%`;
    reader.textContent = `${describe(r, c)}: ${fixed(matrix[r][c], 4)}`;
  }
  const cellUnder = ({offsetX, offsetY, currentTarget}) => [
    Math.floor(offsetY / currentTarget.clientHeight * rows),
    Math.floor(offsetX / currentTarget.clientWidth * columns),
  ];
  const frame = marked === null ? [] : html("span", {class: "marked",
    style: `top:${100 * marked / rows}%;height:${100 / rows}%`});
  return html("div",
    {
      class: choose ? "map selectable" : "map", tabindex: 0, role: "application", "data-key": key,
      "aria-label": `${name}, ${rows} by ${columns}; arrow keys`,
      style: rowHeight === null
        ? `aspect-ratio:${columns}/${rows}` : `height:${rows * rowHeight}px`,
      mousemove: event => point(...cellUnder(event)),
      mouseleave: () => { cursor.hidden = true; },
      focus: () => point(...position),
      click: event => {
        point(...cellUnder(event));
        choose?.(...position);
      },
      keydown: onKeys({
        ...arrowKeys((down, right) => point(position[0] + down, position[1] + right)),
        ...(choose ? {Enter: () => choose(...position)} : {}),
      }),
    },
    canvas, frame, cursor);
}

// One vector as a strip.
function strip(name, vector, options = {}) {
  return numberMap(name, [vector], {describe: (_, d) => `${name}, dimension ${d + 1}`, ...options});
}

// Strips below each other, one a line: [name, vector, note] each.
function strips(lines, limit) {
  return html("div", {class: "strips"}, lines.map(([name, vector, note = ""]) => [
    html("span", {class: "label"}, name), strip(name, vector, {limit}),
    html("span", {class: "note"}, note),
  ]));
}

// A matrix with the words of its rows at the left.
function labeledRows(words, map, {rowHeight = 20} = {}) {
  const labels = words.map(word => html("span", {
    class: "label", style: `height:${rowHeight}px`, title: word,
  }, word));
  return html("div", {class: "labeled"}, html("div", {class: "labels"}, labels), map);
}

// Weights of queries (rows) on keys (columns), with slanted words above the columns.
function weightMap(name, matrix, rowWords, columnWords, options = {}) {
  const {rowHeight = 20} = options;
  const map = numberMap(name, matrix, {
    limit: 1, describe: (r, c) => `${rowWords[r]} reads ${columnWords[c]}`, ...options});
  return html("div", {class: "weights-map", style: `--columns:${columnWords.length}`},
    html("div", {class: "slanted", "aria-hidden": true},
      columnWords.map(word => html("span", {}, html("span", {}, word)))),
    labeledRows(rowWords, map, {rowHeight}));
}

// A bar of a probability, with its number.
function bar(value) {
  return html("span", {class: "bar"},
    html("span", {class: "filled", style: `width:${100 * value}%`}),
    html("span", {class: "number"}, fixed(value, 3)));
}

// Words as buttons of which one is chosen.
function wordButtons(name, words, chosen, choose, marked = () => "") {
  return html("div", {class: "words", role: "group", "aria-label": name},
    words.map((word, index) => button(word, () => choose(index), {
      "aria-pressed": index === chosen, class: marked(index), "data-key": `${name} ${index}`,
    })));
}

// Back, Next and Play over a number of steps.
function stepper(name, count, current, goTo) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const playing = players.has(name);
  function stop() {
    clearInterval(players.get(name));
    players.delete(name);
  }
  const play = button(playing ? "Stop" : "Play", () => {
    if (players.has(name)) stop();
    else {
      let at = current === count - 1 ? -1 : current;
      players.set(name, setInterval(() => {
        at += 1;
        if (at >= count - 1) stop();
        goTo(at);
      }, 1100));
    }
    goTo(current === count - 1 && players.has(name) ? 0 : current);
  }, {"data-key": `${name} play`});
  return toolbar(
    button("Back", () => goTo(clamp(current - 1, count)), {"data-key": `${name} back`}),
    button("Next", () => goTo(clamp(current + 1, count)), {"data-key": `${name} next`}),
    still ? [] : play,
    html("input", {
      type: "range", min: 0, max: count - 1, value: current, "aria-label": name,
      "data-key": `${name} slider`, input: event => goTo(Number(event.target.value)),
    }),
    html("span", {class: "note"}, `${current + 1} of ${count}`));
}

const players = new Map();
