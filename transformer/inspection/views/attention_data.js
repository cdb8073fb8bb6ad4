// SPDX-License-Identifier: Apache-2.0
// The attention weights of the page, and the controls that choose a kind of attention and a layer.

const data = JSON.parse(document.getElementById("data").textContent);

function headColor(head) {
  return data.headColors[head % data.headColors.length];
}

// Controls that set state.kind and state.layer, then call changed(whether the kind has changed).
function attentionPicker(pair, state, changed) {
  const layerControl = html("span");
  const kindControl = select("Attention", pair.map(({title}) => title), state.kind, kind => {
    state.kind = kind;
    update();
    changed(true);
  });

  // Show the current state, for example after another view has changed it.
  function update() {
    const {weights, firstLayer} = pair[state.kind];
    state.layer = clamp(state.layer, weights.length);
    kindControl.querySelector("select").value = state.kind;
    const names = weights.map((_, layer) => firstLayer + layer + 1);
    layerControl.replaceChildren(select("Layer", names, state.layer, layer => {
      state.layer = layer;
      changed(false);
    }));
  }

  update();
  return {controls: [kindControl, layerControl], update};
}
