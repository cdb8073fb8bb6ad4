// SPDX-License-Identifier: Apache-2.0
// A map of numbers of both signs, which are read cell by cell.
views.numbers = ({values, most, measure, ...options}) => {
  const [rows, columns] = [options.rows, options.columns].map(labels => labels.map(label)), said = spoken();
  const picture = map(measure, rows, columns, (i, j) => values[i][j] / most, (i, j) => {
    said.textContent = `${rows[i]}, ${columns[j]}: ${fixed(values[i][j])}`;
  });
  picture.go(0, 0);
  return [tools(saver(() => picture)), make("small", {}, `${measure}. Square cells: above 0; round cells: below; the shade is the root of the share of the largest. Arrow keys read the cells.`),
    said, make("div", {class: "wide"}, picture), make("details", {}, make("summary", {}, "The same in numbers"),
      table(measure, ["", ...columns], rows.map((row, i) => [row, ...values[i].map(value => fixed(value))])))];
};
