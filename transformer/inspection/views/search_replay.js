// SPDX-License-Identifier: Apache-2.0
// A search: one column of hypotheses per step, and details of the chosen hypothesis.

const COLUMN_WIDTH = 112;
const ROW_HEIGHT = 38;

function searchReplay({source, steps, results}) {
  const layerCount = steps[0].attention?.[0].length ?? 0;  // 0: a search without attention
  const state = {step: 0, beam: 0, layer: layerCount - 1};
  const bestPath = results[0].path;
  const summary = announcement(), attentionTable = html("div"), nextTable = html("div");
  const chosenStep = () => steps[state.step];
  let timer = 0;

  // The tokens of a hypothesis.
  function tokensOf(step, beam) {
    if (step === 0) return [];
    return [...tokensOf(step - 1, steps[step].parents[beam]), steps[step].tokens[beam]];
  }

  function goTo(step, beam = bestPath[clamp(step, steps.length)] ?? 0) {
    state.step = clamp(step, steps.length);
    state.beam = clamp(beam, chosenStep().tokens.length);
    drawTree();
    describeHypothesis();
    slider.value = state.step;
    if (state.step === steps.length - 1) stop();
  }

  // Left: the parent. Right: the first hypothesis that extends this one. Up and down: other beams.
  function move(down, right) {
    if (right < 0) goTo(state.step - 1, chosenStep().parents[state.beam]);
    else if (right > 0) goTo(state.step + 1, steps[state.step + 1]?.parents.indexOf(state.beam));
    else goTo(state.step, state.beam + down);
  }

  const tree = svg("svg", {
    tabindex: 0, role: "listbox", "aria-label": "Hypotheses; arrow keys move",
    click: ({target}) => {
      const node = target.closest("[data-beam]");
      if (node) goTo(Number(node.dataset.step), Number(node.dataset.beam));
    },
    keydown: onKeys(arrowKeys(move)),
  });
  const scrolledTree = scrollable(tree);

  function drawTree() {
    const nodes = [], edges = [];
    const rowCount = Math.max(...steps.map(({tokens, finished}) => tokens.length + finished.length));
    steps.forEach((step, index) => {
      const future = index > state.step;
      step.tokens.forEach((_, beam) => {
        const parent = step.parents[beam], onPath = bestPath[index] === beam;
        nodes.push(hypothesisNode(index, beam, future));
        if (index > 0) {
          edges.push(edge(index, parent, beam, onPath && bestPath[index - 1] === parent, future));
        }
      });
      // Finished hypotheses are below the live ones of the next step.
      step.finished.forEach(({beam, score}, rank) => {
        const row = (steps[index + 1]?.tokens.length ?? 0) + rank;
        const hidden = index > state.step || index === state.step && index < steps.length - 1;
        const onPath = index === bestPath.length - 1 && bestPath[index] === beam;
        edges.push(edge(index + 1, beam, row, onPath, hidden));
        nodes.push(svgText(`■ end ${fixed(score, 2)}`, COLUMN_WIDTH * (index + 1) + 9, nodeY(row),
          COLUMN_WIDTH - 32, {opacity: hidden ? .3 : 1}));
      });
    });
    tree.replaceChildren(...edges, ...nodes);
    const width = COLUMN_WIDTH * (steps.length + 1);
    fill(tree, {
      viewBox: `0 0 ${width} ${ROW_HEIGHT * rowCount}`, style: `width:${width}px;max-width:none`,
      "aria-activedescendant": `s${state.step}-${state.beam}`,
    });
    scrolledTree.scrollTo(COLUMN_WIDTH * (state.step - 4), 0);
  }

  const nodeY = row => 18 + ROW_HEIGHT * row;

  function edge(step, fromRow, toRow, onPath, future) {
    const from = `${COLUMN_WIDTH * step - 16},${nodeY(fromRow)}`;
    const to = `${COLUMN_WIDTH * step + 4},${nodeY(toRow)}`;
    return svg("path", {
      d: `M${from}L${to}`, fill: "none", stroke: onPath ? BLUE : "currentColor",
      "stroke-width": onPath ? 3 : 1, "stroke-opacity": future ? .15 : onPath ? 1 : .4,
    });
  }

  function hypothesisNode(step, beam, future) {
    const chosen = step === state.step && beam === state.beam, onPath = bestPath[step] === beam;
    const {tokens, logProbs} = steps[step];
    const x = COLUMN_WIDTH * step, y = nodeY(beam);
    return svg("g",
      {
        role: "option", id: `s${step}-${beam}`, "aria-selected": chosen,
        "data-step": step, "data-beam": beam, opacity: future ? .3 : 1,
      },
      svg("rect", {
        x: x + 4, y: y - 16, width: COLUMN_WIDTH - 22, height: 32, rx: 4, fill: BLUE,
        "fill-opacity": chosen ? .4 : onPath ? .15 : 0,
        stroke: "currentColor", "stroke-width": chosen ? 2 : .5,
      }),
      svgText(step ? labelText([tokens[beam]]) : "(start)", x + 9, y - 6, COLUMN_WIDTH - 32),
      svg("text", {x: x + 9, y: y + 12, "font-size": 10}, fixed(logProbs[beam], 2)));
  }

  function describeHypothesis() {
    const {tokens, logProbs, next, finished, attention} = chosenStep();
    const {step, beam, layer} = state;
    const weights = attention?.[beam][layer];
    const [likeliest, probability] = next[beam][0];
    const sentences = [
      `Step ${step + 1} of ${steps.length}, hypothesis ${beam + 1} of ${tokens.length}: `
        + `${phrase(tokensOf(step, beam))}, log-probability ${fixed(logProbs[beam])}.`,
    ];
    if (weights) {
      const strongest = range(source.length).sort((a, b) => weights[b] - weights[a]).slice(0, 3);
      const named = strongest.map(index => `${labelText(source[index])} ${fixed(weights[index])}`);
      sentences.push(`It reads ${named.join(", ")}.`);
    }
    sentences.push(`Most probable next: ${labelText([likeliest])}, ${fixed(probability)}.`);
    for (const end of finished) {
      if (end.beam === beam) sentences.push(`It ends here, score ${fixed(end.score)}.`);
    }
    summary.textContent = sentences.join(" ");

    const following = steps[step + 1] ?? {tokens: [], parents: []};
    const extensions = following.tokens.filter((_, index) => following.parents[index] === beam);
    nextTable.replaceChildren(table(
      "Next tokens",
      ["token", "probability", ""],
      next[beam].map(([token, value]) =>
        [labelText([token]), fixed(value, 4), extensions.includes(token) ? "kept" : ""])));
    attentionTable.replaceChildren(...(weights ? [table(
      "Cross-attention, mean over the heads of the layer",
      ["source", "weight", ""],
      source.map((tokens, index) => [labelText(tokens), fixed(weights[index]),
        html("meter", {value: weights[index], "aria-hidden": true})]))] : []));
  }

  const slider = html("input", {
    type: "range", min: 0, max: steps.length - 1, "aria-label": "Step",
    input: () => goTo(Number(slider.value)),
  });
  const playButton = button("Play", () => {
    if (timer) return stop();
    if (state.step === steps.length - 1) goTo(0);
    timer = setInterval(() => goTo(state.step + 1), 1000);
    playButton.textContent = "Stop";
  });

  function stop() {
    clearInterval(timer);
    timer = 0;
    playButton.textContent = "Play";
  }

  // Nothing moves by itself for readers who prefer reduced motion.
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
  goTo(0);
  return [
    toolbar(
      button("Back", () => goTo(state.step - 1)), button("Next", () => goTo(state.step + 1)),
      reducedMotion ? [] : playButton, slider,
      layerCount ? select("Layer", range(layerCount).map(n => n + 1), state.layer, layer => {
        state.layer = layer;
        describeHypothesis();
      }) : [],
      saveButton(() => tree)),
    summary, scrolledTree,
    sideBySide(nextTable, attentionTable),
    table("Results", ["translation", "score"],
      results.map(({tokens, score}) => [phrase(tokens), fixed(score)])),
  ];
}

function phrase(tokens) {
  return tokens.length ? tokens.map(token => labelText([token])).join(" ") : "(start)";
}
