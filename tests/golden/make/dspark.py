"""Makes tests/golden/dspark/: three DSpark stages over the tiny random V4 Flash, in plain NumPy.

    pip install numpy==2.4.6 safetensors==0.8.0
    python tests/golden/make/dspark.py [--weights ALL.safetensors]

Reads tests/golden/oracle/official_flash_{exact,qat}.safetensors (ids, and the logits that the
backbone here must repeat). Writes exact.safetensors, qat.safetensors, weights.safetensors and
manifest.json, and prints what it checked; a failed check ends it before anything is written.
`--weights` also writes every DSpark tensor to one file (26 MB, not for the repository).

Written from the model's description alone (sections 2, 4.2 and 7.1), for comparison: no engine's
code was read for it. Shapes: d = 256 wide, 4 streams, heads 8 x 128 (last 64 rotary), vocabulary
512, window 32, draft block of 5. `n` is a number of rows. Numbers in comments like [n, 4, d] are
shapes. Everything runs in float64 unless told otherwise; the round trips start from float32.
"""
import argparse
import json
import math
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = pathlib.Path(__file__).resolve().parent.parent
SEED, DSPARK_SEED = 13, 13
D, STREAMS, HEADS, HEAD, ROPE, VOCAB, WINDOW = 256, 4, 8, 128, 64, 512, 32
Q_RANK, O_RANK, O_GROUPS, EXPERTS, TOP, INNER, ROUTE_SCALE = 128, 128, 2, 8, 3, 256, 1.5
INDEX_HEADS, INDEX_HEAD, INDEX_TOP, LAYERS, HASHED = 16, 128, 48, 6, 2
RATIOS = [0, 0, 4, 128, 4, 128]
EPS, HC_EPS, SINKHORN, CLAMP = 1e-6, 1e-6, 20, 10.0
# DSpark at the tiny shape: block of 5, rank 16, the last three layers, a noise id below 512
STAGES, BLOCK, RANK, TARGETS, NOISE = 3, 5, 16, [3, 4, 5], 500
PROMPT = 129
CASES = [(p, None) for p in (0, 1, 2, 3, 31, 32, 35, 126, 127, 128)] + [(2, 77), (35, 401)]
STAGE_CASES = [2, 6]  # cases whose streams after every stage are kept (p = 2 and 35)


# ---- weights: functions of a seed --------------------------------------------------------------
def fnv1a64(data):
    h = 0xCBF29CE484222325
    for c in data:
        h = ((h ^ c) * 0x100000001B3) & (2**64 - 1)
    return h


def uniforms(text, n):
    """[n] doubles in [0, 1): splitmix64 from the FNV-1a key of `text`, top 53 bits."""
    with np.errstate(over="ignore"):
        gold = np.uint64(0x9E3779B97F4A7C15)
        z = np.uint64(fnv1a64(text.encode())) + np.arange(1, n + 1, dtype=np.uint64) * gold
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Weights:
    """Tensors by published name, float32, with the mean and deviation each was drawn with."""

    def __init__(self, seed):
        self.seed, self.t, self.drawn = seed, {}, {}

    def draw(self, name, shape, std, mean=0.0):
        u = uniforms(f"{self.seed}/{name}", math.prod(shape))
        v = mean + std * math.sqrt(3.0) * (2.0 * u - 1.0)
        self.t[name] = v.astype(np.float32).reshape(shape)
        self.drawn[name] = (mean, std)

    def linear(self, name, rows, columns, gain=1.0):
        self.draw(name, (rows, columns), gain / math.sqrt(columns))

    def norm(self, name, width, mean=1.0):
        self.draw(name, (width,), 0.15, mean)

    def streams(self, name, rows):
        self.draw(name + "_fn", (rows, STREAMS * D), 1.0 / math.sqrt(STREAMS * D))
        self.draw(name + "_base", (rows,), 0.8)
        self.draw(name + "_scale", (1 if rows == STREAMS else 3,), 0.2, 0.7)

    def compressor(self, name, ratio, width, mean):
        c = 2 if ratio == 4 else 1
        self.draw(name + ".ape", (ratio, c * width), 0.7)
        self.linear(name + ".wkv.weight", c * width, D)
        self.linear(name + ".wgate.weight", c * width, D, 1.5)
        self.norm(name + ".norm.weight", width, mean)

    def block(self, p, ratio=0, hashed=False):
        self.streams(p + "hc_attn", STREAMS * (STREAMS + 2))
        self.streams(p + "hc_ffn", STREAMS * (STREAMS + 2))
        self.norm(p + "attn_norm.weight", D)
        self.norm(p + "ffn_norm.weight", D)
        a = p + "attn."
        self.draw(a + "attn_sink", (HEADS,), 1.0)
        self.linear(a + "wq_a.weight", Q_RANK, D)
        self.norm(a + "q_norm.weight", Q_RANK)
        self.linear(a + "wq_b.weight", HEADS * HEAD, Q_RANK)
        self.linear(a + "wkv.weight", HEAD, D)
        self.norm(a + "kv_norm.weight", HEAD, 2.0)
        self.linear(a + "wo_a.weight", O_GROUPS * O_RANK, HEADS * HEAD // O_GROUPS, 1.5)
        self.linear(a + "wo_b.weight", D, O_GROUPS * O_RANK, 1.5)
        if ratio:
            self.compressor(a + "compressor", ratio, HEAD, 2.0)
        if ratio == 4:
            self.linear(a + "indexer.wq_b.weight", INDEX_HEADS * INDEX_HEAD, Q_RANK)
            self.linear(a + "indexer.weights_proj.weight", INDEX_HEADS, D)
            self.compressor(a + "indexer.compressor", ratio, INDEX_HEAD, 1.0)
        f = p + "ffn."
        self.linear(f + "gate.weight", EXPERTS, D, 1.5)
        if hashed:
            key = uniforms(f"{self.seed}/{f}gate.tid2eid", VOCAB * EXPERTS).reshape(VOCAB, EXPERTS)
            self.t[f + "gate.tid2eid"] = np.argsort(key, axis=1)[:, :TOP]
        else:
            self.draw(f + "gate.bias", (EXPERTS,), 0.5)
        for e in [f"experts.{i}" for i in range(EXPERTS)] + ["shared_experts"]:
            self.linear(f"{f}{e}.w1.weight", INNER, D, 3.0)
            self.linear(f"{f}{e}.w3.weight", INNER, D, 3.0)
            self.linear(f"{f}{e}.w2.weight", D, INNER, 0.25)


def backbone_weights():
    w = Weights(SEED)
    w.draw("embed.weight", (VOCAB, D), 1.0)
    for i in range(LAYERS):
        w.block(f"layers.{i}.", RATIOS[i], i < HASHED)
    w.norm("norm.weight", D)
    w.linear("head.weight", VOCAB, D, 2.0)
    w.streams("hc_head", STREAMS)
    return w


def next_token_weights():
    """The oracle's one next-token block: its `mtp.0.` block tensors are those of stage 0 here."""
    w = Weights(SEED)
    w.block("mtp.0.")
    for name in ("e_proj", "h_proj"):
        w.linear(f"mtp.0.{name}.weight", D, D)
    for name in ("enorm", "hnorm", "norm"):
        w.norm(f"mtp.0.{name}.weight", D)
    w.streams("mtp.0.hc_head", STREAMS)
    return w


def dspark_weights():
    w = Weights(DSPARK_SEED)
    w.linear("mtp.0.main_proj.weight", D, len(TARGETS) * D)
    w.norm("mtp.0.main_norm.weight", D)
    for s in range(STAGES):
        w.block(f"mtp.{s}.")
    last = f"mtp.{STAGES - 1}."
    w.norm(last + "norm.weight", D)
    w.streams(last + "hc_head", STREAMS)
    w.draw(last + "markov_head.markov_w1.weight", (VOCAB, RANK), 1.0)
    w.draw(last + "markov_head.markov_w2.weight", (VOCAB, RANK), 1.0 / math.sqrt(RANK))
    w.linear(last + "confidence_head.proj.weight", 1, D + RANK, 0.25)
    return w


# ---- arithmetic --------------------------------------------------------------------------------
def rope_table(base, yarn, n):
    """cos and sin [n, 32], each step rounded to float32 as published."""
    f = np.float32
    e = np.arange(0, ROPE, 2, dtype=f) / f(ROPE)
    freq = f(1) / np.power(f(base), e)
    if yarn:
        def corner(r):
            return ROPE * math.log(65536 / (2 * math.pi * r)) / (2 * math.log(base))
        low, high = max(math.floor(corner(32)), 0), min(math.ceil(corner(1)), ROPE - 1)
        ramp = np.clip((np.arange(ROPE // 2, dtype=f) - f(low)) / f(high - low), f(0), f(1))
        s = f(1) - ramp
        freq = freq / f(16) * (f(1) - s) + freq * s
    angle = np.arange(n, dtype=f)[:, None] * freq[None, :]
    return np.cos(angle), np.sin(angle)


TABLES = {0: rope_table(10000.0, False, 512), 1: rope_table(160000.0, True, 512)}


def rotate(x, positions, kind, inverse=False):
    """x [n, ..., width]: turns adjacent pairs of the last 64 by the angle of positions [n]."""
    cos, sin = (t[positions].astype(x.dtype) for t in TABLES[kind])
    view = (len(positions),) + (1,) * (x.ndim - 2) + (ROPE // 2,)
    cos, sin = cos.reshape(view), sin.reshape(view) * (-1 if inverse else 1)
    out = x.copy()
    a, b = x[..., -ROPE::2], x[..., -ROPE + 1::2]
    out[..., -ROPE::2] = a * cos - b * sin
    out[..., -ROPE + 1::2] = a * sin + b * cos
    return out


def power_of_two_above(x):
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.float32(1), np.where(mantissa == 0.5, exponent - 1, exponent))


def nearest_e4m3(x):
    """float32 to the nearest e4m3 value, ties to even, clamped at 448."""
    x = np.clip(x, np.float32(-448), np.float32(448))
    step = np.ldexp(np.float32(1), np.maximum(np.frexp(x)[1] - 1, -6) - 3)
    return np.rint(x / step) * step


def fp8_trip(x, width):
    """The first `width` of the last axis in blocks of 64 through FP8 with power-of-two scales."""
    v = x[..., :width].astype(np.float32)
    v = v.reshape(v.shape[:-1] + (width // 64, 64))
    largest = np.maximum(np.abs(v).max(-1, keepdims=True), np.float32(1e-4))
    scale = power_of_two_above(largest * np.float32(1.0 / 448.0))
    out = x.copy()
    out[..., :width] = (nearest_e4m3(v / scale) * scale).reshape(x.shape[:-1] + (width,))
    return out


def fp4_trip(x):
    """The last axis in blocks of 32 through FP4, ties to the even code."""
    v = x.astype(np.float32).reshape(x.shape[:-1] + (-1, 32))
    largest = np.maximum(np.abs(v).max(-1, keepdims=True), np.float32(6 * 2.0**-126))
    scale = power_of_two_above(largest * np.float32(1.0 / 6.0))
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    middle = (values[1:] + values[:-1]) / 2
    a = np.abs(v / scale)
    # at a tie the code below is taken by 'left', the one above by 'right': pick the even one
    low, high = np.searchsorted(middle, a, "left"), np.searchsorted(middle, a, "right")
    code = np.where(low % 2 == 0, low, high)
    return (values[code] * np.sign(v) * scale).reshape(x.shape).astype(x.dtype)


def hadamard(x):
    n, h = x.shape[-1], 1
    while h < n:
        y = x.reshape(x.shape[:-1] + (n // (2 * h), 2, h))
        a, b = y[..., 0, :], y[..., 1, :]
        x = np.stack([a + b, a - b], -2).reshape(x.shape)
        h *= 2
    return x * x.dtype.type(n**-0.5)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def rms_norm(x, weight=None):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return y if weight is None else y * weight


# ---- blocks ------------------------------------------------------------------------------------
class Net:
    """Weights in one dtype, whether the round trips are on, and what the router chose."""

    def __init__(self, weights, dtype=np.float64, trips=False):
        self.w = {k: v if v.dtype == np.int64 else v.astype(dtype)
                  for w in weights for k, v in w.t.items()}
        self.dtype, self.trips, self.routes, self.margins = dtype, trips, {}, {}

    def mix(self, x, name, rows):
        """[n, 4, d] to the raw coefficients [n, rows] of `name`."""
        v = x.reshape(len(x), -1)
        return (v @ self.w[name + "_fn"][:rows].T) / np.sqrt((v * v).mean(-1, keepdims=True) + EPS)

    def hc_pre(self, x, name):
        """[n, 4, d] to the sublayer's input [n, d] and what hc_post needs."""
        k, scale, base = STREAMS, self.w[name + "_scale"], self.w[name + "_base"]
        m = self.mix(x, name, k * (k + 2))
        pre = sigmoid(m[:, :k] * scale[0] + base[:k]) + HC_EPS
        post = 2 * sigmoid(m[:, k:2 * k] * scale[1] + base[k:2 * k])
        c = (m[:, 2 * k:] * scale[2] + base[2 * k:]).reshape(-1, k, k)
        c = np.exp(c - c.max(-1, keepdims=True))
        c = c / c.sum(-1, keepdims=True) + HC_EPS
        c = c / (c.sum(1, keepdims=True) + HC_EPS)
        for _ in range(SINKHORN - 1):
            c = c / (c.sum(2, keepdims=True) + HC_EPS)
            c = c / (c.sum(1, keepdims=True) + HC_EPS)
        return np.einsum("nj,njd->nd", pre, x), (post, c)

    def hc_post(self, z, x, mixed):
        post, c = mixed
        return post[:, :, None] * z[:, None, :] + np.einsum("njk,njd->nkd", c, x)

    def hc_head(self, x, name):
        m = self.mix(x, name, STREAMS)
        pre = sigmoid(m * self.w[name + "_scale"][0] + self.w[name + "_base"]) + HC_EPS
        return np.einsum("nj,njd->nd", pre, x)

    def queries(self, y, p, positions, kind):
        """[n, d] to the low-rank query [n, 128] and rotated queries [n, 8, 128]."""
        w = self.w
        qr = rms_norm(y @ w[p + "wq_a.weight"].T, w[p + "q_norm.weight"])
        q = (qr @ w[p + "wq_b.weight"].T).reshape(-1, HEADS, HEAD)
        return qr, rotate(rms_norm(q), positions, kind)

    def kv_rows(self, y, p, positions, kind, trips=True):
        """[n, d] to rows [n, 128] that are key and value at once."""
        kv = rms_norm(y @ self.w[p + "wkv.weight"].T, self.w[p + "kv_norm.weight"])
        kv = rotate(kv, positions, kind)
        return fp8_trip(kv, HEAD - ROPE) if self.trips and trips else kv

    def attend(self, q, keys, seen, p, sink=True):
        """q [n, 8, 128], keys [m, 128], seen [n, m] of bool: heads' outputs [n, 8, 128]."""
        s = np.einsum("nhd,md->nhm", q, keys) * HEAD**-0.5
        s = np.where(seen[:, None, :], s, -np.inf)
        last = self.w[p + "attn_sink"] if sink else np.full(HEADS, -np.inf)
        e = np.concatenate([s, np.broadcast_to(last[None, :, None], s.shape[:2] + (1,))], -1)
        e = np.exp(e - e.max(-1, keepdims=True))
        return np.einsum("nhm,md->nhd", e[..., :-1] / e.sum(-1, keepdims=True), keys)

    def project(self, o, p):
        o = o.reshape(len(o), O_GROUPS, -1)
        a = self.w[p + "wo_a.weight"].reshape(O_GROUPS, O_RANK, -1)
        u = np.einsum("ngk,gok->ngo", o, a).reshape(len(o), -1)
        return u @ self.w[p + "wo_b.weight"].T

    def compress(self, y, p, ratio, width, index):
        """All closed groups' rows [n // ratio, width] of positions 0..n-1."""
        groups = len(y) // ratio
        if groups == 0:
            return np.zeros((0, width), self.dtype)
        w = self.w
        used = y[:groups * ratio]
        a = (used @ w[p + ".wkv.weight"].T).reshape(groups, ratio, -1)
        s = (used @ w[p + ".wgate.weight"].T).reshape(groups, ratio, -1) + w[p + ".ape"]
        if ratio == 4:
            def overlapped(v, fill):
                before = np.concatenate([np.full((1, ratio, width), fill), v[:-1, :, :width]])
                return np.concatenate([before, v[:, :, width:]], 1)
            a, s = overlapped(a, 0.0), overlapped(s, -np.inf)
        e = np.exp(s - s.max(1, keepdims=True))
        rows = (e / e.sum(1, keepdims=True) * a).sum(1).astype(self.dtype)
        rows = rms_norm(rows, w[p + ".norm.weight"])
        rows = rotate(rows, np.arange(groups) * ratio, 1)
        if index:
            rows = hadamard(rows)
            return fp4_trip(rows) if self.trips else rows
        return fp8_trip(rows, width - ROPE) if self.trips else rows

    def indexed(self, y, qr, p, visible):
        """Of the visible rows [n, rows], those that the indexer keeps."""
        rows = self.compress(y, p + "indexer.compressor", 4, INDEX_HEAD, True)
        q = (qr @ self.w[p + "indexer.wq_b.weight"].T).reshape(-1, INDEX_HEADS, INDEX_HEAD)
        q = hadamard(rotate(q, np.arange(len(y)), 1))
        q = fp4_trip(q) if self.trips else q
        g = y @ self.w[p + "indexer.weights_proj.weight"].T * (INDEX_HEAD * INDEX_HEADS) ** -0.5
        score = np.einsum("nh,nhc->nc", g, np.maximum(np.einsum("nhd,cd->nhc", q, rows), 0))
        score = np.where(visible, score, -np.inf)
        order = np.argsort(-score, axis=1, kind="stable")[:, :INDEX_TOP]
        kept = np.zeros_like(visible)
        np.put_along_axis(kept, order, True, 1)
        return kept & visible

    def attention(self, y, p, ratio):
        """The backbone's attention over positions 0..n-1 at once, [n, d] to [n, d]."""
        n, kind = len(y), int(ratio > 0)
        t = np.arange(n)
        qr, q = self.queries(y, p, t, kind)
        keys = self.kv_rows(y, p, t, kind)
        seen = (t[None, :] <= t[:, None]) & (t[None, :] > t[:, None] - WINDOW)
        if ratio:
            rows = self.compress(y, p + "compressor", ratio, HEAD, False)
            visible = np.arange(len(rows))[None, :] < ((t[:, None] + 1) // ratio)
            if ratio == 4:
                visible = self.indexed(y, qr, p, visible)
            keys, seen = np.concatenate([keys, rows]), np.concatenate([seen, visible], 1)
        o = rotate(self.attend(q, keys, seen, p), t, kind, inverse=True)
        return self.project(o, p)

    def expert(self, x, p):
        w = self.w
        gate = np.minimum(x @ w[p + "w1.weight"].T, CLAMP)
        up = np.clip(x @ w[p + "w3.weight"].T, -CLAMP, CLAMP)
        return gate * sigmoid(gate) * up

    def ffn(self, x, p, ids):
        """[n, d] to [n, d]; ids [n] are needed by hash layers alone."""
        w = self.w
        score = np.sqrt(softplus(x @ w[p + "gate.weight"].T))
        if p + "gate.tid2eid" in w:
            chosen = w[p + "gate.tid2eid"][ids]
        else:
            biased = score + w[p + "gate.bias"]
            chosen = np.argsort(-biased, axis=1, kind="stable")[:, :TOP]
            ranked = np.sort(biased, axis=1)[:, ::-1]
            self.margins[p] = (ranked[:, TOP - 1] - ranked[:, TOP])
        self.routes[p] = np.sort(chosen, axis=1)
        weight = np.take_along_axis(score, chosen, 1)
        weight = weight / weight.sum(1, keepdims=True) * ROUTE_SCALE
        out = self.expert(x, p + "shared_experts.") @ w[p + "shared_experts.w2.weight"].T
        for e in range(EXPERTS):
            row, slot = np.nonzero(chosen == e)
            if len(row):
                h = self.expert(x[row], f"{p}experts.{e}.") * weight[row, slot][:, None]
                out[row] += h @ w[f"{p}experts.{e}.w2.weight"].T
        return out

    def block(self, x, p, ids, attention):
        """[n, 4, d] to [n, 4, d]; `attention` maps normed rows [n, d] to [n, d]."""
        y, mixed = self.hc_pre(x, p + "hc_attn")
        x = self.hc_post(attention(rms_norm(y, self.w[p + "attn_norm.weight"])), x, mixed)
        y, mixed = self.hc_pre(x, p + "hc_ffn")
        y = rms_norm(y, self.w[p + "ffn_norm.weight"])
        return self.hc_post(self.ffn(y, p + "ffn.", ids), x, mixed)

    def embed(self, ids):
        return np.repeat(self.w["embed.weight"][ids][:, None, :], STREAMS, 1)

    def backbone(self, ids):
        """Logits [n, V] and the streams before and after every layer, LAYERS + 1 of [n, 4, d]."""
        x = self.embed(ids)
        streams = [x]
        for i in range(LAYERS):
            p = f"layers.{i}."
            x = self.block(x, p, ids, lambda y: self.attention(y, p + "attn.", RATIOS[i]))
            streams.append(x)
        h = rms_norm(self.hc_head(x, "hc_head"), self.w["norm.weight"])
        return h @ self.w["head.weight"].T, streams


    def next_token(self, x, after):
        """Next-token block: streams x [n, 4, d] and the ids after them [n] to logits [n, V]."""
        w, p = self.w, "mtp.0."
        e = rms_norm(w["embed.weight"][after], w[p + "enorm.weight"]) @ w[p + "e_proj.weight"].T
        x = rms_norm(x, w[p + "hnorm.weight"]) @ w[p + "h_proj.weight"].T + e[:, None, :]
        x = self.block(x, p, after, lambda y: self.attention(y, p + "attn.", 0))
        h = rms_norm(self.hc_head(x, p + "hc_head"), w[p + "norm.weight"])
        return h @ w["head.weight"].T


# ---- DSpark ------------------------------------------------------------------------------------
def features(streams, wrong=None):
    """[n, 3 d]: for each target layer in turn, the mean over streams of its output."""
    step = 0 if wrong == "features from layer inputs" else 1
    order = TARGETS[::-1] if wrong == "target layers in reverse" else TARGETS
    return np.concatenate([streams[i + step].mean(1) for i in order], -1)


class Drafter:
    """The three stages with one window ring each; a ring row lives in slot position mod 32.

    `wrong` names a misreading to take instead (see MISREADINGS); None is the reading taken.
    """

    def __init__(self, net, wrong=None):
        self.net, self.wrong = net, wrong
        self.rings = np.zeros((STAGES, WINDOW, HEAD), net.dtype)
        self.next = 0

    def main(self, f):
        """Features [n, 3 d] to main rows [n, d]."""
        w = self.net.w
        return rms_norm(f.astype(self.net.dtype) @ w["mtp.0.main_proj.weight"].T,
                        w["mtp.0.main_norm.weight"])

    def insert(self, m):
        """Main rows [n, d] of the next n positions; any cut of a sequence leaves equal rings."""
        positions = np.arange(self.next, self.next + len(m))
        self.next += len(m)
        m, positions = m[-WINDOW:], positions[-WINDOW:]
        for s in range(STAGES):
            p = f"mtp.{s}."
            y = m
            if self.wrong == "attn_norm on main rows":
                y = rms_norm(m, self.net.w[p + "attn_norm.weight"])
            source = "mtp.0." if self.wrong == "every ring by stage 0" else p
            shift = 1 if self.wrong == "ring rows one position late" else 0
            rows = self.net.kv_rows(y, source + "attn.", positions + shift, 0)
            self.rings[s, positions % WINDOW] = rows

    def attention(self, y, s):
        """Draft rows [5, d]: they see the whole ring and each other."""
        net, p, wrong = self.net, f"mtp.{s}.attn.", self.wrong
        last = self.next - 1
        t = last + 1 + np.arange(BLOCK)
        if wrong == "draft positions from p":
            t = t - 1
        _, q = net.queries(y, p, t, 0)
        own = net.kv_rows(y, p, t, 0)
        if wrong == "no round trip on draft rows":
            own = net.kv_rows(y, p, t, 0, trips=False)
        filled = np.arange(max(0, last - WINDOW + 1), last + 1)
        seen = np.ones((BLOCK, len(filled) + BLOCK), bool)
        if wrong == "causal drafts":
            seen[:, len(filled):] = np.tri(BLOCK, dtype=bool)
        if wrong == "ring without p":
            seen[:, len(filled) - 1] = False
        if wrong == "window slides with the draft row":
            seen[:, :len(filled)] = filled[None, :] > t[:, None] - WINDOW
        keys = np.concatenate([self.rings[s, filled % WINDOW], own])
        o = net.attend(q, keys, seen, p, sink=wrong != "no sink")
        if wrong != "no inverse rotation":
            o = rotate(o, t, 0, inverse=True)
        return net.project(o, p)

    def draft(self, anchor):
        """One block after the last inserted position: a dict of this case's golden values."""
        net, w, wrong = self.net, self.net.w, self.wrong
        first = NOISE if wrong == "noise in every row" else anchor
        ids = np.array([first] + [NOISE] * (BLOCK - 1))
        x = net.embed(ids)
        stages, routes, margins = [], [], []
        for s in range(STAGES):
            x = net.block(x, f"mtp.{s}.", ids, lambda y: self.attention(y, s))
            stages.append(x)
            routes.append(net.routes[f"mtp.{s}.ffn."])
            margins.append(net.margins[f"mtp.{s}.ffn."].min())
        last = f"mtp.{STAGES - 1}."
        h = net.hc_head(x, "hc_head" if wrong == "the backbone's hc_head" else last + "hc_head")
        norm = "norm.weight" if wrong == "the backbone's norm" else last + "norm.weight"
        base = rms_norm(h, w[norm]) @ w["head.weight"].T
        logits, drafts, confidence = [], [], []
        prev = anchor
        for i in range(BLOCK):
            before = anchor if wrong == "Markov from the anchor alone" else prev
            row = w[last + "markov_head.markov_w1.weight"][before]
            now = base[i] + w[last + "markov_head.markov_w2.weight"] @ row
            logits.append(now)
            prev = int(np.argmax(now))  # the first of equal ones
            drafts.append(prev)
            if wrong == "confidence with the drafted token":
                row = w[last + "markov_head.markov_w1.weight"][prev]
            hidden = rms_norm(h[i], w[norm]) if wrong == "confidence on normed h" else h[i]
            proj = w[last + "confidence_head.proj.weight"][0]
            confidence.append(np.concatenate([hidden, row]) @ proj)
        return dict(base_logits=base, logits=np.array(logits), drafts=np.array(drafts),
                    confidence=np.array(confidence), hidden=h, experts=np.array(routes),
                    stages=np.array(stages), margin=min(margins))


MISREADINGS = [
    "causal drafts", "ring without p", "features from layer inputs", "draft positions from p",
    "ring rows one position late", "target layers in reverse", "attn_norm on main rows",
    "every ring by stage 0", "no inverse rotation", "window slides with the draft row",
    "the backbone's hc_head", "the backbone's norm", "Markov from the anchor alone",
    "confidence on normed h", "confidence with the drafted token", "no sink",
    "noise in every row", "no round trip on draft rows",
]


def run_cases(net, f, ids, wrong=None):
    """Every case of CASES over features [PROMPT, 3 d], and the drafter after the last row."""
    drafter = Drafter(net, wrong)
    m = drafter.main(f)
    found = {}
    for p in range(PROMPT):
        drafter.insert(m[p:p + 1])
        for i, (at, anchor) in enumerate(CASES):
            if at == p:
                found[i] = drafter.draft(int(ids[p + 1]) if anchor is None else anchor)
    return [found[i] for i in range(len(CASES))], drafter, m


def largest(cases, others, key="logits"):
    """Per case, the largest difference."""
    return [float(np.abs(a[key] - b[key]).max()) for a, b in zip(cases, others)]


# ---- checks and files --------------------------------------------------------------------------
def check_backbone(weights, mode):
    """The backbone against the published code's fixture; returns its ids and the streams."""
    fixture = load_file(GOLDEN / "oracle" / f"official_flash_{mode}.safetensors")
    net = Net([weights, next_token_weights()], trips=mode == "qat")
    ids = fixture["ids"]
    logits, streams = net.backbone(ids)
    rows = fixture["rows"]
    keep = slice(None) if mode == "exact" else rows <= 31
    gap = np.abs(logits[rows] - fixture["logits_full"]).max(1)
    inner = max(np.abs(streams[i][rows] - fixture[f"layer_in.{i}"]).max((1, 2))[keep].max()
                for i in range(LAYERS + 1))
    routes = all((net.routes[f"layers.{i}.ffn."] == fixture[f"topk.{i}"]).all()
                 for i in range(LAYERS)) if mode == "exact" else "-"
    print(f"backbone {mode}: logits within {gap[keep].max():.2e}, streams within {inner:.2e}, "
          f"expert sets equal: {routes}")
    print("  by row: " + " ".join(f"{r}:{g:.1e}" for r, g in zip(rows, gap)))
    assert gap[keep].max() < 1e-3 and inner < 1e-3 and routes, mode
    after = np.append(ids[1:], 489)  # 489 follows the fixture's last id
    ahead = np.abs(net.next_token(streams[-1], after)[rows] - fixture["mtp_logits"]).max(1)
    print(f"next-token block {mode}: logits within {ahead[keep].max():.2e}")
    assert ahead[keep].max() < 1e-3, mode
    return ids, streams


def check_cuts(net, f):
    """Rings seeded from a prompt equal rings filled position by position."""
    one, many = Drafter(net), Drafter(net)
    m = one.main(f)
    one.insert(m)
    for cut in np.split(m, [1, 7, 40, 73, 128]):
        many.insert(cut)
    assert np.abs(one.rings - many.rings).max() < 1e-12


def check_misreadings(dspark, streams, ids, cases, f, trips):
    """Each misreading must move some case by more than 1e-2; prints where it shows."""
    net = Net([dspark[0], dspark[1]], trips=trips)
    for wrong in MISREADINGS:
        if wrong == "no round trip on draft rows" and not trips:
            continue
        key = "confidence" if wrong.startswith("confidence") else "logits"
        g = features([s[:PROMPT] for s in streams], wrong).astype(np.float32) \
            if wrong in ("features from layer inputs", "target layers in reverse") else f
        gaps = largest(cases, run_cases(net, g, ids, wrong)[0], key)
        if key == "logits" and wrong != "Markov from the anchor alone":
            gaps = largest(cases, run_cases(net, g, ids, wrong)[0], "base_logits")
        shows = sum(g > 1e-2 for g in gaps)
        print(f"  {wrong}: {key} move by {min(gaps):.2e} .. {max(gaps):.2e}, "
              f"more than 1e-2 in {shows} of {len(gaps)} cases")
        assert shows >= 7, wrong


def check_spread(weights, f, ids, cases, trips):
    """The same in float32: how far an engine in float32 may be off."""
    other, _, m = run_cases(Net(weights, np.float32, trips), f, ids)
    same = all((a["drafts"] == b["drafts"]).all() and (a["experts"] == b["experts"]).all()
               for a, b in zip(cases, other))
    gaps = np.array(largest(cases, other))
    rng = np.random.default_rng(7)
    shaken = np.zeros(len(cases))
    for _ in range(6):
        noisy = f * (1 + 1e-6 * rng.standard_normal(f.shape))
        again = run_cases(Net(weights, trips=trips), noisy, ids)[0]
        shaken = np.maximum(shaken, largest(cases, again))
    tops = [np.sort(c["logits"], 1)[:, ::-1] for c in cases]
    print(f"  in float32: logits within {gaps.max():.2e} ({' '.join(f'{g:.0e}' for g in gaps)}), "
          f"confidence within {max(largest(cases, other, 'confidence')):.2e}, "
          f"drafts and experts equal: {same}")
    print(f"  features shaken by 1e-6: logits within {shaken.max():.2e} "
          f"({' '.join(f'{g:.0e}' for g in shaken)})")
    print(f"  smallest margins: router {min(c['margin'] for c in cases):.1e}, "
          f"draft {min((t[:, 0] - t[:, 1]).min() for t in tops):.1e}")
    assert same


def golden(mode, ids, f, m, cases, drafter):
    out = {
        "ids": ids[:PROMPT + 1].astype(np.int32),
        "cases.position": np.array([p for p, _ in CASES], np.int32),
        "cases.anchor": np.array([ids[p + 1] if a is None else a for p, a in CASES], np.int32),
        "features": f,
        "main": m,
    }
    for key in ("base_logits", "logits", "drafts", "confidence", "hidden", "experts"):
        out[key] = np.array([c[key] for c in cases])
    for s in range(STAGES):
        out[f"ring.{s}"] = drafter.rings[s]
        if mode == "exact":
            out[f"stage_out.{s}"] = np.array([cases[i]["stages"][s] for i in STAGE_CASES])
    if mode == "exact":
        out["stage_out.case"] = np.array(STAGE_CASES, np.int32)
    out = {k: v.astype(np.int32 if v.dtype.kind == "i" else np.float32) for k, v in out.items()}
    return {k: np.ascontiguousarray(v) for k, v in out.items()}


def manifest(weights):
    """The drafter's numbers, and one line a tensor: its shape, what it was drawn with, and enough
    to check a repetition."""
    config = dict(backbone_seed=SEED, dspark_seed=DSPARK_SEED, dspark_block_size=BLOCK,
                  dspark_markov_rank=RANK, dspark_noise_token_id=NOISE,
                  dspark_target_layer_ids=TARGETS, stages=STAGES, sliding_window=WINDOW)
    lines = []
    for name, t in sorted(weights.t.items()):
        mean, std = weights.drawn[name]
        lines.append(json.dumps(dict(
            name=name, shape=list(t.shape), mean=mean, std=std,
            first=[float(v) for v in t.reshape(-1)[:2]], last=float(t.reshape(-1)[-1]),
            sum=float(t.astype(np.float64).sum()))))
    tensors = ",\n".join(lines)
    return f'{{"config": {json.dumps(config)},\n"tensors": [\n{tensors}\n]}}\n'


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--weights", help="also write every DSpark tensor here")
    args = ap.parse_args()
    backbone, dspark = backbone_weights(), dspark_weights()
    own = {k: v for k, v in dspark.t.items() if ".attn" not in k and ".ffn" not in k
           and "hc_attn" not in k and "hc_ffn" not in k}
    files = {}
    for mode in ("exact", "qat"):
        ids, streams = check_backbone(backbone, mode)
        f = features([s[:PROMPT] for s in streams]).astype(np.float32)
        net = Net([backbone, dspark], trips=mode == "qat")
        cases, drafter, m = run_cases(net, f, ids)
        check_cuts(net, f)
        print(f"dspark {mode}: drafts " + " ".join(str(c["drafts"].tolist()) for c in cases))
        check_spread([backbone, dspark], f, ids, cases, mode == "qat")
        check_misreadings((backbone, dspark), streams, ids, cases, f, mode == "qat")
        files[mode] = golden(mode, ids, f, m, cases, drafter)
    out = GOLDEN / "dspark"
    out.mkdir(exist_ok=True)
    for mode, tensors in files.items():
        save_file(tensors, out / f"{mode}.safetensors")
    save_file(own, out / "weights.safetensors")
    (out / "manifest.json").write_text(manifest(dspark))
    if args.weights:
        save_file(dspark.t, args.weights)
    for path in sorted(out.iterdir()):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
