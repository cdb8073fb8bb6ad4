// SPDX-License-Identifier: Apache-2.0
// A heat map of any values of rows and columns, such as contributions of tokens.

function valueMap({name, rows, columns, values, limit, unit, digits, cursor}) {
  const summary = announcement();
  const signed = values.flat().some(value => value < -limit / 100);
  const [rowNames, columnNames] = [rows, columns].map(labels => labels.map(labelText));
  const map = heatMap(name, rowNames, columnNames,
    (row, column) => values[row][column],
    (row, column) => {
      const value = values[row][column];
      const shown = value === null ? "cannot count" : `${fixed(value, digits)} ${unit}`;
      summary.textContent = `${rowNames[row]}, ${columnNames[column]}: ${shown}`;
    },
    {limit});
  map.moveTo(...cursor);
  return [
    toolbar(scale(unit, limit, {signed, digits: Math.min(digits, 2)}), saveButton(() => map.drawing)),
    summary, scrollable(map.drawing),
  ];
}
