// SPDX-License-Identifier: Apache-2.0
// The head view: rows on the left, columns on the right, lines for the weights of selected rows.

function headView(options, [pair]) {
  const state = {
    kind: options.kind,
    layer: options.layer,
    row: options.rows[options.kind],
    sharesBetweenHeads: false,
    heads: new Set(options.heads),  // none means all
    keptRows: new Set(),
  };
  const summary = announcement(), headButtons = html("span"), numbers = html("div");
  const attention = () => pair[state.kind];

  function set(changes) {
    Object.assign(state, changes);
    update();
  }

  function toggle(selection, item) {
    if (!selection.delete(item)) selection.add(item);
    update();
  }

  function toggleHead(head, {shiftKey}) {
    if (shiftKey) set({heads: new Set([head])});
    else toggle(state.heads, head);
  }

  const rowUnder = ({target}) => target.closest("[role=option]")?.dataset.row;
  const drawing = svg("svg", {
    tabindex: 0, role: "listbox", "aria-label": "Rows", "aria-multiselectable": true,
    mousemove: event => {
      const row = rowUnder(event);
      if (row !== undefined && Number(row) !== state.row) set({row: Number(row)});
    },
    click: event => {
      if (rowUnder(event) !== undefined) toggle(state.keptRows, state.row);
    },
    keydown: onKeys({
      ...arrowKeys((down, right) => set({row: state.row + down + right})),
      " ": () => toggle(state.keptRows, state.row),
      a: () => set({keptRows: new Set(attention().rows.keys())}),
      Escape: () => set({keptRows: new Set()}),
    }),
  });

  // The weight, or its share of the weights of all heads of the layer.
  function weight(head, row, column) {
    const layer = attention().weights[state.layer];
    const value = layer[head][row][column];
    if (!state.sharesBetweenHeads) return value;
    return value / (sum(layer.map(weights => weights[row][column])) || 1);
  }

  function update() {
    const {rows, weights} = attention();
    const allHeads = range(weights[0].length);
    state.row = clamp(state.row, rows.length);
    if (!allHeads.some(head => state.heads.has(head))) state.heads = new Set(allHeads);
    const heads = allHeads.filter(head => state.heads.has(head));
    draw(heads);
    updateNumbers(heads);
    updateHeadButtons(allHeads);
  }

  function draw(heads) {
    const {rows, columns} = attention();
    const narrow = availableWidth() < 600;
    const rowWidth = labelWidth(rows.map(labelText), narrow ? 110 : 200);
    const columnWidth = labelWidth(columns.map(labelText), narrow ? 90 : 160);
    const left = rowWidth + 16;  // right edge of the row labels
    // The lines have what the labels and the squares leave.
    const rest = availableWidth() - left - 13 * heads.length - columnWidth - 24;
    const right = left + Math.max(50, Math.min(availableWidth() / 3, rest));  // left edge of the squares
    const far = right + 13 * heads.length + 8;  // left edge of the column labels
    const y = index => 34 + 24 * index;
    const selected = range(rows.length).filter(row => row === state.row || state.keptRows.has(row));

    function rowOption(tokens, row) {
      const opacity = row === state.row ? .3 : state.keptRows.has(row) ? .15 : 0;
      return svg("g",
        {id: `r${row}`, role: "option", "data-row": row, "aria-selected": selected.includes(row)},
        svg("rect",
          {y: y(row) - 12, width: left, height: 24, class: "high", "fill-opacity": opacity}),
        svgText(labelText(tokens), left - 8, y(row), rowWidth, {"text-anchor": "end"}));
    }

    function headMarks(head, index) {
      const x = right + 13 * index + 4, color = headColor(head);
      const offset = (index + .5) * 16 / heads.length - 8;
      const squares = columns.map((_, column) => svg("rect", {
        x, y: y(column) - 9, width: 12, height: 18, fill: color,
        "fill-opacity": weight(head, state.row, column),
      }));
      const lines = selected.flatMap(row => columns.map((_, column) => {
        const value = weight(head, row, column);
        return value > .01 ? svg("line", {
          x1: left, y1: y(row), x2: right, y2: y(column) + offset, stroke: color,
          "stroke-opacity": value, "stroke-width": 1 + 3 * value,
        }) : [];
      }));
      return [svgText(String(head + 1), x + 1, 12, 13), squares, lines];
    }

    drawing.replaceChildren(
      ...rows.map(rowOption),
      ...columns.map((tokens, column) => svgText(labelText(tokens), far, y(column), columnWidth)),
      ...heads.map(headMarks).flat(3));
    fill(drawing, {"aria-activedescendant": `r${state.row}`});
    resize(drawing, far + columnWidth + 4, y(Math.max(rows.length, columns.length)));
  }

  function updateNumbers(heads) {
    const {title, rows, columns, firstLayer, rowSums} = attention();
    const {layer, row, sharesBetweenHeads} = state;
    const values = columns.map((_, column) => heads.map(head => weight(head, row, column)));

    // The mean share of all heads is the same for every key, so name the largest share instead.
    const ranked = values.map(ofHeads => sharesBetweenHeads ? Math.max(...ofHeads) : mean(ofHeads));
    const strongest = range(columns.length).sort((a, b) => ranked[b] - ranked[a]).slice(0, 3);
    const described = strongest.map(column => {
      const head = heads[values[column].indexOf(ranked[column])] + 1;
      const owner = sharesBetweenHeads ? ` of head ${head}` : "";
      return `${labelText(columns[column])} ${fixed(ranked[column])}${owner}`;
    });
    const measure = sharesBetweenHeads ? "largest shares" : "mean";
    const names = heads.map(head => head + 1).join(" ");
    summary.textContent = `${title}, layer ${firstLayer + layer + 1}, `
      + `row ${row + 1} of ${rows.length}, ${labelText(rows[row])}, `
      + `${measure} of heads ${names}: ${described.join(", ")}.`;

    const lines = columns.map((tokens, column) => [
      labelText(tokens),
      ...[...values[column], mean(values[column])].map(value => shaded(value, 1, 3)),
    ]);
    if (!sharesBetweenHeads) {
      const sums = heads.map(head => rowSums[layer][head][row]);
      lines.push(["sum", ...[...sums, mean(sums)].map(value => fixed(value, 6))]);
    }
    numbers.replaceChildren(table(
      sharesBetweenHeads ? "Shares between heads" : "Weights; the sums are of unrounded weights",
      ["", ...heads.map(head => `head ${head + 1}`), "mean"],
      lines));
  }

  function updateHeadButtons(allHeads) {
    // Existing buttons stay, so that the focus does.
    if (headButtons.children.length !== allHeads.length) {
      headButtons.replaceChildren(...allHeads.map(head =>
        button(String(head + 1), event => toggleHead(head, event),
          {"aria-label": `head ${head + 1}`, style: `--head:${headColor(head)}`})));
    }
    for (const head of allHeads) {
      headButtons.children[head].setAttribute("aria-pressed", state.heads.has(head));
    }
  }

  const picker = attentionPicker(pair, state, kindChanged => set(kindChanged
    ? {heads: new Set(), keptRows: new Set(), row: options.rows[state.kind]} : {}));

  // Sent by the button of the overview.
  addEventListener("show-head", ({detail}) => {
    if (detail.pair !== pair) return;
    set({
      kind: detail.kind, layer: detail.layer, row: detail.row, heads: new Set([detail.head]),
    });
    picker.update();
    reveal(drawing);
  });

  update();
  const normalization = select(
    "Weights",
    ["attention: rows sum to 1", "shares between heads, as in The Illustrated Transformer"],
    Number(state.sharesBetweenHeads),
    index => set({sharesBetweenHeads: index === 1}));
  return [
    toolbar(picker.controls, normalization),
    toolbar("Heads", headButtons, button("all", () => set({heads: new Set()})),
      saveButton(() => drawing)),
    scale("weight of a head"),
    hint("Arrow keys or pointer: choose a row. Space or click: keep it. A: keep all. Esc: keep none. "
      + "Shift and a head: this head only."),
    summary, sideBySide(scrollable(drawing), numbers),
  ];
}
