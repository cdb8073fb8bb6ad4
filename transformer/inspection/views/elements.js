// SPDX-License-Identifier: Apache-2.0
// Building blocks of all views: elements, labels, controls, keyboard. Text is only inserted as text.
"use strict";

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const BLUE = "#0b7fc4";
const ORANGE = "#d0650f";

// Set attributes and append children. A function is the listener of the event of that name.
function fill(node, attributes, children = []) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(2));
  return node;
}

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

// Numbers and labels.

const range = count => [...Array(count).keys()];
const sum = values => values.reduce((total, value) => total + value, 0);
const mean = values => sum(values) / values.length;
const clamp = (index, count) => Math.max(0, Math.min(count - 1, index));

// A number with fixed digits, in which zero has no sign.
function fixed(value, digits = 3) {
  return (Number(value.toFixed(digits)) + 0).toFixed(digits);
}

// The tokens of a row or column, each isolated from the writing direction of the others.
function labelText(tokens) {
  return tokens.map(token => `\u2068${token}\u2069`).join(" → ");
}

// Keyboard.

// A keydown listener that calls the action of the pressed key.
function onKeys(actions) {
  return event => {
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };
}

// Actions of the arrow keys: move(rows down, columns right).
function arrowKeys(move) {
  return {
    ArrowUp: () => move(-1, 0),
    ArrowDown: () => move(1, 0),
    ArrowLeft: () => move(0, -1),
    ArrowRight: () => move(0, 1),
  };
}

// Controls.

function button(content, click, attributes = {}) {
  return html("button", {type: "button", click, ...attributes}, content);
}

// A labeled list of choices; change(index) is called with the selected one.
function select(name, choices, selected, change) {
  const options = choices.map((choice, value) =>
    html("option", {value, selected: value === selected ? "" : null}, choice));
  const list = html("select", {change: event => change(Number(event.target.value))}, options);
  return html("label", {}, `${name} `, list);
}

function toolbar(...content) {
  return html("div", {class: "toolbar"}, content);
}

// A paragraph that screen readers announce when it changes.
function announcement() {
  return html("p", {"aria-live": "polite"});
}

function hint(text) {
  return html("p", {class: "hint"}, text);
}

// Content beside each other where the window is wide enough.
function sideBySide(...content) {
  return html("div", {class: "side-by-side"}, content);
}

function scrollable(...content) {
  return html("div", {class: "wide"}, content);
}

// A table; the first cell of each row is its heading.
function table(caption, columns, rows) {
  const head = columns.map((name, index) =>
    html("th", {scope: "col", class: index ? "number" : null}, name));
  const body = rows.map(([first, ...cells]) => html("tr", {},
    html("th", {scope: "row"}, first),
    cells.map(cell => html("td", {class: "number"}, cell))));
  return html("div", {class: "wide", tabindex: 0},
    html("table", {},
      html("caption", {}, caption),
      html("thead", {}, html("tr", {}, head)),
      html("tbody", {}, body)));
}

// Drawings.

// Text of at most `width` pixels; longer text is squeezed.
function svgText(content, x, y, width, attributes = {}) {
  const tooLong = content.length * 7 > width + 14;
  const squeezed = tooLong ? {textLength: width, lengthAdjust: "spacingAndGlyphs"} : {};
  return svg("text", {x, y, dy: ".32em", ...squeezed, ...attributes}, content);
}

// Set a drawing's size. It shrinks with the window, but stays readable.
function resize(drawing, width, height) {
  return fill(drawing, {
    viewBox: `0 0 ${width} ${height}`,
    style: `width:${width}px;max-width:100%;min-width:${.75 * width}px`,
  });
}

// A button that saves a drawing as an SVG file in dark ink, independent of the page's colors.
function saveButton(getDrawing) {
  return button("Save as SVG", () => {
    const style = "color:#1b1b1b;fill:#1b1b1b;font:12px sans-serif";
    const copy = fill(getDrawing().cloneNode(true), {style});
    const text = new XMLSerializer().serializeToString(copy);
    const href = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
    html("a", {download: "attention.svg", href}).click();
  });
}
