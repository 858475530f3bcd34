"""PagedAttention in numpy, as ONNX Runtime documents it, for onnx's reference evaluator: what a paged program
computes can be seen without a GPU. Written from the operator's contract; shares no code with the passes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from planonce.compiler.emit import EmittedProgram

__all__ = ["evaluator", "standalone"]

DOMAIN = "com.microsoft"


def turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [heads, D] at one position, whose rows of the tables are cos and sin [rotary_dim / 2]."""
    width = 2 * cos.shape[-1]
    first, second = (
        (slice(0, width, 2), slice(1, width, 2))
        if interleaved
        else (slice(0, width // 2), slice(width // 2, width))
    )
    turned = x.copy()
    turned[:, first] = x[:, first] * cos - x[:, second] * sin
    turned[:, second] = x[:, second] * cos + x[:, first] * sin
    return turned


class PagedAttention(OpRun):
    """Unquantised, causal, separate K and V: what the paged arm asks for. A loop over tokens, on purpose."""

    op_domain = DOMAIN

    def _run(
        self, query, key, value, key_cache, value_cache, cumulative, past, block_table,
        cos=None, sin=None, slot_mapping=None, head_sink=None, q_norm=None, k_norm=None, k_scale=None,
        v_scale=None, attention_metadata=None, *, num_heads, kv_num_heads, scale=None, softcap=0.0,
        local_window_size=-1, do_rotary=0, rotary_interleaved=0,
    ):  # fmt: skip
        assert slot_mapping is q_norm is k_norm is k_scale is v_scale is None
        if key is None:  # packed: [q | k | v]
            width = query.shape[1] // (num_heads + 2 * kv_num_heads)
            ends = [num_heads * width, (num_heads + kv_num_heads) * width]
            query, key, value = np.split(query, ends, axis=1)
        tokens, head_dim = query.shape[0], query.shape[1] // num_heads
        blocks, block_size = key_cache.shape[:2]
        rows = past.shape[0]
        assert key_cache.shape == value_cache.shape == (blocks, block_size, kv_num_heads, head_dim)
        assert block_size >= 16 and block_size & (block_size - 1) == 0
        assert cumulative.dtype == past.dtype == block_table.dtype == np.int32
        assert cumulative.shape == (rows + 1,) and block_table.shape[0] == rows
        assert cumulative[0] == 0 and cumulative[-1] == tokens
        self._check_bounds(attention_metadata, cumulative, past)
        q = query.reshape(tokens, num_heads, head_dim)
        k, v = (x.reshape(tokens, kv_num_heads, head_dim) for x in (key, value))
        keys, values = key_cache.copy(), value_cache.copy()
        scale = scale or head_dim**-0.5
        out = np.empty((tokens, num_heads, head_dim), query.dtype)
        for row in range(rows):
            for token in range(cumulative[row], cumulative[row + 1]):
                position = int(past[row] + token - cumulative[row])
                if do_rotary:
                    tables = cos[position], sin[position], bool(rotary_interleaved)
                    q[token], k[token] = turn(q[token], *tables), turn(k[token], *tables)
                block = block_table[row, position // block_size]
                keys[block, position % block_size] = k[token]
                values[block, position % block_size] = v[token]
            for token in range(cumulative[row], cumulative[row + 1]):
                position = int(past[row] + token - cumulative[row])
                first = max(0, position - local_window_size + 1) if local_window_size > 0 else 0
                seen = np.arange(first, position + 1)
                places = block_table[row, seen // block_size], seen % block_size
                group = num_heads // kv_num_heads
                each_k = np.repeat(keys[places], group, axis=1)
                each_v = np.repeat(values[places], group, axis=1)
                scores = np.einsum("hd,thd->ht", q[token], each_k) * scale
                if softcap:
                    scores = np.tanh(scores / softcap) * softcap
                if head_sink is not None:
                    scores = np.concatenate([scores, head_sink[:, None].astype(scores.dtype)], axis=1)
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                out[token] = np.einsum("ht,thd->hd", weights[:, : len(seen)], each_v)
        return out.reshape(tokens, num_heads * head_dim), keys, values

    @staticmethod
    def _check_bounds(metadata: np.ndarray, cumulative: np.ndarray, past: np.ndarray) -> None:
        """The bounds may be too large, never too small."""
        lengths = np.diff(cumulative)
        assert metadata.dtype == np.int32 and metadata.shape == (2,)
        assert metadata[0] >= lengths.max() and metadata[1] >= (past + lengths).max()


class FusedMatMul(OpRun):
    """alpha * A x B, B's last axes swapped on request."""

    op_domain = DOMAIN

    def _run(self, a, b, *, alpha=1.0, transB=0):
        return ((a @ (b.swapaxes(-1, -2) if transB else b) * alpha).astype(a.dtype),)


def standalone(program: EmittedProgram, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """The only stage's program with weights and large constants in it, in the dtypes that it declares."""
    (stage,) = program.stages
    model = ModelProto()
    model.CopyFrom(stage.model)
    for use in stage.tensors:
        names = use.merged or (use.weight,)
        array = use.constant if use.constant is not None else np.concatenate([weights[n] for n in names])
        array = np.ascontiguousarray(array, dtype=np.dtype(use.dtype))
        model.graph.initializer.append(numpy_helper.from_array(array, use.name))
    return model


def evaluator(model: ModelProto) -> ReferenceEvaluator:
    """onnx's own evaluator, with the two operators of ONNX Runtime that paged programs have."""
    return ReferenceEvaluator(model, new_ops=[PagedAttention, FusedMatMul])
