// SPDX-License-Identifier: Apache-2.0
// Attention weights from text: two characters each, row by row; of a triangle, up to the diagonal.
const codes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
for (const family of data.pairs.flat()) {
  const {heads, rows, columns, weights, triangular, sums} = family;
  const values = [];
  for (let place = 0; place < weights.length;)
    for (const column of columns.keys())
      values.push(triangular && column > values.length / columns.length % rows.length ? 0
        : (codes.indexOf(weights[place++]) * 64 + codes.indexOf(weights[place++])) / 4095);
  const row = (layer, head, row) => (layer * heads + head) * rows.length + row;
  family.weight = (layer, head, i, j) => values[row(layer, head, i) * columns.length + j];
  family.sum = (layer, head, i) => 1 + (sums[row(layer, head, i)] ?? 0) / 1e6;
}

// Choices of a kind of attention and of a layer; `show` brings them up to date.
const places = (pair, state, change) => {
  const node = make("span");
  const show = () => node.replaceChildren(
    choice("Attention", pair.map(one => one.title), state.family, family => {
      Object.assign(state, {family, layer: within(state.layer, pair[family].layers)});
      change();
      show();
      node.querySelector("select").focus();
    }),
    choice("Layer", range(pair[state.family].layers).map(n => n + 1), state.layer,
      layer => { state.layer = layer; change(); }));
  show();
  return {node, show};
};
