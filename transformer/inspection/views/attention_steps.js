// SPDX-License-Identifier: Apache-2.0
// One row of a head in six steps. Everything is computed here from the model's vectors.

const STEP_NAMES = ["vectors", "scores", "divide", "softmax", "weigh", "sum"];

function attentionSteps({heads, first, rows: firstRows}) {
  const state = {head: first, row: 0, step: 0, numbersOpen: false};
  const summary = announcement(), content = html("div"), rowControl = html("span");

  function update() {
    const step = explainStep(heads[state.head], state.row, state.step);
    const token = labelText(heads[state.head].rows[state.row]);
    summary.textContent = `Step ${state.step + 1} of ${STEP_NAMES.length}, ${token}. ${step.text}`;
    content.replaceChildren(...step.pictures, ...step.numbers ? [inNumbers(step.numbers)] : []);
    [...stepButtons.children].forEach((node, index) =>
      node.setAttribute("aria-pressed", index === state.step));
  }

  // Tables that stay open, or closed, from step to step.
  function inNumbers(tables) {
    const numbers = html("details",
      {open: state.numbersOpen ? "" : null, toggle: () => { state.numbersOpen = numbers.open; }},
      html("summary", {}, "In numbers"), tables);
    return numbers;
  }

  function goTo(step) {
    state.step = clamp(step, STEP_NAMES.length);
    update();
  }

  // Every kind of attention has a row to begin with.
  function chooseHead(head) {
    const {kind, rows} = heads[head];
    if (head === first || kind !== heads[state.head].kind) state.row = firstRows[kind];
    Object.assign(state, {head, row: clamp(state.row, rows.length)});
    rowControl.replaceChildren(select("Row", rows.map(labelText), state.row, row => {
      state.row = row;
      update();
    }));
    update();
  }

  const stepButtons = html("span", {role: "group", "aria-label": "Steps"},
    STEP_NAMES.map((name, index) => button(`${index + 1} ${name}`, () => goTo(index))));
  chooseHead(first);
  return [
    toolbar(select("Head", heads.map(({title}) => title), first, chooseHead), rowControl),
    toolbar(button("Back", () => goTo(state.step - 1)), button("Next", () => goTo(state.step + 1)),
      stepButtons),
    summary, content,
  ];
}

// The attention of one row, from the query of the row and the keys and values of all columns.
function computeRow(head, row) {
  const query = head.query[row], masked = head.masked[row];
  const products = head.key.map(key => key.map((value, index) => query[index] * value));
  const scores = products.map(sum);
  const scaled = scores.map(score => score / Math.sqrt(query.length));
  const highest = Math.max(...scaled.filter((_, column) => !masked[column]));
  const powers = scaled.map((score, column) => masked[column] ? 0 : Math.exp(score - highest));
  const weights = powers.map(power => power / sum(powers));
  const weighted = head.value.map((value, column) => value.map(each => weights[column] * each));
  const z = head.z[row].map((_, index) => sum(weighted.map(vector => vector[index])));
  const difference = Math.max(...z.map((value, index) => Math.abs(value - head.z[row][index])));
  return {query, masked, products, scores, scaled, powers, weights, weighted, z, difference};
}

// Vectors as strips of colors, one a line, with a name on the left and a number on the right.
function strips(name, lines) {
  const limit = largest(lines.map(([_, vector]) => vector));
  return html("figure", {},
    html("figcaption", {}, name, " ", scale("", limit, {signed: true, digits: 2})),
    html("div", {class: "strips"}, lines.map(([label, vector, number = ""]) => [
      html("span", {}, label),
      svg("svg",
        {viewBox: `0 0 ${vector.length} 1`, preserveAspectRatio: "none", "aria-hidden": true},
        vector.map((value, x) => svg("rect", {
          x, width: .94, height: 1, class: hue(value), "fill-opacity": fixed(share(value, limit)),
        }))),
      html("span", {class: "number"}, number),
    ])));
}

// The text, pictures and tables of a step, 0 to 5.
function explainStep(head, row, step) {
  const computed = computeRow(head, row);
  const {query, masked, products, scores, scaled, powers, weights, weighted, z} = computed;
  const token = labelText(head.rows[row]), d_k = query.length;
  const digits = values => values.map(value => fixed(value, 4));
  const keys = head.columns.map(labelText);
  const perKey = cells => keys.map((label, column) => [label, ...cells(column)]);
  const dimensions = width => range(width).map(index => index + 1);
  const keySize = dimensions(d_k), valueSize = dimensions(z.length);

  const steps = [
    () => ({
      text: "Each token's vector is multiplied by this head's matrices: W^Q gives the query of the "
        + "row's token; W^K and W^V give the key and the value of every token that it may read.",
      pictures: [
        strips("Query", [[token, query]]),
        html("div", {class: "columns"},
          strips("Keys", perKey(column => [head.key[column]])),
          strips("Values", perKey(column => [head.value[column]]))),
      ],
      numbers: [
        table("Query", ["", ...keySize], [[token, ...digits(query)]]),
        table("Keys", ["", ...keySize], perKey(column => digits(head.key[column]))),
        table("Values", ["", ...valueSize], perKey(column => digits(head.value[column]))),
      ],
    }),
    () => ({
      text: "The score of a key is its dot product with the query: the sum of the products over the "
        + "dimensions.",
      pictures: [strips("Products of query and key, and their sum",
        perKey(column => [products[column], fixed(scores[column], 2)]))],
      numbers: [table("q · k", ["", "score", ...keySize],
        perKey(column => digits([scores[column], ...products[column]])))],
    }),
    () => ({
      text: `Every score is divided by the square root of d_k = ${d_k}, ${fixed(Math.sqrt(d_k), 4)}.`,
      pictures: [table("q · k / √d_k", ["", "score", "scaled score"], perKey(column => [
        shaded(scores[column], largest([scores])), shaded(scaled[column], largest([scores])),
      ]))],
    }),
    () => ({
      text: "The softmax turns the scores into weights that sum to 1. Masked keys get exactly 0. "
        + "Subtracting the highest score first avoids overflow and does not change the result.",
      pictures: [table("Softmax", ["", "scaled score", "exp(scaled score − highest)", "weight"], [
        ...perKey(column => [masked[column] ? "masked" : fixed(scaled[column], 4),
          fixed(powers[column], 4), shaded(weights[column])]),
        ["sum", "", fixed(sum(powers), 4), fixed(sum(weights), 6)],
      ])],
    }),
    () => ({
      text: "Every value is multiplied by its weight.",
      pictures: [strips("Values times their weights, and the weights",
        perKey(column => [weighted[column], fixed(weights[column], 2)]))],
      numbers: [table("weight · v", ["", "weight", ...valueSize],
        perKey(column => digits([weights[column], ...weighted[column]])))],
    }),
    () => ({
      text: `The sum of the weighted values is z, the head's output for ${token}. It differs from `
        + `the model's z by at most ${computed.difference.toExponential(1)}.`,
      pictures: [strips("z", [["sum", z], ["the model's z", head.z[row]]])],
      numbers: [table("z", ["", ...valueSize],
        [["sum", ...digits(z)], ["the model's z", ...digits(head.z[row])]])],
    }),
  ];
  return steps[step]();
}
