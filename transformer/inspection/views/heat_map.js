// SPDX-License-Identifier: Apache-2.0
// A heat map with a cursor, which the arrow keys and the pointer move.

// The opacity of a cell is the square root of its value; cells of negative values are round.
// getValue(row, column) gives the values; moved(row, column) is called when the cursor moves.
function heatMap(name, rows, columns, getValue, moved) {
  const size = Math.max(13, Math.min(26, Math.floor(560 / columns.length)));
  const left = labelWidth(rows, 210), top = labelWidth(columns, 130);
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
    return svg("rect", {
      x: left + size * column, y: top + size * row, width: size - 1, height: size - 1,
      rx: value < 0 ? size / 2 : 0,
      fill: value < 0 ? ORANGE : BLUE,
      "fill-opacity": fixed(Math.sqrt(Math.abs(value))),
      "data-row": row, "data-column": column,
    });
  }

  function columnLabel(text, column) {
    const x = left + size * (column + .5), y = top - 6;
    return svgText(text, x, y, top - 8, {transform: `rotate(-90,${x},${y})`});
  }

  const drawing = svg("svg",
    {
      tabindex: 0, role: "application", "aria-label": `${name}; arrow keys`,
      mousemove: ({target}) => {
        const {row, column} = target.dataset;
        if (row !== undefined) moveTo(Number(row), Number(column));
      },
      keydown: onKeys(arrowKeys((down, right) => moveTo(position[0] + down, position[1] + right))),
    },
    rows.map((_, row) => columns.map((_, column) => cell(row, column))),
    cursor,
    rows.map((text, row) =>
      svgText(text, left - 6, top + size * (row + .5), left - 8, {"text-anchor": "end"})),
    columns.map(columnLabel));
  resize(drawing, left + size * columns.length + 4, top + size * rows.length + 4);
  return {drawing, point, moveTo};
}

function labelWidth(labels, largest) {
  return Math.min(largest, 20 + 7 * Math.max(...labels.map(text => text.length)));
}
