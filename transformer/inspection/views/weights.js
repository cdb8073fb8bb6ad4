// SPDX-License-Identifier: Apache-2.0
// Attention weights from text: row by row; of a triangle, up to the diagonal.
for (const family of data.pairs.flat()) {
  const {heads, rows, columns, sums} = family, weights = unpacked(family.weights);
  const row = (layer, head, i) => (layer * heads + head) * rows.length + i;
  // Where a row begins: after all whole triangles and the rows above in its own.
  family.weight = (layer, head, i, j) => family.triangular
    ? j > i ? 0 : weights[(row(layer, head, 0) * (rows.length + 1) + i * i + i) / 2 + j]
    : weights[row(layer, head, i) * columns.length + j];
  family.sum = (...place) => 1 + (sums[row(...place)] ?? 0) / 1e6;
}

// Choices of a kind of attention and of a layer; `show` brings them up to date.
const places = (pair, state, change) => {
  const layer = make("span");
  const family = choice("Attention", pair.map(one => one.title), 0, family => set({family}));
  const show = () => {
    const {layers, since} = pair[state.family];
    state.layer = within(state.layer, layers);
    family.lastChild.value = state.family;
    layer.replaceChildren(choice("Layer", range(layers).map(n => n + 1 + since), state.layer, layer => set({layer})));
  };
  const set = changes => {
    Object.assign(state, changes);
    const anew = "family" in changes;
    if (anew) show();
    change(anew);
  };
  show();
  return {nodes: [family, layer], show};
};
