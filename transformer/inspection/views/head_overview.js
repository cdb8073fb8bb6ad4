// SPDX-License-Identifier: Apache-2.0
// The overview: a small map of every head, ordered by a measure, and a large map of the chosen one.

// A measure has values for some kinds of attention, and null for the others.
function headOverview({measures: allMeasures, kind: firstKind, layer, head, rows: firstRows}, [pair]) {
  const state = {kind: firstKind, order: 0, layer, head, row: 0};
  const summary = announcement(), largeMap = scrollable(), numbers = html("details");
  const orderControl = html("span");
  const attention = () => pair[state.kind];
  const measures = () => allMeasures.filter(({values}) => values[state.kind]);
  const measureOf = (index, each) => measures()[index].values[state.kind][each.layer][each.head];

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
      ["layer.head", ...measures().map(({name}) => name)],
      heads.map(each => [
        `${firstLayer + each.layer + 1}.${each.head + 1}`,
        ...measures().map((_, index) => fixed(measureOf(index, each))),
      ])));
    const current = heads.findIndex(each => each.layer === state.layer && each.head === state.head);
    choose(heads[state.order ? 0 : Math.max(current, 0)], state.order ? 0 : Math.max(current, 0));
  }

  // Show a head, whose map is at an index in the list, as the large map.
  function choose({layer, head}, index) {
    Object.assign(state, {layer, head});
    [...list.children].forEach((node, other) =>
      fill(node, {"aria-pressed": other === index, tabindex: other === index ? 0 : -1}));
    const {title, firstLayer, weights} = attention();
    const [rows, columns] = [attention().rows, attention().columns]
      .map(labels => labels.map(labelText));
    const values = measures().slice(0, 2).map(({name}, measure) =>
      `${name} ${fixed(measureOf(measure, {layer, head}))}`);
    const name = `${title}, layer ${firstLayer + layer + 1}, head ${head + 1}`;
    const map = heatMap(name, rows, columns,
      (row, column) => weights[layer][head][row][column],
      (row, column) => {
        state.row = row;
        const weight = fixed(weights[layer][head][row][column]);
        summary.textContent =
          `${name}: ${values.join(", ")}. ${rows[row]} reads ${columns[column]}: ${weight}.`;
      },
      {width: availableWidth() > 900 ? availableWidth() / 2 : availableWidth()});
    largeMap.replaceChildren(map.drawing);
    const row = clamp(firstRows[state.kind], rows.length), cells = weights[layer][head][row];
    map.moveTo(row, cells.indexOf(Math.max(...cells)));
  }

  function set(changes) {
    Object.assign(state, changes);
    update();
  }

  // Every kind of attention has its measures. Another order keeps the list, and so its focus.
  function setKind(kind) {
    set({kind, order: 0});
    const orders = ["layer and head", ...measures().map(({name}) => `highest ${name}`)];
    orderControl.replaceChildren(select("Order", orders, 0, order => set({order})));
  }

  function showInHeadView() {
    const {kind, layer, head, row} = state;
    dispatchEvent(new CustomEvent("show-head", {detail: {pair, kind, layer, head, row}}));
  }

  setKind(firstKind);
  const hasHeadView = data.views.some(({script}) => script === "headView");
  return [
    toolbar(
      select("Attention", pair.map(({title}) => title), state.kind, setKind),
      orderControl,
      saveButton(() => largeMap.firstChild),
      hasHeadView ? button("Show in the head view", showInHeadView) : []),
    scale("attention weight"),
    hint("Small maps are named layer.head. Rows are queries, columns are keys. Arrow keys move."),
    summary, sideBySide(scrollable(list), largeMap), numbers,
  ];
}

const darkPage = matchMedia("(prefers-color-scheme: dark)");

// A map of one pixel per weight.
function thumbnail(weights) {
  const canvas = html("canvas", {width: weights[0].length, height: weights.length});

  function draw() {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--high");
    weights.forEach((row, y) => row.forEach((weight, x) => {
      context.globalAlpha = weight;
      context.fillRect(x, y, 1, 1);
    }));
  }

  draw();
  darkPage.addEventListener("change", draw);
  return canvas;
}
