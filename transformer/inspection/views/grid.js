// SPDX-License-Identifier: Apache-2.0
// The overview: a small map of every head; the chosen one is shown large.
views.grid = (options, [pair]) => {
  const state = {family: 0, layer: 0, head: 0, order: 0};
  const said = spoken(), spoken_cell = spoken(), large = make("div", {class: "wide"});
  const list = make("div", {class: "grid", role: "group", "aria-label": "Heads",
    keydown: event => {
      const [down, right] = arrows[event.key] ?? [];
      const all = [...list.children], now = all.indexOf(event.target);
      if (down == null || now < 0) return;
      const next = all[within(now + right + down * pair[state.family].heads, all.length)];
      next.focus();
      next.click();
      event.preventDefault();
    }});
  const thumbnail = (family, layer, head) => {
    const canvas = make("canvas", {width: family.columns.length, height: family.rows.length});
    const context = canvas.getContext("2d");
    family.rows.forEach((_, i) => family.columns.forEach((_, j) => {
      context.fillStyle = `rgba(11,127,196,${Math.sqrt(family.weight(layer, head, i, j))})`;
      context.fillRect(j, i, 1, 1);
    }));
    return canvas;
  };
  const name = (layer, head) => `layer ${layer + 1}, head ${head + 1}`;
  const measure = () => options.measures[state.order - 1];
  const choose = (layer, head) => {
    Object.assign(state, {layer, head});
    const family = pair[state.family], [rows, columns] = [family.rows.map(label), family.columns.map(label)];
    for (const node of list.children) {
      const on = node.dataset.at === `${layer},${head}`;
      node.setAttribute("aria-pressed", on);
      node.tabIndex = on ? 0 : -1;
    }
    const measured = options.measures.map(one => `${one.name} ${fixed(one.values[state.family][layer][head])}`);
    said.textContent = `${family.title}, ${name(layer, head)}: ${measured.join(", ")}.`;
    large.replaceChildren(map(`${family.title}, ${name(layer, head)}`, rows, columns,
      (i, j) => family.weight(layer, head, i, j),
      (i, j) => { spoken_cell.textContent = `${rows[i]} reads ${columns[j]}: ${fixed(family.weight(layer, head, i, j))}`; }));
    large.firstChild.go(0, 0);
  };
  const show = () => {
    const family = pair[state.family];
    const heads = range(family.layers).flatMap(layer => range(family.heads).map(head => [layer, head]));
    if (state.order) {
      const values = measure().values[state.family];
      heads.sort((a, b) => values[b[0]][b[1]] - values[a[0]][a[1]]);
    }
    list.style.gridTemplateColumns = `repeat(${family.heads}, minmax(2.6rem, 7rem))`;
    list.replaceChildren(...heads.map(([layer, head]) => button(
      [thumbnail(family, layer, head), make("span", {}, `${layer + 1}.${head + 1}`)],
      () => choose(layer, head), {"aria-label": name(layer, head), "data-at": [layer, head]})));
    choose(...heads[0]);
  };
  const choices = [
    choice("Attention", pair.map(one => one.title), 0, family => { state.family = family; show(); }),
    choice("Order", ["by layer and head", ...options.measures.map(one => `highest ${one.name}`)], 0,
      order => { state.order = order; show(); })];
  const lines = data.views.some(view => view.kind === "heads")
    ? [button("Show in the head view", () => document.dispatchEvent(new CustomEvent("head", {detail: {pair, ...state}})))] : [];
  show();
  return [tools(choices, saver(() => large.firstChild), lines),
    make("p", {class: "hint"}, "Layer.head; a row of a map is a query, a column a key, the shade the square root of the weight. Arrow keys move."),
    make("div", {class: "wide"}, list), said, large, spoken_cell];
};
