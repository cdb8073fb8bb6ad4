// SPDX-License-Identifier: Apache-2.0
// Puts each view in place of its picture.
document.querySelectorAll(".view").forEach((section, place) => {
  const {kind, ...options} = data.views[place];
  const pairs = options.pairs.map(pair => data.pairs[pair]);
  section.querySelector(".still").replaceWith(...views[kind](options, pairs));
});
