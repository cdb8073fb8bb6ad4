// SPDX-License-Identifier: Apache-2.0
// What all views use: elements, labels, controls, saving. Text only ever goes in as text.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const ns = document.querySelector("svg").namespaceURI;
const views = {};

// An element; an attribute that is a function listens to the event of its name.
const filled = (node, attributes, content = []) => {
  for (const [name, value] of Object.entries(attributes))
    if (value?.call) node.addEventListener(name, value);
    else if (value != null) node.setAttribute(name, value);
  node.append(...content.flat(2));
  return node;
};
const make = (tag, attributes = {}, ...content) =>
  filled(document.createElement(tag), attributes, content);
const draw = (tag, attributes = {}, ...content) =>
  filled(document.createElementNS(ns, tag), attributes, content);

// Each token between "first strong isolate" and "pop", so that it turns no text around it.
const label = tokens => tokens.map(token => `\u2068${token}\u2069`).join(" → ");
const fixed = (value, digits = 3) => (+value.toFixed(digits) + 0).toFixed(digits);
const range = count => [...Array(count).keys()];
const sum = values => values.reduce((a, b) => a + b, 0);
const within = (value, count) => Math.max(0, Math.min(count - 1, value));
const colour = head => data.colours[head % data.colours.length];

// Of the event `keydown`: what each key does; the arrow keys `move(down, right)`.
const keys = acts => event => {
  const act = acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
};
const arrows = move => ({ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
  ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1)});

// A label in a drawing, squeezed where it is longer than its room.
const text = (content, x, y, room, attributes) => draw("text", {x, y, dy: ".32em", ...attributes,
  ...(content.length * 7 > room + 14 && {textLength: room, lengthAdjust: "spacingAndGlyphs"})},
  content);

// A drawing's size; it shrinks with the window, but stays readable.
const sized = (picture, width, height, more) => filled(picture, {viewBox: `0 0 ${width} ${height}`,
  style: `max-width:${width}px;min-width:${width * .75}px`, ...more});

const button = (name, click, attributes) => make("button", {click, ...attributes}, name);
const choice = (name, options, chosen, change) => make("label", {}, `${name} `,
  make("select", {change: event => change(+event.target.value)}, options.map((option, value) =>
    make("option", {value, selected: value === chosen ? "" : null}, option))));
const tools = (...content) => make("div", {class: "tools"}, content);
const spoken = () => make("p", {"aria-live": "polite"});

// The first cell of a row is its heading.
const table = (caption, columns, rows) => make("div", {class: "wide", tabindex: 0},
  make("table", {}, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, columns.map(name => make("th", {scope: "col"}, name)))),
    make("tbody", {}, rows.map(([first, ...cells]) => make("tr", {},
      make("th", {scope: "row"}, first),
      cells.map(cell => make("td", {class: "number"}, cell)))))));

// The drawing as a file: dark on nothing, as paper wants it, whatever the page's colours are.
const saver = chosen => button("Save as SVG", () => {
  const copy = filled(chosen().cloneNode(true), {style: "color:#1b1b1b;fill:#1b1b1b;font:12px sans-serif"});
  make("a", {download: "attention.svg", href: URL.createObjectURL(new Blob(
    [new XMLSerializer().serializeToString(copy)], {type: "image/svg+xml"}))}).click();
});
