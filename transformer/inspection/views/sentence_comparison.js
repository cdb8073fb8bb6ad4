// SPDX-License-Identifier: Apache-2.0
// Two sentences: the maps of the same head in both, and their difference.

function sentenceComparison({names, kind, layer, head, rows: firstRows}, pairs) {
  const state = {kind, layer, head};
  const summary = announcement(), headControl = html("span");
  const maps = sideBySide();
  const attention = () => pairs.map(pair => pair[state.kind]);

  function update() {
    const headCount = attention()[0].weights[0].length;
    state.head = clamp(state.head, headCount);
    headControl.replaceChildren(
      select("Head", range(headCount).map(index => index + 1), state.head, chosen => {
        state.head = chosen;
        drawMaps();  // keeps this list, and so its focus
      }));
    drawMaps();
  }

  function drawMaps() {
    const [first, second] = attention().map(({weights}) => weights[state.layer][state.head]);
    const rows = combinedLabels("rows"), columns = combinedLabels("columns");
    const difference = `${names[1]} minus ${names[0]}`;

    // All maps show the same cell.
    function moved(row, column) {
      for (const map of drawn) map.point(row, column);
      const [before, after] = [first[row][column], second[row][column]];
      summary.textContent = `${rows[row]} reads ${columns[column]}: ${fixed(before)} in ${names[0]}, `
        + `${fixed(after)} in ${names[1]}, difference ${fixed(after - before)}`;
    }

    const labels = (index, side) => attention()[index][side].map(labelText);
    // All maps beside each other, where the window is wide enough.
    const size = {width: availableWidth() > 900 ? availableWidth() / 3 - 24 : availableWidth()};
    const drawn = [
      heatMap(names[0], labels(0, "rows"), labels(0, "columns"), (i, j) => first[i][j], moved, size),
      heatMap(names[1], labels(1, "rows"), labels(1, "columns"), (i, j) => second[i][j], moved, size),
      heatMap(difference, rows, columns, (i, j) => second[i][j] - first[i][j], moved, size),
    ];
    maps.replaceChildren(...[...names, difference].map((name, index) =>
      html("figure", {}, html("figcaption", {}, name), scrollable(drawn[index].drawing))));
    // The cell that differs most in the row that the page is about.
    const row = clamp(firstRows[state.kind], rows.length);
    const changes = columns.map((_, column) => Math.abs(second[row][column] - first[row][column]));
    moved(row, changes.indexOf(Math.max(...changes)));
  }

  // Labels of the difference: both texts where the sentences differ.
  function combinedLabels(side) {
    const [first, second] = attention().map(each => each[side].map(labelText));
    return first.map((text, index) =>
      text === second[index] ? text : `${text} / ${second[index]}`);
  }

  const picker = attentionPicker(pairs[0], state, update);
  update();
  return [
    toolbar(picker.controls, headControl, saveButton(() => maps.lastChild.querySelector("svg"))),
    scale("weight or difference", 1, {signed: true}),
    hint(`Difference: square cells are higher in ${names[1]}, round cells are lower. `
      + "Arrow keys or pointer: choose a cell."),
    summary, maps,
  ];
}
