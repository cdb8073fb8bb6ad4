// SPDX-License-Identifier: Apache-2.0
// Puts each view in place of its picture.
document.querySelectorAll(".view").forEach((section, place) => {
  const {kind, pairs, ...options} = data.views[place];
  section.lastChild.replaceWith(...views[kind](options, pairs.map(pair => data.pairs[pair])));
});
