// SPDX-License-Identifier: Apache-2.0
// Two sentences: the same head's maps, their difference, and where patching changed the answer.
views.compare = ({names, patch, patched, ...options}, pairs) => {
  const state = {family: 0, layer: options.layer, head: options.head};
  const said = spoken(), maps = make("div", {class: "maps"}), heads = make("span");
  const cut = (rows, digits = 3) => rows.map(([name, ...values]) => [name, ...values.map(v => fixed(v, digits))]);
  const show = () => {
    const [a, b] = pairs.map(pair => pair[state.family]), {layer, head} = state;
    state.head = within(head, a.heads);
    const at = (family, i, j) => family.weight(layer, state.head, i, j);
    const both = side => a[side].map((token, i) => {
      const [one, other] = [label(token), label(b[side][i])];
      return one === other ? one : `${one} / ${other}`;
    });
    const [rows, columns] = [both("rows"), both("columns")];
    const tell = (i, j) => {
      const [x, y] = [at(a, i, j), at(b, i, j)];
      for (const shown of maps.querySelectorAll("svg")) shown.point(i, j);
      said.textContent = `${rows[i]} reads ${columns[j]}: ${fixed(x)} in ${names[0]}, ${fixed(y)} in ${names[1]}, difference ${fixed(y - x)}`;
    };
    const figure = (name, family, value) => make("figure", {}, make("figcaption", {}, name),
      make("div", {class: "wide"}, map(name, family ? family.rows.map(label) : rows,
        family ? family.columns.map(label) : columns, value, tell)));
    heads.replaceChildren(choice("Head", range(a.heads).map(n => n + 1), state.head, value => { state.head = value; show(); }));
    maps.replaceChildren(figure(names[0], a, (i, j) => at(a, i, j)), figure(names[1], b, (i, j) => at(b, i, j)),
      figure(`${names[1]} minus ${names[0]}`, null, (i, j) => at(b, i, j) - at(a, i, j)));
    maps.lastChild.querySelector("svg").go(0, 0);
  };
  const where = places(pairs[0], state, show);
  show();
  const nodes = [tools(where.nodes, heads, saver(() => maps.lastChild.querySelector("svg"))),
    make("small", {}, "Square cells: more in the second sentence; round cells: less. Arrow keys read the cells; weights are rounded to 1/4128."), said, maps];
  if (patch) {
    const cell = spoken(), levels = patch.map((_, level) => level ? `after layer ${level}` : "the stack's input");
    const positions = patched.map(label);
    const picture = map("Patching", levels, positions, (i, j) => patch[i][j], (i, j) => {
      cell.textContent = `${levels[i]}, ${positions[j]}: ${fixed(patch[i][j])}`;
    });
    picture.go(0, 0);
    nodes.push(make("h3", {}, options.measure), make("div", {class: "wide"}, picture), cell,
      table("The same in numbers", ["", ...positions], cut(levels.map((level, i) => [level, ...patch[i]]), 2)));
  }
  return nodes;
};
