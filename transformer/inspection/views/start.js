// SPDX-License-Identifier: Apache-2.0
// Replace the static content of every view by the interactive one.

const renderers = {
  headView, headOverview, attentionSteps, searchReplay, sentenceComparison, valueMap,
};

document.querySelectorAll("section.view").forEach((section, index) => {
  const {script, options, pairs} = data.views[index];
  const content = renderers[script](options, pairs.map(pair => data.pairs[pair]));
  section.lastElementChild.replaceWith(...content);
});
