// SPDX-License-Identifier: Apache-2.0
// A search: a column of hypotheses for each step; the chosen one's reading and choices.
views.replay = ({source, steps, results, layers: shown}) => {
  const layers = shown.length;
  const state = {step: 0, beam: 0, layer: layers - 1, timer: 0};
  const said = spoken(), reading = make("div"), choices = make("div");
  const COLUMN = 112, ROW = 38;
  const reads = steps.map(step => unpacked(step.reads));
  const read = j => reads[state.step][(state.beam * layers + state.layer) * source.length + j];
  const best = results[0].path;
  // The tokens of a hypothesis, from its last back to its first.
  const tokens = (step, beam) => step
    ? [...tokens(step - 1, steps[step].parents[beam]), steps[step].tokens[beam]] : [];
  const sentence = words => words.length ? words.map(word => label([word])).join(" ") : "(start)";

  const picture = draw("svg", {tabindex: 0, role: "listbox", "aria-label": "Hypotheses; arrow keys move",
    click: ({target}) => {
      const node = target.closest("[data-beam]");
      if (node) go(+node.dataset.step, +node.dataset.beam);
    },
    // To the left lies the parent; to the right the first that goes on from this one.
    keydown: keys(arrows((down, right) => {
      if (right < 0) go(state.step - 1, steps[state.step].parents[state.beam]);
      else go(state.step + right, right ? steps[state.step + 1]?.parents.indexOf(state.beam) : state.beam + down);
    }))});
  const drawn = () => {
    const most = Math.max(...steps.map(step => step.tokens.length + step.finished.length));
    const y = place => 18 + ROW * place, nodes = [], edges = [];
    const edge = (step, from, to, on) => edges.push(draw("path", {fill: "none", stroke: on ? "#0b7fc4" : "currentColor",
      "stroke-width": on ? 3 : 1, "stroke-opacity": on ? 1 : .4,
      d: `M${COLUMN * step - 16},${y(from)}L${COLUMN * step + 4},${y(to)}`}));
    range(state.step + 1).forEach(n => {
      const step = steps[n];
      step.tokens.forEach((token, beam) => {
        const on = n === state.step && beam === state.beam, chosen = best[n] === beam;
        if (n) edge(n, step.parents[beam], beam, chosen && best[n - 1] === step.parents[beam]);
        nodes.push(draw("g", {role: "option", id: `s${n}-${beam}`, "aria-selected": on, "data-step": n, "data-beam": beam},
          draw("rect", {x: COLUMN * n + 4, y: y(beam) - 16, width: COLUMN - 22, height: 32, rx: 4, fill: "#0b7fc4",
            "fill-opacity": on ? .4 : chosen ? .15 : 0, stroke: "currentColor", "stroke-width": on ? 2 : .5}),
          text(n ? label([token]) : "(start)", COLUMN * n + 9, y(beam) - 6, COLUMN - 32),
          draw("text", {x: COLUMN * n + 9, y: y(beam) + 12, "font-size": 10}, fixed(step.scores[beam], 2))));
      });
      // Those that end stand where the next step begins, below those that live on.
      if (n < state.step || n === steps.length - 1) step.finished.forEach(([beam, score], k) => {
        const place = (steps[n + 1]?.tokens.length ?? 0) + k;
        edge(n + 1, beam, place, n === best.length - 1 && beam === best[n]);
        nodes.push(text(`■ end ${fixed(score, 2)}`, COLUMN * (n + 1) + 9, y(place), COLUMN - 32));
      });
    });
    const width = COLUMN * (steps.length + 1);
    filled(picture, {viewBox: `0 0 ${width} ${ROW * most}`, style: `width:${width}px;max-width:none`, "aria-activedescendant": `s${state.step}-${state.beam}`});
    picture.replaceChildren(...edges, ...nodes);
    picture.parentNode?.scrollTo(COLUMN * (state.step - 4), 0);
  };
  const go = (step, beam = best[step] ?? 0) => {
    state.step = within(step, steps.length);
    const now = steps[state.step];
    state.beam = within(beam, now.tokens.length);
    drawn();
    const order = layers ? range(source.length).sort((a, b) => read(b) - read(a)).slice(0, 3) : [];
    const ends = now.finished.filter(([beam]) => beam === state.beam).map(([, score]) => ` It ends here, score ${fixed(score)}.`);
    const [first] = now.next[state.beam];
    said.textContent = `Step ${state.step + 1} of ${steps.length}, hypothesis ${state.beam + 1} of ${now.tokens.length}: `
      + `${sentence(tokens(state.step, state.beam))}, log probability ${fixed(now.scores[state.beam])}. `
      + (layers ? `It reads ${order.map(j => label(source[j]) + " " + fixed(read(j))).join(", ")}. ` : "")
      + `Most probable next: ${label([first[0]])}, ${fixed(first[1])}.${ends.join("")}`;
    const lives = (steps[state.step + 1]?.tokens ?? []).filter((_, k) => steps[state.step + 1].parents[k] === state.beam);
    choices.replaceChildren(table("What may come next", ["token", "probability", ""],
      now.next[state.beam].map(([token, chance]) => [label([token]), fixed(chance, 4), lives.includes(token) ? "lives on" : ""])));
    reading.replaceChildren(...(layers ? [table("Where it reads: the mean of the layer's heads, to 1/4128", ["source", "weight", ""],
      source.map((token, j) => [label(token), fixed(read(j)),
        make("meter", {value: read(j), "aria-hidden": true})]))] : []));
    slider.value = state.step;
    if (state.step === steps.length - 1) stop();
  };
  const slider = make("input", {type: "range", min: 0, max: steps.length - 1, "aria-label": "Step", input: () => go(+slider.value)});
  const stop = () => { clearInterval(state.timer); state.timer = 0; play.textContent = "Play"; };
  const play = button("Play", () => {
    if (state.timer) return stop();
    if (state.step === steps.length - 1) go(0);
    state.timer = setInterval(() => go(state.step + 1), 1000);
    play.textContent = "Stop";
  });
  // Nothing moves by itself where the reader has asked for that.
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  go(0);
  return [tools(button("Back", () => go(state.step - 1)), button("Next", () => go(state.step + 1)), still ? [] : play, slider,
    layers ? choice("Layer", shown.map(n => n + 1), state.layer, layer => { state.layer = layer; go(state.step, state.beam); }) : [],
    saver(() => picture)), said, make("div", {class: "wide"}, picture),
  make("div", {class: "maps"}, choices, reading),
  table("Translations found", ["translation", "score"], results.map(result => [sentence(result.tokens), fixed(result.score)]))];
};
