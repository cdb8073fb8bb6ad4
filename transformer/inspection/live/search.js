// SPDX-License-Identifier: Apache-2.0
// Beam search (paper 6.1); greedy search is the case of one beam. The search knows no model.

// Divisor of log P. EOS counts in the length.
function lengthPenalty(length, {length_penalty, alpha}) {
  return {gnmt: ((5 + length) / 6) ** alpha, length: length ** alpha, none: 1}[length_penalty];
}

// The longest translation, EOS included.
function longestOutput(sourceLength, {max_length, extra_length}) {
  return max_length ?? sourceLength + extra_length;
}

// Search for the best translation, one step at a time.
//
// next(token, cache) -> {logits, cache} reads a token after those that the cache knows.
// Yields after each step: {active, candidates, finished, isDone}.
//   active: the hypotheses that were extended, {tokens, logProb, logProbs of the next tokens, ...}
//   candidates: the best 2K extensions, {parent, token, logProb, fate}, best first
//   finished: all hypotheses that have ended with EOS, {tokens, logProb, score}, best first
function* beamSearch(next, cache, lengthLimit, options, special) {
  const {beams, finish_from} = options;
  let live = [{tokens: [], logProb: 0, parent: null, cache}];
  let finished = [], numFinished = 0;
  for (let length = 1; length <= lengthLimit; length++) {  // of the extensions
    const active = live.map(hypothesis => {
      const {logits, cache} = next(hypothesis.tokens.at(-1) ?? special.bos_id, hypothesis.cache);
      return {...hypothesis, cache, logProbs: logSoftmax(logits)};
    });

    // The best 2K extensions suffice: at most K of them end, one for each hypothesis. Padding and
    // BOS never follow; at the length limit only EOS may.
    const count = beams === 1 ? 1 : 2 * beams;
    const extensions = active.flatMap(({logProb, logProbs}, parent) => {
      const allowed = length === lengthLimit ? [special.eos_id]
        : largestIndices(logProbs, count + 2)
          .filter(token => token !== special.pad_id && token !== special.bos_id);
      return allowed.map(token => ({parent, token, logProb: logProb + logProbs[token]}));
    });
    const candidates = highest(extensions, count, ({logProb}) => logProb);

    // Among the best K (or 2K), those that end with EOS are finished.
    const numFinishing = finish_from === "best_k" ? beams : candidates.length;
    const ended = candidates.slice(0, numFinishing)
      .filter(({token}) => token === special.eos_id)
      .map(({parent, token, logProb}) => ({
        tokens: [...active[parent].tokens, token], logProb, parent,
        score: logProb / lengthPenalty(length, options),
      }));
    numFinished += ended.length;
    finished = highest([...finished, ...ended], beams, ({score}) => score);

    // The best K without EOS go on.
    const kept = candidates.filter(({token}) => token !== special.eos_id).slice(0, beams);
    live = kept.map(({parent, token, logProb}) => ({
      tokens: [...active[parent].tokens, token], logProb, parent, cache: active[parent].cache,
    }));
    candidates.forEach((candidate, rank) => {
      const ends = candidate.token === special.eos_id && rank < numFinishing;
      candidate.fate = ends ? "finished" : kept.includes(candidate) ? "kept" : "dropped";
    });

    // Stop when no hypothesis can overtake the best result: log P only falls, so log P now over
    // the largest penalty to come is an upper bound. Or when K have finished and the best result
    // is ahead of every hypothesis at its present length.
    const best = finished[0]?.score ?? -Infinity;
    const bestLogProb = Math.max(...live.map(({logProb}) => logProb));
    const largestPenalty = Math.max(
      lengthPenalty(length + 1, options), lengthPenalty(lengthLimit, options));
    const isDone = live.length === 0
      || numFinished >= beams && best >= bestLogProb / lengthPenalty(length, options)
      || best >= bestLogProb / largestPenalty
      || length === lengthLimit;
    yield {active, candidates, finished, isDone};
    if (isDone) return;
  }
}

// The items with the largest values, largest first; equal values keep their order.
function highest(items, count, valueOf) {
  return [...items].sort((a, b) => valueOf(b) - valueOf(a)).slice(0, count);
}

// The indices of the largest values, largest first.
function largestIndices(values, count) {
  const best = [];
  for (let index = 0; index < values.length; index++) {
    if (best.length === count && !(values[index] > values[best[count - 1]])) continue;
    let rank = best.length;
    while (rank > 0 && values[index] > values[best[rank - 1]]) rank--;
    best.splice(rank, 0, index);
    if (best.length > count) best.pop();
  }
  return best;
}
