// SPDX-License-Identifier: Apache-2.0
// A map of cells with a cursor that the arrow keys and the pointer move: `moved(row, column)`.
// A cell's shade is the square root of its value; negative cells are round.
const map = (name, rows, columns, value, moved) => {
  const size = Math.max(13, Math.min(26, 560 / columns.length | 0));
  const room = (labels, most) => Math.min(most, 20 + 7 * Math.max(...labels.map(one => one.length)));
  const left = room(rows, 210), top = room(columns, 130);
  const cursor = draw("rect", {height: size, fill: "none", stroke: "currentColor", "stroke-width": 2});
  let at = [0, 0];
  const point = (row, column) => {
    at = [within(row, rows.length), within(column, columns.length)];
    filled(cursor, {width: size, x: left + size * at[1] - .5, y: top + size * at[0] - .5});
  };
  const go = (row, column) => {
    point(row, column);
    moved(...at);
  };
  const picture = draw("svg", {tabindex: 0, role: "application", "aria-label": `${name}; arrow keys`,
    mousemove: ({target}) => {
      const cell = target.dataset.at?.split(",");
      if (cell) go(...cell.map(Number));
    },
    keydown: keys(arrows((down, right) => go(at[0] + down, at[1] + right)))},
  rows.map((_, i) => columns.map((_, j) => {
    const shown = value(i, j), less = shown < 0;
    return draw("rect", {x: left + size * j, y: top + size * i, width: size - 1, height: size - 1,
      "data-at": [i, j], rx: less ? size / 2 : 0, fill: less ? "#d0650f" : "#0b7fc4",
      "fill-opacity": fixed(Math.sqrt(Math.abs(shown)))});
  })), cursor,
  rows.map((row, i) => text(row, left - 6, top + size * (i + .5), left - 8, {"text-anchor": "end"})),
  columns.map((column, j) => {
    const [x, y] = [left + size * (j + .5), top - 6];
    return text(column, x, y, top - 8, {transform: `rotate(-90,${x},${y})`});
  }));
  sized(picture, left + size * columns.length + 4, top + size * rows.length + 4);
  return Object.assign(picture, {go, point});
};
