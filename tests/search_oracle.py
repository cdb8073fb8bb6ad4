# SPDX-License-Identifier: Apache-2.0
"""The searches of paper 6.1 once more, slowly: without a cache, hypothesis by hypothesis."""

import collections
import math

import oracle
from oracle import BOS, EOS


def next_words(p, config, source):
    """A function from prefix to the log-probability of every next word, for one sentence."""
    memory = oracle.encode(p, config, source)

    def log_probs(prefix):
        return oracle.log_softmax(oracle.decode(p, config, memory, source, [BOS, *prefix])[-1])

    return log_probs


def penalty_of(length, penalty, alpha):
    """The divisor of log P."""
    if penalty == "none":
        return 1.0
    return ((5 + length) / 6 if penalty == "gnmt" else length) ** alpha


def followers(log_probs, prefix, limit, min_length=0, block_ngrams=None, forced=()):
    """(word, log p) of the words that may follow, as specified by `decoding.constraints`."""
    row = log_probs(prefix)
    words = [w for w in range(len(row)) if w > BOS]
    if block_ngrams is not None:
        words = [w for w in words if not comes_again((*prefix, w), block_ngrams)]
    if len(prefix) < min_length:
        words = [w for w in words if w != EOS] or [EOS]
    if len(prefix) + 1 >= limit:
        words = [EOS]
    elif len(prefix) < len(forced):
        return [(forced[len(prefix)], 0.0)]
    return [(word, float(row[word])) for word in words]


def comes_again(words, size):
    """Whether the last n-gram of `size` words occurs earlier, too."""
    earlier = [words[i : i + size] for i in range(len(words) - size)]
    return words[len(words) - size :] in earlier


def greedy(log_probs, limit, **rules):
    """(tokens, log P): the most probable word at every position."""
    prefix, total = (), 0.0
    while not prefix or prefix[-1] != EOS:
        choices = followers(log_probs, prefix, limit, **rules)
        word, log_prob = max(choices, key=lambda pair: pair[1])
        prefix, total = (*prefix, word), total + log_prob
    return prefix, total


def every_translation(log_probs, limit, prefix=(), total=0.0):
    """(tokens, log P) of every translation within the limit."""
    for word, log_prob in followers(log_probs, prefix, limit):
        if word == EOS:
            yield (*prefix, EOS), total + log_prob
        else:
            yield from every_translation(log_probs, limit, (*prefix, word), total + log_prob)


def best_of(translations, penalty, alpha):
    """(score, log P, tokens) of each, best first."""
    scored = [(p / penalty_of(len(t), penalty, alpha), p, t) for t, p in translations]
    return sorted(scored, key=lambda entry: -entry[0])


def beam(log_probs, limit, num_beams, num_results, penalty, alpha, finish_from="best_k", **rules):
    """Beam search as specified by the docstring of `decoding.beam_search`.

    Returns (score, log P, tokens) of the finished hypotheses, best first, and the number of steps.
    """
    active, finished, length = [((), 0.0)], [], 0
    while True:
        length += 1
        extensions = [
            ((*prefix, word), total + log_prob)
            for prefix, total in active
            for word, log_prob in followers(log_probs, prefix, limit, **rules)
        ]
        extensions.sort(key=lambda extension: -extension[1])
        extensions = extensions[: 2 * num_beams]
        may_finish = extensions[:num_beams] if finish_from == "best_k" else extensions
        finished += [extension for extension in may_finish if extension[0][-1] == EOS]
        active = [extension for extension in extensions if extension[0][-1] != EOS][:num_beams]
        ranked = best_of(finished, penalty, alpha)
        if not active or length >= limit:
            return ranked[:num_beams], length
        best_active_score = max(total / penalty_of(length, penalty, alpha) for _, total in active)
        if len(finished) >= num_beams and ranked[num_results - 1][0] >= best_active_score:
            return ranked[:num_beams], length
        best_possible_score = max(
            total / penalty_of(later, penalty, alpha)
            for _, total in active
            for later in range(length + 1, limit + 1)
        )
        if len(ranked) >= num_results and ranked[num_results - 1][0] >= best_possible_score:
            return ranked[:num_beams], length


def diverse_beam(
    log_probs, limit, num_beams, num_groups, diversity, num_results, penalty, alpha, **rules
):
    """Diverse beam search as specified by the same docstring; returns what `beam` returns."""
    group_beams, length = num_beams // num_groups, 0
    active = [[((), 0.0)] for _ in range(num_groups)]
    finished, is_finished = [[] for _ in range(num_groups)], [False] * num_groups
    while not all(is_finished):
        length += 1
        chosen_counts = collections.Counter()
        for group in range(num_groups):
            extensions = [
                ((*prefix, word), total + log_prob)
                for prefix, total in active[group]
                for word, log_prob in followers(log_probs, prefix, limit, **rules)
            ]
            extensions.sort(key=lambda e: -(e[1] - diversity * chosen_counts[e[0][-1]]))
            extensions = extensions[: 2 * group_beams]
            if not is_finished[group]:
                finished[group] += [e for e in extensions[:group_beams] if e[0][-1] == EOS]
            active[group] = [e for e in extensions if e[0][-1] != EOS][:group_beams]
            chosen_counts.update(prefix[-1] for prefix, _ in active[group])
            ranked = best_of(finished[group], penalty, alpha)
            best_possible_score = max(
                (
                    total / penalty_of(later, penalty, alpha)
                    for _, total in active[group]
                    for later in range(length + 1, limit + 1)
                ),
                default=-math.inf,
            )
            best_active_score = max(
                (total / penalty_of(length, penalty, alpha) for _, total in active[group]),
                default=-math.inf,
            )
            wanted = min(num_results, group_beams)
            last = ranked[wanted - 1][0] if len(ranked) >= wanted else -math.inf
            enough = len(ranked) >= group_beams and last >= best_active_score
            is_finished[group] |= enough or last >= best_possible_score or length >= limit
    every = {entry[2]: entry for group in finished for entry in best_of(group, penalty, alpha)}
    return sorted(every.values(), key=lambda entry: -entry[0])[:num_beams], length
