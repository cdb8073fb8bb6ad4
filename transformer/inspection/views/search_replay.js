// SPDX-License-Identifier: Apache-2.0
// A search: one line of hypotheses per step, and details of the chosen hypothesis beside them.

const STEP_HEIGHT = 34;

function searchReplay({source, steps, results, first}) {
  const layerCount = steps[0].attention?.[0].length ?? 0;  // 0: a search without attention
  const state = {step: 0, beam: 0, layer: layerCount - 1};
  const bestPath = results[0].path;
  const beamCount = Math.max(...steps.map(({tokens}) => tokens.length));
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

  // Up: the parent. Down: the first hypothesis that extends this one. Left and right: other beams.
  function move(down, right) {
    if (down < 0) goTo(state.step - 1, chosenStep().parents[state.beam]);
    else if (down > 0) goTo(state.step + 1, steps[state.step + 1]?.parents.indexOf(state.beam));
    else goTo(state.step, state.beam + right);
  }

  const tree = svg("svg", {
    tabindex: 0, role: "listbox", "aria-label": "Hypotheses; arrow keys move",
    click: ({target}) => {
      const node = target.closest("[data-beam]");
      if (node) goTo(Number(node.dataset.step), Number(node.dataset.beam));
    },
    keydown: onKeys(arrowKeys(move)),
  });

  // The columns are as wide as the window allows; narrow ones show no log-probabilities.
  const left = 22;
  const columnWidth = Math.max(60, Math.min(150, Math.floor((availableWidth() - left) / beamCount)));
  const nodeX = beam => left + columnWidth * beam;
  const nodeY = step => 16 + STEP_HEIGHT * step;

  function drawTree() {
    const nodes = [], edges = [];
    steps.forEach((step, index) => {
      const future = index > state.step, opacity = future ? .3 : 1;
      nodes.push(svg("text",
        {x: 0, y: nodeY(index), dy: ".32em", class: "quiet", opacity}, String(index + 1)));
      step.tokens.forEach((_, beam) => {
        const parent = step.parents[beam], onPath = bestPath[index] === beam;
        nodes.push(hypothesisNode(index, beam, opacity));
        if (index > 0) {
          edges.push(edge(index, parent, beam, onPath && bestPath[index - 1] === parent, future));
        }
      });
    });
    tree.replaceChildren(...edges, ...nodes);
    resize(tree, nodeX(beamCount), nodeY(steps.length - 1) + 18);
    fill(tree, {"aria-activedescendant": `s${state.step}-${state.beam}`});
  }

  function edge(step, fromBeam, toBeam, onPath, future) {
    const middle = beam => nodeX(beam) + columnWidth / 2 - 4;
    const from = `${middle(fromBeam)},${nodeY(step - 1) + 12}`;
    const to = `${middle(toBeam)},${nodeY(step) - 12}`;
    return svg("path", {
      d: `M${from}L${to}`, fill: "none", class: onPath ? "line" : null, stroke: "currentColor",
      "stroke-width": onPath ? 3 : 1, "stroke-opacity": future ? .15 : onPath ? 1 : .4,
    });
  }

  // The token; where there is room its log-probability; and the score if </s> finishes it here.
  function hypothesisNode(step, beam, opacity) {
    const chosen = step === state.step && beam === state.beam, onPath = bestPath[step] === beam;
    const {tokens, logProbs, finished} = steps[step];
    const end = finished.find(each => each.beam === beam);
    const wide = columnWidth > 110, x = nodeX(beam), y = nodeY(step);
    const number = [
      ...wide ? [fixed(logProbs[beam], 2)] : [],
      ...end ? [`■${wide ? ` ${fixed(end.score, 2)}` : ""}`] : [],
    ].join(" ");
    const numberWidth = textWidth(number);
    const label = step ? labelText([tokens[beam]]) : "(start)";
    return svg("g",
      {
        role: "option", id: `s${step}-${beam}`, "aria-selected": chosen,
        "data-step": step, "data-beam": beam, opacity,
      },
      svg("rect", {
        x, y: y - 12, width: columnWidth - 8, height: 24, rx: 4, class: "high",
        "fill-opacity": chosen ? .35 : onPath ? .12 : 0,
        stroke: "currentColor", "stroke-width": chosen ? 2 : .5,
      }),
      svgText(label, x + 5, y, columnWidth - 22 - numberWidth),
      svg("text",
        {x: x + columnWidth - 13, y, dy: ".32em", "text-anchor": "end", class: "quiet"}, number));
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
        [labelText([token]), shaded(value), extensions.includes(token) ? "kept" : ""])));
    attentionTable.replaceChildren(...(weights ? [table(
      "Cross-attention, mean over the heads of the layer",
      ["source", "weight"],
      source.map((tokens, index) => [labelText(tokens), shaded(weights[index], 1, 3)]))] : []));
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
  goTo(first);
  return [
    toolbar(
      button("Back", () => goTo(state.step - 1)), button("Next", () => goTo(state.step + 1)),
      reducedMotion ? [] : playButton, slider,
      layerCount ? select("Layer", range(layerCount).map(n => n + 1), state.layer, layer => {
        state.layer = layer;
        describeHypothesis();
      }) : [],
      saveButton(() => tree)),
    hint("A line is a step, a column a beam; the thick line leads to the result, and ■ marks a "
      + "hypothesis that ends with </s>. Arrow keys or a click choose a hypothesis."),
    summary,
    sideBySide(scrollable(tree), nextTable, attentionTable),
    table("Results", ["translation", "score"],
      results.map(({tokens, score}) => [phrase(tokens), fixed(score)])),
  ];
}

function phrase(tokens) {
  return tokens.length ? tokens.map(token => labelText([token])).join(" ") : "(start)";
}
