// SPDX-License-Identifier: Apache-2.0
// Building blocks of all views: elements, labels, controls, keyboard. Text is only inserted as text.
"use strict";

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const HIGH = "#08519c";  // --high and --low of the light palette, for saved drawings
const LOW = "#b34700";

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

// Open the part of the page that has a control, and move the focus there.
function reveal(control) {
  const part = control.closest("details.part");
  if (part) part.open = true;
  control.focus();
}

// A labeled list of choices; change(index) is called with the selected one. A page that draws the
// list again finds it by its data-key, to give it the focus back.
function select(name, choices, selected, change) {
  const options = choices.map((choice, value) =>
    html("option", {value, selected: value === selected ? "" : null}, choice));
  const list = html("select",
    {"data-key": name, change: event => change(Number(event.target.value))}, options);
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

// A table; the first cell of each row is its heading. A cell may be one of `shaded`.
function table(caption, columns, rows) {
  const head = columns.map((name, index) =>
    html("th", {scope: "col", class: index ? "number" : null}, name));
  const body = rows.map(([first, ...cells]) => html("tr", {},
    html("th", {scope: "row"}, first),
    cells.map(cell => cell.tagName === "TD" ? cell : html("td", {class: "number"}, cell))));
  return html("div", {class: "wide", tabindex: 0},
    html("table", {},
      html("caption", {}, caption),
      html("thead", {}, html("tr", {}, head)),
      html("tbody", {}, body)));
}

// Values as colors: the paper is 0, the full color is the limit, and all between is in proportion.

const share = (value, limit) => limit ? Math.min(1, Math.abs(value) / limit) : 0;
const hue = value => value < 0 ? "low" : "high";

// The largest absolute value of rows of numbers, some of which may be null.
const largest = rows => Math.max(0, ...rows.flat().map(Math.abs));

// A table cell in the color of its value.
function shaded(value, limit = 1, digits = 4) {
  const part = share(value, limit);
  return html("td",
    {class: `number ${hue(value)}${part > .6 ? " strong" : ""}`, style: `--value:${part}`},
    fixed(value, digits));
}

// The legend of a scale.
function scale(name, limit = 1, {signed = false, digits = 0} = {}) {
  const steps = [0, .25, .5, .75, 1];
  const cells = steps.map(value => html("i", {class: "high", style: `--value:${value}`}));
  const below = steps.slice(1).reverse().map(value =>
    html("i", {class: "low", style: `--value:${value}`}));
  return html("span", {class: "scale"},
    `${name} ${signed ? `−${fixed(limit, digits)}` : 0}`,
    html("span", {}, signed ? below : [], cells),
    fixed(limit, digits));
}

// Drawings.

const pen = document.createElement("canvas").getContext("2d");

// The width of a label in a drawing, in pixels.
function textWidth(text) {
  pen.font = "12px system-ui, sans-serif";
  return Math.ceil(pen.measureText(text).width);
}

// The width of the widest label, at most `limit`.
const labelWidth = (labels, limit) => Math.min(limit, Math.max(0, ...labels.map(textWidth)));

// The width that a drawing can have without scrolling.
const availableWidth = () => Math.min(document.documentElement.clientWidth - 36, 1100);

// Text of at most `width` pixels; longer text is squeezed.
function svgText(content, x, y, width, attributes = {}) {
  const squeezed = textWidth(content) > width
    ? {textLength: width, lengthAdjust: "spacingAndGlyphs"} : {};
  return svg("text", {x, y, dy: ".32em", ...squeezed, ...attributes}, content);
}

// Set a drawing's size. It never shrinks, so that its text stays readable.
function resize(drawing, width, height) {
  return fill(drawing, {viewBox: `0 0 ${width} ${height}`, style: `width:${width}px`});
}

// A button that saves a drawing as an SVG file in dark ink, independent of the page's colors.
function saveButton(getDrawing) {
  return button("Save as SVG", () => {
    const style = "color:#1b1b1b;fill:#1b1b1b;font:12px sans-serif";
    const copy = fill(getDrawing().cloneNode(true), {style});
    copy.prepend(svg("style", {}, `.high{fill:${HIGH}}.low{fill:${LOW}}.quiet{fill:#5a6069}`
      + `.line{fill:none;stroke:${HIGH}}`));
    const text = new XMLSerializer().serializeToString(copy);
    const href = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
    html("a", {download: "attention.svg", href}).click();
  });
}
