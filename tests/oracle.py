# SPDX-License-Identifier: Apache-2.0
"""The paper once more, slowly: NumPy in float64, one sentence, one head and one position at a time.

Only the layout of the parameter tree is taken from the package. At the end are a few helpers that
tests share.
"""

import collections
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

PAD, BOS, EOS = 0, 1, 2


# The model: paper 3, figure 1.


def sinusoids(length, d_model, layout):
    """The positional table, entry by entry (paper 3.5)."""
    table = np.zeros((length, d_model))
    half = d_model // 2
    for position in range(length):
        for i in range(half if layout == "halves" else (d_model + 1) // 2):
            if layout == "halves":
                angle = position * math.exp(-i * math.log(10000) / max(half - 1, 1))
                sine, cosine = i, half + i
            else:
                angle = position / 10000 ** (2 * i / d_model)
                sine, cosine = 2 * i, 2 * i + 1
            table[position, sine] = math.sin(angle)
            if cosine < d_model:
                table[position, cosine] = math.cos(angle)
    return table


def activate(x, name):
    """max(0, x), x Phi(x), the tanh form of GELU, or x sigmoid(x)."""
    if name == "relu":
        return np.maximum(0.0, x)
    if name == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))


def attend(query, keys, values, allowed, bias=lambda s: 0.0):
    """One query over its keys: softmax(q . k / sqrt(d_k) + bias) v over those it may attend to."""
    scores = {
        s: query @ keys[s] / math.sqrt(len(query)) + bias(s) for s in range(len(keys)) if allowed[s]
    }
    highest = max(scores.values())
    shares = {s: math.exp(score - highest) for s, score in scores.items()}
    total = sum(shares.values())
    return sum(share / total * values[s] for s, share in shares.items())


def t5_bucket(distance, bidirectional, buckets, max_distance):
    """The bucket of a key position minus a query position (Raffel et al. 2020), by its formula."""
    if bidirectional:
        buckets //= 2
    far, after = (abs(distance) if bidirectional else max(-distance, 0)), distance > 0
    exact = buckets // 2
    bucket = far
    if far >= exact:
        share = math.log(far / exact) / math.log(max_distance / exact)
        bucket = min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)
    return bucket + (buckets if bidirectional and after else 0)


def t5_bias(p, config, side):
    """The bias of a stack's self-attention for query t, key s and head n; 0 without T5's scheme."""
    if config.positions != "t5":
        return lambda t, s, n: 0.0
    options = (side == "encoder", config.position_buckets, config.position_max_distance)
    return lambda t, s, n: p[side]["position_scheme"]["bias"][t5_bucket(s - t, *options)][n]


def multi_head(p, queries_from, keys_from, values_from, allowed, bias=lambda t, s, n: 0.0):
    """Every head by itself, then W^O of all heads together (paper 3.2.2)."""
    output = np.zeros((len(queries_from), p["output"].shape[-1]))
    for n in range(p["query"].shape[1]):
        queries = queries_from @ p["query"][:, n]
        keys = keys_from @ p["key"][:, n]
        values = values_from @ p["value"][:, n]
        if "query_bias" in p:
            queries = queries + p["query_bias"][n]
            keys = keys + p["key_bias"][n]
            values = values + p["value_bias"][n]
        for t, query in enumerate(queries):
            z = attend(query, keys, values, allowed(t), lambda s, t=t, n=n: bias(t, s, n))
            output[t] += z @ p["output"][n]
    return output + p["output_bias"] if "output_bias" in p else output


def feed_forward(p, x, activation):
    """max(0, x W1 + b1) W2 + b2 (paper 3.3)."""
    hidden = activate(x @ p["kernel_in"] + p["bias_in"], activation)
    return hidden @ p["kernel_out"] + p["bias_out"]


def layer_norm(p, x, epsilon):
    """Each position to mean 0 and variance 1, then scale and bias."""
    rows = []
    for row in x:
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        rows.append((row - mean) / math.sqrt(variance + epsilon) * p["scale"] + p["bias"])
    return np.array(rows)


def residual(p, config, x, sublayer):
    """Post: norm(x + f(x)). Pre: x + f(norm(x))."""
    if config.norm == "pre":
        return x + sublayer(layer_norm(p["norm"], x, config.norm_epsilon))
    return layer_norm(p["norm"], x + sublayer(x), config.norm_epsilon)


def embed(p, config, tokens, table):
    """Embedding times sqrt(d_model) plus position (paper 3.4, 3.5)."""
    if config.positions == "learned":
        positions = p["positions"]
    elif config.positions == "sinusoidal":
        positions = sinusoids(len(tokens), config.d_model, config.sinusoid_layout)
    else:
        positions = np.zeros((len(tokens), config.d_model))
    return np.array(
        [table[w] * math.sqrt(config.d_model) + positions[i] for i, w in enumerate(tokens)]
    )


def encode(p, config, source):
    """The memory of one sentence, [S,D]; no query attends to padding."""
    table = p["embedding"].get("source_table", p["embedding"]["table"])
    x = embed(p["embedding"], config, source, table)
    bias = t5_bias(p, config, "encoder")
    visible = [token != PAD for token in source]
    for layer in range(config.depth("encoder")):
        q = p["encoder"][f"layer_{layer}"]
        x = residual(
            q["self_attention_residual"],
            config,
            x,
            lambda y, q=q: multi_head(q["self_attention"], y, y, y, lambda t: visible, bias),
        )
        x = residual(
            q["feed_forward_residual"],
            config,
            x,
            lambda y, q=q: feed_forward(q["feed_forward"], y, config.activation),
        )
    if config.norm == "pre":
        x = layer_norm(p["encoder"]["final_norm"], x, config.norm_epsilon)
    return x


def decode(p, config, memory, source, target_in):
    """The logits that follow each position of one decoder input, [T,V]."""
    x = embed(p["embedding"], config, target_in, p["embedding"]["table"])
    bias = t5_bias(p, config, "decoder")
    visible = [token != PAD for token in source]

    def past(t):
        return [s <= t for s in range(len(target_in))]

    for layer in range(config.depth("decoder")):
        q = p["decoder"][f"layer_{layer}"]
        x = residual(
            q["self_attention_residual"],
            config,
            x,
            lambda y, q=q: multi_head(q["self_attention"], y, y, y, past, bias),
        )
        x = residual(
            q["cross_attention_residual"],
            config,
            x,
            lambda y, q=q: multi_head(q["cross_attention"], y, memory, memory, lambda t: visible),
        )
        x = residual(
            q["feed_forward_residual"],
            config,
            x,
            lambda y, q=q: feed_forward(q["feed_forward"], y, config.activation),
        )
    if config.norm == "pre":
        x = layer_norm(p["decoder"]["final_norm"], x, config.norm_epsilon)
    return x @ p["embedding"]["table"].T + p["embedding"].get("output_bias", 0.0)


def logits(p, config, source, target_in):
    """The logits of a batch, [B,T,V], sentence by sentence."""
    return np.array(
        [
            decode(p, config, encode(p, config, s), s, t)
            for s, t in zip(np.asarray(source), np.asarray(target_in), strict=True)
        ]
    )


# The loss: paper 5.4.


def log_softmax(row):
    """log p of every word."""
    highest = max(row)
    return row - highest - math.log(sum(math.exp(value - highest) for value in row))


def smoothed_label(gold, vocabulary, smoothing, mass):
    """The label as a distribution over the vocabulary."""
    if mass == "uniform":
        label = np.full(vocabulary, smoothing / vocabulary)
        label[gold] += 1 - smoothing
    else:
        label = np.full(vocabulary, smoothing / (vocabulary - 1))
        label[gold] = 1 - smoothing
    return label


def token_losses(rows, target, smoothing, mass):
    """(loss, nll, correct) of every target token of a batch that is not padding."""
    for sentence, words in zip(np.asarray(rows), np.asarray(target), strict=True):
        for row, gold in zip(sentence, words, strict=True):
            if gold != PAD:
                log_probs = log_softmax(row.astype(np.float64))
                label = smoothed_label(gold, len(row), smoothing, mass)
                yield -label @ log_probs, -log_probs[gold], float(row.argmax() == gold)


def loss_sums(rows, target, smoothing, mass):
    """The sums of loss, nll and correct tokens, and the number of tokens."""
    tokens = list(token_losses(rows, target, smoothing, mass))
    return (*(sum(column) for column in zip(*tokens, strict=True)), len(tokens))


def loss(p, config, source, target, smoothing, mass):
    """The summed loss of a batch from its tokens."""
    target_in = np.array([[BOS, *row[:-1]] for row in np.asarray(target)])
    return loss_sums(logits(p, config, source, target_in), target, smoothing, mass)[0]


# Decoding without a cache: paper 6.1.


def next_words(p, config, source):
    """A function from prefix to the log-probability of every next word, for one sentence."""
    memory = encode(p, config, source)

    def log_probs(prefix):
        return log_softmax(decode(p, config, memory, source, [BOS, *prefix])[-1])

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
    if len(prefix) < len(forced):
        words = [forced[len(prefix)]]
    if len(prefix) + 1 >= limit:
        words = [EOS]
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


# Helpers that tests share.


def random_params(model, seed):
    """Parameters of a model drawn from NumPy; kernels small, scales around 1, nothing 0 or 1."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"])
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(centre + 0.3 * rng.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def float64(params):
    """The parameters as float64 JAX arrays; inside `jax.enable_x64(True)` only."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), params)


def arrays(params):
    """The parameters as float64 NumPy arrays, which is what this file reads."""
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64), params)


def equations(jaxpr):
    """Every equation of a jaxpr, those inside of it included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)
