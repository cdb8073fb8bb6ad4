// SPDX-License-Identifier: Apache-2.0
// The overview: a small map of every head, ordered by a measure, and a large map of the chosen one.

function headOverview({measures}, [pair]) {
  const state = {kind: 0, order: 0, layer: 0, head: 0};
  const summary = announcement(), largeMap = scrollable(), numbers = html("details");
  const attention = () => pair[state.kind];
  const measureOf = (index, {layer, head}) => measures[index].values[state.kind][layer][head];

  const list = html("div", {
    class: "overview",
    keydown: onKeys(arrowKeys((down, right) => {
      const maps = [...list.children], current = maps.indexOf(document.activeElement);
      const headCount = attention().weights[0].length;
      const next = maps[clamp(current + right + down * headCount, maps.length)];
      next.focus();
      next.click();
    })),
  });

  function update() {
    const {weights, firstLayer} = attention();
    const heads = weights.flatMap((layer, index) =>
      range(layer.length).map(head => ({layer: index, head})));
    if (state.order) {
      heads.sort((a, b) => measureOf(state.order - 1, b) - measureOf(state.order - 1, a));
    }
    list.style.gridTemplateColumns = `repeat(${weights[0].length},minmax(2.6rem,7rem))`;
    list.replaceChildren(...heads.map(({layer, head}, index) => {
      const number = firstLayer + layer + 1;
      return button([thumbnail(weights[layer][head]), `${number}.${head + 1}`],
        () => choose(heads[index], index),
        {"aria-label": `layer ${number}, head ${head + 1}`});
    }));
    numbers.replaceChildren(html("summary", {}, "In numbers"), table(
      "Every head",
      ["layer.head", ...measures.map(({name}) => name)],
      heads.map(each => [
        `${firstLayer + each.layer + 1}.${each.head + 1}`,
        ...measures.map((_, index) => fixed(measureOf(index, each))),
      ])));
    choose(heads[0], 0);
  }

  // Show a head, whose map is at an index in the list, as the large map.
  function choose({layer, head}, index) {
    Object.assign(state, {layer, head});
    [...list.children].forEach((node, other) =>
      fill(node, {"aria-pressed": other === index, tabindex: other === index ? 0 : -1}));
    const {title, firstLayer, weights} = attention();
    const [rows, columns] = [attention().rows, attention().columns]
      .map(labels => labels.map(labelText));
    const values = measures.map(({name}, measure) =>
      `${name} ${fixed(measureOf(measure, {layer, head}))}`);
    const name = `${title}, layer ${firstLayer + layer + 1}, head ${head + 1}`;
    const map = heatMap(name, rows, columns,
      (row, column) => weights[layer][head][row][column],
      (row, column) => {
        const weight = fixed(weights[layer][head][row][column]);
        summary.textContent =
          `${name}: ${values.join(", ")}. ${rows[row]} reads ${columns[column]}: ${weight}.`;
      });
    largeMap.replaceChildren(map.drawing);
    map.moveTo(0, 0);
  }

  function set(changes) {
    Object.assign(state, changes);
    update();
  }

  function showInHeadView() {
    const {kind, layer, head} = state;
    dispatchEvent(new CustomEvent("show-head", {detail: {pair, kind, layer, head}}));
  }

  update();
  const hasHeadView = data.views.some(({script}) => script === "headView");
  const orders = ["layer and head", ...measures.map(({name}) => `highest ${name}`)];
  return [
    toolbar(
      select("Attention", pair.map(({title}) => title), 0, kind => set({kind})),
      select("Order", orders, 0, order => set({order})),
      saveButton(() => largeMap.firstChild),
      hasHeadView ? button("Show in the head view", showInHeadView) : []),
    hint("Small maps are named layer.head. Rows are queries, columns are keys; the opacity is the "
      + "square root of the weight. Arrow keys move."),
    summary, sideBySide(scrollable(list), largeMap), numbers,
  ];
}

// A map of one pixel per weight.
function thumbnail(weights) {
  const canvas = html("canvas", {width: weights[0].length, height: weights.length});
  const context = canvas.getContext("2d");
  context.fillStyle = BLUE;
  weights.forEach((row, y) => row.forEach((weight, x) => {
    context.globalAlpha = Math.sqrt(weight);
    context.fillRect(x, y, 1, 1);
  }));
  return canvas;
}
