// SPDX-License-Identifier: Apache-2.0
// Two sentences: the maps of the same head in both, and their difference.

function sentenceComparison({names, layer, head}, pairs) {
  const state = {kind: 0, layer, head};
  const summary = announcement(), headControl = html("span");
  const maps = sideBySide();
  const attention = () => pairs.map(pair => pair[state.kind]);

  function update() {
    const headCount = attention()[0].weights[0].length;
    state.head = clamp(state.head, headCount);
    headControl.replaceChildren(
      select("Head", range(headCount).map(index => index + 1), state.head, chosen => {
        state.head = chosen;
        update();
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
    const drawn = [
      heatMap(names[0], labels(0, "rows"), labels(0, "columns"), (i, j) => first[i][j], moved),
      heatMap(names[1], labels(1, "rows"), labels(1, "columns"), (i, j) => second[i][j], moved),
      heatMap(difference, rows, columns, (i, j) => second[i][j] - first[i][j], moved),
    ];
    maps.replaceChildren(...[...names, difference].map((name, index) =>
      html("figure", {}, html("figcaption", {}, name), scrollable(drawn[index].drawing))));
    moved(0, 0);
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
    hint(`Difference: square cells are higher in ${names[1]}, round cells are lower. `
      + "Arrow keys or pointer: choose a cell."),
    summary, maps,
  ];
}
