// SPDX-License-Identifier: Apache-2.0
// The overview: a small map of every head, in the order of a measure; the chosen one large.
views.grid = ({measures}, [pair]) => {
  const state = {family: 0, order: 0}, said = spoken(), large = make("div", {class: "wide"}), numbers = make("details");
  const list = make("div", {class: "overview", keydown: keys(arrows((down, right) => {
    const all = [...list.children], now = all.indexOf(document.activeElement);
    const next = all[within(now + right + down * pair[state.family].heads, all.length)];
    next.focus();
    next.click();
  }))});

  const show = () => {
    const family = pair[state.family], {title, weight, since} = family;
    const [rows, columns] = [family.rows, family.columns].map(labels => labels.map(label));
    const value = (order, [layer, head]) => measures[order].values[state.family][layer][head];
    const heads = range(family.layers).flatMap(layer => range(family.heads).map(head => [layer, head]));
    if (state.order) heads.sort((a, b) => value(state.order - 1, b) - value(state.order - 1, a));
    list.style.gridTemplateColumns = `repeat(${family.heads},minmax(2.6rem,7rem))`;
    list.replaceChildren(...heads.map(([layer, head], place) => {
      const canvas = make("canvas", {width: columns.length, height: rows.length});
      const context = canvas.getContext("2d");
      rows.map((_, i) => columns.map((_, j) => {
        context.fillStyle = `rgb(11 127 196/${Math.sqrt(weight(layer, head, i, j))})`;
        context.fillRect(j, i, 1, 1);
      }));
      const at = since + layer + 1, name = `layer ${at}, head ${head + 1}`;
      return button([canvas, `${at}.${head + 1}`], () => {
        Object.assign(state, {layer, head});
        [...list.children].map((node, n) => filled(node, {"aria-pressed": n === place, tabindex: n - place && -1}));
        const told = `${title}, ${name}: `
          + measures.map((one, n) => `${one.name} ${fixed(value(n, heads[place]))}`).join(", ");
        large.replaceChildren(map(told, rows, columns, (i, j) => weight(layer, head, i, j),
          (i, j) => { said.textContent = `${told}. ${rows[i]} reads ${columns[j]}: ${fixed(weight(layer, head, i, j))}.`; }));
        large.firstChild.go(0, 0);
      }, {"aria-label": name});
    }));
    numbers.replaceChildren(make("summary", {}, "In numbers"), table("Every head", ["head", ...measures.map(one => one.name)],
      heads.map(head => [`${since + head[0] + 1}.${head[1] + 1}`, ...measures.map((_, n) => fixed(value(n, head)))])));
    list.firstChild.click();
  };
  const set = changes => {
    Object.assign(state, changes);
    show();
  };
  show();
  return [tools(choice("Attention", pair.map(one => one.title), 0, family => set({family})),
    choice("Order", ["layer and head", ...measures.map(one => `highest ${one.name}`)], 0, order => set({order})),
    saver(() => large.firstChild), views.heads ? button("Show in the head view",
      () => dispatchEvent(new CustomEvent("head", {detail: {...state, pair}}))) : []),
  make("small", {}, "Layer.head; rows: queries, columns: keys; shade: root of the weight, rounded to 1/4128. Arrow keys move."),
  make("div", {class: "wide"}, list), said, large, numbers];
};
