// SPDX-License-Identifier: Apache-2.0
// A map of cells with a cursor that the arrow keys and the pointer move; `moved(row, column)`.
// A cell's shade is the square root of its value; negative cells are round.
const map = (name, rows, columns, value, moved) => {
  const size = within(Math.floor(560 / columns.length), 27) || 1;
  const room = (labels, most) => Math.min(most, 20 + 7 * Math.max(...labels.map(one => one.length)));
  const left = room(rows, 210), top = room(columns, 130);
  const cursor = draw("rect", {height: size, fill: "none", stroke: "currentColor", "stroke-width": 2});
  const at = [0, 0];
  const point = (row, column) => {
    at[0] = within(row, rows.length);
    at[1] = within(column, columns.length);
    filled(cursor, {width: size, x: left + size * at[1] - .5, y: top + size * at[0] - .5}, []);
  };
  const go = (row, column) => {
    point(row, column);
    moved(...at);
  };
  const cells = rows.flatMap((_, i) => columns.map((_, j) => {
    const shown = value(i, j);
    return draw("rect", {x: left + size * j, y: top + size * i, width: size - 1, height: size - 1,
      rx: shown < 0 ? size / 2 : 0, fill: shown < 0 ? "#d0650f" : "#0b7fc4",
      "fill-opacity": fixed(Math.min(1, Math.sqrt(Math.abs(shown))))});
  }));
  const width = left + size * columns.length + 4, height = top + size * rows.length + 4;
  const picture = draw("svg", {tabindex: 0, role: "application", "aria-label": `${name}; arrow keys read its cells`,
    viewBox: `0 0 ${width} ${height}`, style: `max-width:${width}px`,
    mousemove: ({clientX, clientY}) => {
      const point = new DOMPoint(clientX, clientY).matrixTransform(picture.getScreenCTM().inverse());
      const [row, column] = [(point.y - top) / size | 0, (point.x - left) / size | 0];
      if (point.y > top && point.x > left && (row !== at[0] || column !== at[1])) go(row, column);
    },
    keydown: event => {
      const [down, right] = arrows[event.key] ?? [];
      if (down == null) return;
      go(at[0] + down, at[1] + right);
      event.preventDefault();
    }},
    cells, cursor,
    rows.map((row, i) => text(row, left - 6, top + size * (i + .5), left - 8, {"text-anchor": "end"})),
    columns.map((column, j) => {
      const [x, y] = [left + size * (j + .5), top - 6];
      return text(column, x, y, top - 8, {transform: `rotate(-90,${x},${y})`});
    }));
  return Object.assign(picture, {go, point});
};
