// SPDX-License-Identifier: Apache-2.0
// The head view: rows on the left, columns on the right, lines for the weights of chosen rows.
views.heads = (options, [pair]) => {
  const state = {...options, heads: new Set(options.heads), kept: new Set()};
  const said = spoken(), buttons = make("span"), numbers = make("div");
  const family = () => pair[state.family];

  // The weight; or the head's share of the weights that all heads of the layer have there.
  const weight = (head, i, j) => {
    const own = head => family().weight(state.layer, head, i, j);
    return state.shares ? own(head) / (sum(range(family().heads).map(own)) || 1) : own(head);
  };
  const choose = row => { state.row = within(row, family().rows.length); show(); };
  const keep = () => {
    state.kept.delete(state.row) || state.kept.add(state.row);
    show();
  };
  const picture = draw("svg", {
    tabindex: 0, role: "listbox", "aria-label": "Rows", "aria-multiselectable": true,
    mousemove: ({target}) => {
      const row = target.closest("g[id]")?.dataset.row;
      if (row != null && row != state.row) choose(+row);
    },
    click: keep,
    keydown: event => {
      const {key} = event;
      if (arrows[key]) choose(state.row + sum(arrows[key]));
      else if (key === " ") keep();
      else if (key === "a") { state.kept = new Set(family().rows.keys()); show(); }
      else if (key === "Escape") { state.kept.clear(); show(); }
      else return;
      event.preventDefault();
    },
  });

  const show = () => {
    const {title, layers, rows, columns} = family(), {layer, row, shares} = state;
    const heads = [...state.heads].sort((a, b) => a - b);
    const chosen = new Set([...state.kept, row]);
    const left = rows[0].length > 1 ? 210 : 130, right = left + 190;
    const far = right + 13 * heads.length + 8, width = far + 130, y = place => 34 + 22 * place;
    filled(picture, {viewBox: `0 0 ${width} ${y(Math.max(rows.length, columns.length))}`,
      style: `max-width:${width}px`, "aria-activedescendant": `row${row}`}, []);
    picture.replaceChildren(
      ...rows.map((tokens, i) => draw("g", {id: `row${i}`, role: "option", "data-row": i,
        "aria-selected": chosen.has(i), "font-weight": chosen.has(i) ? 700 : 400},
        draw("rect", {y: y(i) - 11, width: left, height: 22, fill: "#0b7fc4",
          "fill-opacity": i === row ? .3 : chosen.has(i) ? .15 : 0}),
        text(label(tokens), left - 8, y(i), left - 12, {"text-anchor": "end"}))),
      ...columns.map((tokens, j) => text(label(tokens), far, y(j), 125)),
      ...heads.flatMap((head, place) => {
        const x = right + 13 * place + 4, fill = colour(head);
        const lines = [...chosen].flatMap(i => [...columns.keys()].map(j => [weight(head, i, j), i, j]));
        return [text(head + 1, x + 6, 12, 13, {"text-anchor": "middle"}),
          ...lines.filter(([value]) => value > .01).map(([value, i, j]) => draw("line", {
            x1: left, y1: y(i), x2: right, y2: y(j) + (place + .5) * 14 / heads.length - 7, stroke: fill, "stroke-opacity": fixed(value),
            "stroke-width": fixed(1 + 3 * value)})),
          ...columns.map((_, j) => draw("rect", {x, y: y(j) - 8, width: 12, height: 16, fill,
            "fill-opacity": fixed(Math.sqrt(weight(head, row, j)))}))];
      }));

    const cells = columns.map((_, j) => heads.map(head => weight(head, row, j)));
    const means = cells.map(values => sum(values) / heads.length);
    // Of shares the mean over all heads is the same everywhere: say whose is the largest.
    const best = cells.map(values => Math.max(...values));
    const order = [...columns.keys()].sort((a, b) => shares ? best[b] - best[a] : means[b] - means[a]);
    const top = order.slice(0, 3).map(j => `${label(columns[j])} ` + (shares
      ? `${fixed(best[j])} of head ${heads[cells[j].indexOf(best[j])] + 1}` : fixed(means[j])));
    const whose = heads.length > 1 ? `the mean of ${heads.length} heads` : `head ${heads[0] + 1}`;
    said.textContent = `${title}, layer ${layer + 1} of ${layers}, row ${row + 1} of ${rows.length}, `
      + `${label(rows[row])}: ${shares ? "largest shares" : whose + " reads"} ${top.join(", ")}.`;

    const sums = heads.map(head => family().sum(layer, head, row));
    numbers.replaceChildren(table(
      `${shares ? "Shares between heads" : "Attention"} of ${label(rows[row])}, to 1/4095; sums are exact`,
      ["", ...heads.map(head => `head ${head + 1}`), "mean"],
      [...cells.map((values, j) => [label(columns[j]), ...[...values, means[j]].map(v => fixed(v))]),
        ...(shares ? [] : [["sum", ...[...sums, sum(sums) / heads.length].map(v => fixed(v, 6))]])]));
    [...buttons.children].forEach((node, head) => node.setAttribute("aria-pressed", state.heads.has(head)));
  };

  const only = heads => { state.heads = new Set(heads); show(); };
  const all = () => only(range(family().heads));
  const toggle = head => {
    if (!state.heads.delete(head) || !state.heads.size) state.heads.add(head);
    show();
  };
  const moved = () => {
    state.kept.clear();
    buttons.replaceChildren(...range(family().heads).map(head => button(head + 1,
      event => event.shiftKey ? only([head]) : toggle(head),
      {"aria-label": `head ${head + 1}`, style: `--head:${colour(head)}`, dblclick: () => only([head])})));
    choose(state.row);
  };
  const where = places(pair, state, () => {
    state.heads = new Set(range(family().heads));
    moved();
  });
  document.addEventListener("head", ({detail}) => {
    if (detail.pair !== pair) return;
    Object.assign(state, detail, {heads: new Set([detail.head])});
    where.show();
    moved();
    picture.focus();
  });
  moved();
  return [tools(where.node, choice("Weights", ["attention: a row sums to 1",
    "shares between heads, as in The Illustrated Transformer"], state.shares,
    value => { state.shares = value; show(); })),
  tools("Heads", buttons, button("all", all), saver(picture)),
  make("p", {class: "hint"}, "Point at a row or use the arrow keys; a click or Space keeps it, "
    + "A keeps all, Escape none. Shift with a head's button: it alone."),
  said, make("div", {class: "wide"}, picture), numbers];
};
