// SPDX-License-Identifier: Apache-2.0
// One row of a head in six steps. Everything is computed here from the model's vectors.

const STEP_NAMES = ["vectors", "scores", "divide", "softmax", "weigh", "sum"];

function attentionSteps({heads, row: firstRow}) {
  const state = {head: 0, row: firstRow, step: 0};
  const summary = announcement(), tables = html("div"), rowControl = html("span");

  function update() {
    const step = explainStep(heads[state.head], state.row, state.step);
    const token = labelText(heads[state.head].rows[state.row]);
    summary.textContent = `Step ${state.step + 1} of ${STEP_NAMES.length}, ${token}. ${step.text}`;
    tables.replaceChildren(...step.tables);
    [...stepButtons.children].forEach((node, index) =>
      node.setAttribute("aria-pressed", index === state.step));
  }

  function goTo(step) {
    state.step = clamp(step, STEP_NAMES.length);
    update();
  }

  function chooseHead(head) {
    const rows = heads[head].rows;
    Object.assign(state, {head, row: clamp(state.row, rows.length)});
    rowControl.replaceChildren(select("Row", rows.map(labelText), state.row, row => {
      state.row = row;
      update();
    }));
    update();
  }

  const stepButtons = html("span", {role: "group", "aria-label": "Steps"},
    STEP_NAMES.map((name, index) => button(`${index + 1} ${name}`, () => goTo(index))));
  chooseHead(0);
  return [
    toolbar(select("Head", heads.map(({title}) => title), 0, chooseHead), rowControl),
    toolbar(button("Back", () => goTo(state.step - 1)), button("Next", () => goTo(state.step + 1)),
      stepButtons),
    summary, tables,
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

// The text and the tables of a step, 0 to 5.
function explainStep(head, row, step) {
  const computed = computeRow(head, row);
  const {query, masked, products, scores, scaled, powers, weights, weighted, z} = computed;
  const token = labelText(head.rows[row]), d_k = query.length;
  const digits = values => values.map(value => fixed(value, 4));
  const perKey = cells => head.columns.map((label, column) => [labelText(label), ...cells(column)]);
  const dimensions = width => range(width).map(index => index + 1);
  const keySize = dimensions(d_k), valueSize = dimensions(z.length);

  const steps = [
    () => ({
      text: "Each token's vector is multiplied by this head's matrices: W^Q gives the query of the "
        + "row's token; W^K and W^V give the key and the value of every token that it may read.",
      tables: [
        table("Query", ["", ...keySize], [[token, ...digits(query)]]),
        table("Keys", ["", ...keySize], perKey(column => digits(head.key[column]))),
        table("Values", ["", ...valueSize], perKey(column => digits(head.value[column]))),
      ],
    }),
    () => ({
      text: "The score of a key is its dot product with the query: the sum of the products over the "
        + "dimensions.",
      tables: [table("q · k", ["", "score", ...keySize],
        perKey(column => digits([scores[column], ...products[column]])))],
    }),
    () => ({
      text: `Every score is divided by the square root of d_k = ${d_k}, ${fixed(Math.sqrt(d_k), 4)}.`,
      tables: [table("q · k / √d_k", ["", "score", "scaled score"],
        perKey(column => digits([scores[column], scaled[column]])))],
    }),
    () => ({
      text: "The softmax turns the scores into weights that sum to 1. Masked keys get exactly 0. "
        + "Subtracting the highest score first avoids overflow and does not change the result.",
      tables: [table("Softmax", ["", "scaled score", "exp(scaled score − highest)", "weight"], [
        ...perKey(column => [masked[column] ? "masked" : fixed(scaled[column], 4),
          ...digits([powers[column], weights[column]])]),
        ["sum", "", fixed(sum(powers), 4), fixed(sum(weights), 6)],
      ])],
    }),
    () => ({
      text: "Every value is multiplied by its weight.",
      tables: [table("weight · v", ["", "weight", ...valueSize],
        perKey(column => digits([weights[column], ...weighted[column]])))],
    }),
    () => ({
      text: `The sum of the weighted values is z, the head's output for ${token}. It differs from `
        + `the model's z by at most ${computed.difference.toExponential(1)}.`,
      tables: [table("z", ["", ...valueSize],
        [["sum", ...digits(z)], ["the model's z", ...digits(head.z[row])]])],
    }),
  ];
  return steps[step]();
}
