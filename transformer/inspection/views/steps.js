// SPDX-License-Identifier: Apache-2.0
// One row of a head in six steps. Vectors are in single precision; all else is computed from them.
views.steps = options => {
  const unpacked = (packed, width) => {
    const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
    const values = [...new Float32Array(bytes.buffer)];
    return range(values.length / width).map(n => values.slice(n * width, (n + 1) * width));
  };
  const heads = options.heads.map(head => ({...head,
    query: unpacked(head.query, head.widths[0]), key: unpacked(head.key, head.widths[0]),
    value: unpacked(head.value, head.widths[1]), z: unpacked(head.z, head.widths[1])}));
  const state = {head: 0, row: options.row, step: 0};
  const said = spoken(), shown = make("div"), rows = make("span");
  const numbers = values => values.map(value => fixed(value, 4));
  const dimensions = width => ["", ...range(width).map(n => n + 1)];

  const show = () => {
    const head = heads[state.head], {row, step} = state, [width, wide] = head.widths;
    const token = label(head.rows[row]), names = head.columns.map(label);
    const query = head.query[row], masked = j => head.masked[row][j] === "1";
    const products = head.key.map(key => key.map((k, n) => query[n] * k));
    const scores = products.map(sum), scaled = scores.map(score => score / Math.sqrt(width));
    const highest = Math.max(...scaled.filter((_, j) => !masked(j)));
    const powers = scaled.map((score, j) => masked(j) ? 0 : Math.exp(score - highest));
    const weights = powers.map(power => power / sum(powers));
    const weighted = head.value.map((value, j) => value.map(v => weights[j] * v));
    const z = range(wide).map(n => sum(weighted.map(vector => vector[n])));
    const off = Math.max(...z.map((v, n) => Math.abs(v - head.z[row][n])));
    const unless = (j, value) => masked(j) ? "masked" : fixed(value, 4);
    const each = cells => names.map((name, j) => [name, ...cells(j)]);
    const [words, ...tables] = [
      () => [`The row's token has a query, every token it may read a key and a value: its vector times W^Q, W^K, W^V of this head. They are here as the model has them, in single precision.`,
        table("query", dimensions(width), [[token, ...numbers(query)]]),
        table("keys", dimensions(width), each(j => numbers(head.key[j]))),
        table("values", dimensions(wide), each(j => numbers(head.value[j])))],
      () => ["The score of a key is the query times it, dimension by dimension, summed.",
        table("q · k", ["", "score", ...dimensions(width).slice(1)], each(j => numbers([scores[j], ...products[j]])))],
      () => [`Every score is divided by the root of d_k = ${width}, ${fixed(Math.sqrt(width), 4)}.`,
        table("q · k / √d_k", ["", "score", "divided"], each(j => numbers([scores[j], scaled[j]])))],
      () => ["The softmax makes them weights that sum to 1; what is masked gets exactly 0. (The highest is subtracted first, which changes nothing.)",
        table("softmax", ["", "divided", "e to the divided less the highest", "weight"],
          [...each(j => [unless(j, scaled[j]), fixed(powers[j], 4), fixed(weights[j], 4)]),
            ["sum", "", fixed(sum(powers), 4), fixed(sum(weights), 6)]])],
      () => ["Every value is multiplied by its weight.",
        table("weight · v", ["", "weight", ...dimensions(wide).slice(1)], each(j => numbers([weights[j], ...weighted[j]])))],
      () => [`Their sum is z, this head's output for ${token}. The model's own differs by at most ${off.toExponential(1)}.`,
        table("z", dimensions(wide), [["sum", ...numbers(z)], ["the model's", ...numbers(head.z[row])]])],
    ][step]();
    said.textContent = `Step ${step + 1} of 6, ${token}. ${words}`;
    shown.replaceChildren(...tables);
    [...buttons.children].forEach((node, n) => node.setAttribute("aria-pressed", n === step));
  };
  const go = step => { state.step = within(step, 6); show(); };
  const buttons = make("span", {role: "group", "aria-label": "Steps"},
    ["vectors", "scores", "divide", "softmax", "weigh", "sum"].map((name, n) =>
      button(`${n + 1} ${name}`, () => go(n))));
  const choose = head => {
    Object.assign(state, {head, row: within(state.row, heads[head].rows.length)});
    rows.replaceChildren(choice("Row", heads[head].rows.map(label), state.row,
      row => { state.row = row; show(); }));
    show();
  };
  choose(0);
  return [tools(choice("Head", heads.map(head => head.title), 0, choose), rows),
    tools(button("Back", () => go(state.step - 1)), button("Next", () => go(state.step + 1)), buttons),
    said, shown];
};
