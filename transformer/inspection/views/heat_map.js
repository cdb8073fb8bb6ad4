// SPDX-License-Identifier: Apache-2.0
// A heat map with a cursor, which the arrow keys and the pointer move.

// The opacity of a cell is its value as a share of the limit; cells of negative values are round.
// getValue(row, column) gives the values, null for no cell; moved(row, column) is called when the
// cursor moves.
function heatMap(name, rows, columns, getValue, moved, {limit = 1, width = availableWidth()} = {}) {
  const left = labelWidth(rows, 150) + 10;
  const widest = labelWidth(columns, 120);
  const fitting = Math.floor((width - left - widest * Math.SQRT1_2 - 4) / columns.length);
  const size = Math.max(16, Math.min(40, fitting));
  // Labels of narrow columns are steeper, so that they do not touch.
  const angle = size < 20 ? 60 : 45, radians = angle * Math.PI / 180;
  const beyond = widest * Math.cos(radians), top = widest * Math.sin(radians) + 16;
  const cursor = svg("rect",
    {width: size, height: size, fill: "none", stroke: "currentColor", "stroke-width": 2});
  let position = [0, 0];

  // Show the cursor at a cell.
  function point(row, column) {
    position = [clamp(row, rows.length), clamp(column, columns.length)];
    fill(cursor, {x: left + size * position[1] - .5, y: top + size * position[0] - .5});
  }

  function moveTo(row, column) {
    point(row, column);
    moved(...position);
  }

  function cell(row, column) {
    const value = getValue(row, column);
    if (value === null) return [];
    return svg("rect", {
      x: left + size * column, y: top + size * row, width: size - 1, height: size - 1,
      rx: value < 0 ? size / 2 : 0,
      class: hue(value),
      "fill-opacity": fixed(share(value, limit)),
      "data-row": row, "data-column": column,
    });
  }

  function columnLabel(text, column) {
    const x = left + size * (column + .5), y = top - 6;
    return svgText(text, x, y, 120, {transform: `rotate(-${angle},${x},${y})`});
  }

  const height = size * rows.length, span = size * columns.length;
  const drawing = svg("svg",
    {
      tabindex: 0, role: "application", "aria-label": `${name}; arrow keys`,
      mousemove: ({target}) => {
        const {row, column} = target.dataset;
        if (row !== undefined) moveTo(Number(row), Number(column));
      },
      keydown: onKeys(arrowKeys((down, right) => moveTo(position[0] + down, position[1] + right))),
    },
    // The frame shows where the map ends, because cells of 0 have the color of the paper.
    svg("rect", {
      x: left - 1, y: top - 1, width: span + 1, height: height + 1,
      fill: "none", stroke: "currentColor", "stroke-opacity": .2,
    }),
    rows.map((_, row) => columns.map((_, column) => cell(row, column))),
    cursor,
    rows.map((text, row) =>
      svgText(text, left - 6, top + size * (row + .5), left - 8, {"text-anchor": "end"})),
    columns.map(columnLabel));
  resize(drawing, left + span + beyond + 4, top + height + 4);
  return {drawing, point, moveTo};
}
