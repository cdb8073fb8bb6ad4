# SPDX-License-Identifier: Apache-2.0
"""The paper once more, slowly: NumPy in float64, one sentence, one head and one position at a time.

Only the layout of the parameter tree is taken from the package. At the end are a few helpers that
tests share.
"""

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
            if layout == "halves_paper":
                sine, cosine = i, (d_model + 1) // 2 + i
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


def attend(query, keys, values, allowed, bias=lambda s: 0.0, score_vector=None):
    """One query over its keys: softmax(q . k / sqrt(d_k) + bias) v over those it may attend to.

    With a score vector, the score is v . tanh(q + k) (Bahdanau et al. 2015).
    """

    def score(key):
        if score_vector is None:
            return query @ key / math.sqrt(len(query))
        return sum(v * math.tanh(q + k) for v, q, k in zip(score_vector, query, key, strict=True))

    scores = {s: score(keys[s]) + bias(s) for s in range(len(keys)) if allowed[s]}
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


def alibi_slope(head, heads):
    """The slope of a head, from 0: a geometric sequence from 2^(-8/heads) (Press et al. 2022)."""
    if math.log2(heads) % 1 == 0:
        return 2 ** (-8 * (head + 1) / heads)
    lower = 2 ** math.floor(math.log2(heads))
    return alibi_slope(head, lower) if head < lower else alibi_slope(2 * (head - lower), 2 * lower)


def rotated(x, position):
    """Every pair turned by position / 10000^(2i/H): a complex multiplication (Su et al. 2021)."""
    turned = []
    for i in range(0, len(x), 2):
        angle = position / 10000 ** (i / len(x))
        number = complex(x[i], x[i + 1]) * complex(math.cos(angle), math.sin(angle))
        turned += [number.real, number.imag]
    return np.array(turned)


class Positions:
    """How the positions of a stack enter its self-attention; not at all without a config."""

    def __init__(self, p=None, config=None, side=None):
        self.p, self.config, self.side = p and p[side].get("position_scheme"), config, side

    def bias(self, t, s, n):
        """T5's bias of a bucket, or ALiBi's of a distance, of query t and key s in head n."""
        config = self.config
        if config is None:
            return 0.0
        if config.positions == "t5":
            options = (self.side == "encoder", config.position_buckets)
            return self.p["bias"][t5_bucket(s - t, *options, config.position_max_distance)][n]
        if config.positions == "alibi":
            return -alibi_slope(n, config.heads(self.side)) * abs(s - t)
        return 0.0

    def turned(self, x, position):
        """The query or key at a position, rotated by it."""
        rotates = self.config is not None and self.config.positions == "rotary"
        return rotated(x, position) if rotates else x

    def added(self, name, t, s):
        """What query t adds to the ``keys`` or ``values`` at s: the vector of the clipped distance.

        The table begins with -clip (Shaw et al. 2018) and in the decoder ends with 0, because later
        keys are masked.
        """
        if self.config is None or self.config.positions != "shaw":
            return 0.0
        clip = self.config.max_relative_position
        largest = clip if self.side == "encoder" else 0
        return self.p[name][min(max(s - t, -clip), largest) + clip]


def multi_head(p, queries_from, keys_from, values_from, allowed, positions=None):
    """Every head by itself, then W^O of all heads together (paper 3.2.2)."""
    output = np.zeros((len(queries_from), p["output"].shape[-1]))
    positions = positions or Positions()
    heads, kv_heads = p["query"].shape[1], p["key"].shape[1]
    for n in range(heads):
        kv = n // (heads // kv_heads)
        queries = queries_from @ p["query"][:, n]
        keys = keys_from @ p["key"][:, kv]
        values = values_from @ p["value"][:, kv]
        if "query_bias" in p:
            queries = queries + p["query_bias"][n]
            keys = keys + p["key_bias"][kv]
            values = values + p["value_bias"][kv]
        score_vector = p["score"][:, n] if "score" in p else None
        keys = [positions.turned(key, s) for s, key in enumerate(keys)]
        for t, query in enumerate(queries):
            z = attend(
                positions.turned(query, t),
                [key + positions.added("keys", t, s) for s, key in enumerate(keys)],
                [value + positions.added("values", t, s) for s, value in enumerate(values)],
                allowed(t),
                lambda s, t=t, n=n: positions.bias(t, s, n),
                score_vector,
            )
            output[t] += z @ p["output"][n]
    return output + p["output_bias"] if "output_bias" in p else output


def feed_forward(p, x, activation):
    """max(0, x W1 + b1) W2 + b2 (paper 3.3), or act(x W) * (x V) W2 (Shazeer 2020)."""
    if "kernel_gate" in p:
        of_gate = {"reglu": "relu", "geglu": "gelu", "swiglu": "swish"}[activation]
        return (activate(x @ p["kernel_gate"], of_gate) * (x @ p["kernel_in"])) @ p["kernel_out"]
    hidden = activate(x @ p["kernel_in"] + p["bias_in"], activation)
    return hidden @ p["kernel_out"] + p["bias_out"]


def layer_norm(p, x, epsilon):
    """Each position to mean 0 and variance 1, then scale and bias; without bias, mean square 1."""
    rows = []
    for row in x:
        if "bias" not in p:
            mean_square = sum(value**2 for value in row) / len(row)
            rows.append(row / math.sqrt(mean_square + epsilon) * p["scale"])
            continue
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
    """Embedding times sqrt(d_model) plus position (paper 3.4, 3.5), and the first timestep."""
    if config.positions == "learned":
        positions = p["positions"]
    elif config.positions == "sinusoidal":
        first = config.position_offset
        positions = sinusoids(first + len(tokens), config.d_model, config.sinusoid_layout)[first:]
    else:
        positions = np.zeros((len(tokens), config.d_model))
    root = math.sqrt(config.d_model)
    factor = root if config.embedding_scale == "tokens" else 1.0
    share = 1 / root if config.embedding_scale == "positions" else 1.0
    x = [table[w] * factor + positions[i] * share for i, w in enumerate(tokens)]
    return np.array(x) + timestep(config, 1)


def timestep(config, number):
    """The encoding that is added before layer `number`, from 1 (Dehghani et al. 2019)."""
    if not config.timestep_encoding:
        return 0.0
    return sinusoids(number + 1, config.d_model, config.sinusoid_layout)[number]


def layers(p, config, side):
    """The parameters of every layer of a stack, and the timestep before it if it is not added."""
    for index in range(config.depth(side)):
        later = timestep(config, index + 1) if index else 0.0
        yield p[side]["layer_0" if config.shared_layers else f"layer_{index}"], later


def near(config, t, visible):
    """Of the visible keys, those in the neighborhood of query t (paper 4)."""
    r = config.attention_window or 2 * len(visible) + 1
    return [seen and abs(s - t) <= (r - 1) / 2 for s, seen in enumerate(visible)]


def encode(p, config, source):
    """The memory of one sentence, [S,D]; no query attends to padding."""
    table = p["embedding"].get("source_table", p["embedding"]["table"])
    x = embed(p["embedding"], config, source, table)
    positions = Positions(p, config, "encoder")
    visible = [token != PAD for token in source]

    def allowed(t):
        reached = near(config, t, visible)
        return reached if any(reached) else visible  # The second for padding, which is not read.

    for q, later in layers(p, config, "encoder"):
        x = residual(
            q["self_attention_residual"],
            config,
            x + later,
            lambda y, q=q: multi_head(q["self_attention"], y, y, y, allowed, positions),
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
    positions = Positions(p, config, "decoder")
    visible = [token != PAD for token in source]

    def past(t):
        return near(config, t, [s <= t for s in range(len(target_in))])

    for q, later in layers(p, config, "decoder"):
        x = residual(
            q["self_attention_residual"],
            config,
            x + later,
            lambda y, q=q: multi_head(q["self_attention"], y, y, y, past, positions),
        )
        if "cross_attention" in q:  # a decoder-only model has none
            x = residual(
                q["cross_attention_residual"],
                config,
                x,
                lambda y, q=q: multi_head(
                    q["cross_attention"], y, memory, memory, lambda t: visible
                ),
            )
        x = residual(
            q["feed_forward_residual"],
            config,
            x,
            lambda y, q=q: feed_forward(q["feed_forward"], y, config.activation),
        )
    if config.norm == "pre":
        x = layer_norm(p["decoder"]["final_norm"], x, config.norm_epsilon)
    output = p["embedding"]["output"] if "output" in p["embedding"] else p["embedding"]["table"].T
    return x @ output + p["embedding"].get("output_bias", 0.0)


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


# Helpers that tests share.


def random_params(model, seed):
    """Parameters of a model drawn from NumPy; kernels small, scales around 1, nothing 0 or 1."""
    variables = jax.eval_shape(model.init, jax.random.key(0), *model.example_inputs())
    shapes = nn.unbox(variables["params"])
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        center = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(center + 0.3 * rng.standard_normal(leaf.shape), leaf.dtype)

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
