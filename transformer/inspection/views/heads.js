// SPDX-License-Identifier: Apache-2.0
// The head view: rows on the left, columns on the right, lines for the weights of chosen rows.
views.heads = (options, [pair]) => {
  const state = {...options, heads: new Set(options.heads), kept: new Set()};
  const said = spoken(), buttons = make("span"), numbers = make("div");
  const set = changes => {
    Object.assign(state, changes);
    show();
  };
  const toggle = (chosen, one) => {
    chosen.delete(one) || chosen.add(one);
    show();
  };
  const under = ({target}) => target.closest("g[id]")?.id.slice(1);
  const picture = draw("svg", {
    tabindex: 0, role: "listbox", "aria-label": "Rows", "aria-multiselectable": true,
    mousemove: event => {
      const row = under(event);
      if (row && row != state.row) set({row: +row});
    },
    click: event => under(event) && toggle(state.kept, state.row),
    keydown: keys({
      ...arrows((down, right) => set({row: state.row + down + right})),
      " ": () => toggle(state.kept, state.row),
      a: () => set({kept: new Set(pair[state.family].rows.keys())}),
      Escape: () => set({kept: new Set()}),
    }),
  });

  const show = () => {
    const {layer, shares, kept} = state, family = pair[state.family], {title, rows, columns} = family;
    const all = range(family.heads), row = state.row = within(state.row, rows.length);
    let heads = all.filter(head => state.heads.has(head));
    if (!heads.length) state.heads = new Set(heads = all);
    const shown = [...rows.keys()].filter(i => i === row || kept.has(i));

    // The weight; or the head's share of the weights that all heads of the layer have there.
    const weight = (head, i, j) => {
      const own = head => family.weight(layer, head, i, j);
      return own(head) / (shares && sum(all.map(own)) || 1);
    };

    const left = rows[0].length > 1 ? 210 : 130, right = left + 190;
    const far = right + 13 * heads.length + 8, y = place => 34 + 22 * place;
    sized(picture, far + 130, y(Math.max(rows.length, columns.length)), {"aria-activedescendant": "r" + row});
    picture.replaceChildren(
      ...rows.map((tokens, i) => draw("g", {id: "r" + i, role: "option", "aria-selected": shown.includes(i)},
        draw("rect", {y: y(i) - 11, width: left, height: 22, fill: "#0b7fc4",
          "fill-opacity": i === row ? .3 : kept.has(i) ? .15 : 0}),
        text(label(tokens), left - 8, y(i), left - 12, {"text-anchor": "end"}))),
      ...columns.map((tokens, j) => text(label(tokens), far, y(j), 125)),
      ...heads.flatMap((head, place) => {
        const x = right + 13 * place + 4, fill = colour(head);
        const lines = shown.flatMap(i => columns.map((_, j) => [weight(head, i, j), y(i), y(j)]))
          .filter(([value]) => value > .01);
        return [text(head + 1, x + 1, 12, 13),
          ...columns.map((_, j) => draw("rect", {x, y: y(j) - 8, width: 12, height: 16, fill,
            "fill-opacity": Math.sqrt(weight(head, row, j))})),
          ...lines.map(([value, y1, end]) => draw("line", {
            x1: left, y1, x2: right, y2: end + (place + .5) * 14 / heads.length - 7, stroke: fill,
            "stroke-opacity": value, "stroke-width": 1 + 3 * value}))];
      }));

    const cells = columns.map((_, j) => heads.map(head => weight(head, row, j)));
    const mean = values => sum(values) / heads.length, of = label(rows[row]);
    // The mean share of all heads is the same everywhere: say whose is the largest.
    const told = cells.map(values => shares ? Math.max(...values) : mean(values));
    const top = [...columns.keys()].sort((a, b) => told[b] - told[a]).slice(0, 3).map(j =>
      `${label(columns[j])} ${fixed(told[j])}`
        + (shares ? ` of head ${heads[cells[j].indexOf(told[j])] + 1}` : ""));
    said.textContent = `${title}, layer ${family.since + layer + 1}, row ${row + 1} of ${rows.length}, ${of}, `
      + `${shares ? "top shares" : "mean"} of heads ${heads.map(head => head + 1).join(" ")}: ${top.join(", ")}.`;

    const line = (name, values, digits) => [name, ...[...values, mean(values)].map(v => fixed(v, digits))];
    numbers.replaceChildren(table(
      "Rounded to 1/4128; sums are exact",
      ["", ...heads.map(head => `head ${head + 1}`), "mean"],
      [...cells.map((values, j) => line(label(columns[j]), values)), ...(shares ? []
        : [line("sum", heads.map(head => family.sum(layer, head, row)), 6)])]));
    if (buttons.children.length !== all.length) buttons.replaceChildren(...all.map(head => button(head + 1,
      ({shiftKey}) => shiftKey ? set({heads: new Set([head])}) : toggle(state.heads, head),
      {"aria-label": `head ${head + 1}`, style: `--head:${colour(head)}`})));
    all.map(head => buttons.children[head].setAttribute("aria-pressed", state.heads.has(head)));
  };

  const where = places(pair, state, anew => set(anew && {heads: new Set(), kept: new Set()}));
  addEventListener("head", ({detail}) => {
    if (detail.pair !== pair) return;
    set({...detail, heads: new Set([detail.head])});
    where.show();
    picture.focus();
  });
  show();
  return [tools(where.nodes, choice("Weights", ["attention: rows sum to 1",
    "shares of heads, as in The Illustrated Transformer"], state.shares, shares => set({shares}))),
  tools("Heads", buttons, button("all", () => set({heads: new Set()})), saver(() => picture)),
  make("small", {}, "Arrow keys or pointer: row. Space: keep. A: all. Esc: none. "
    + "Shift and a head: only it."),
  said, make("div", {class: "wide"}, picture), numbers];
};
