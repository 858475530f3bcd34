"""A plan directory made without the compiler, and a numpy reference that has no cache.

A tiny decoder with real GroupQueryAttention (rotary, grouped heads, layers of different head size), random
but fixed weights, and a manifest. :func:`reference_logits` recomputes everything from the token history.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from planonce.runtime.file_digest import file_digest, sample_digest
from planonce.runtime.manifest import (
    Argument,
    ArgumentRole,
    AttentionChoice,
    CheckpointReference,
    CopyEdge,
    FileRecord,
    KvSlotSpec,
    Manifest,
    ModelFacts,
    Stage,
    StoredTensor,
    WeightReference,
)

I64, I32 = TensorProto.INT64, TensorProto.INT32
DTYPE = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@dataclass(frozen=True)
class Tiny:
    """What to build. ``split``: layers of the first stage when there are two; None is one stage.

    Weights lie in the programs, in ``weights.bin`` beside them (``external_weights``), or in a checkpoint of
    their own (``reference_weights``). ``poison`` changes them, for plans whose weights are damaged.
    ``greedy_head``: the program picks the likeliest token too, by the operators of append-greedy-head.
    """

    vocab: int = 97
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dims: tuple[int, ...] = (16, 16)
    max_seq_len: int = 64
    seed: int = 0
    kv_dtype: str = "float32"
    logits_dtype: str = "float32"
    greedy_head: bool = False
    split: int | None = None
    first_device: str = "cpu:0"
    second_device: str = "cpu:1"
    external_weights: bool = False
    reference_weights: bool = False
    poison: tuple[tuple[str, int, float], ...] = ()  # weight, flat index, value
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def n_layers(self) -> int:
        return len(self.head_dims)


def weights(tiny: Tiny) -> dict[str, np.ndarray]:
    """Deterministic weights, large enough that attention is far from uniform."""
    rng = np.random.default_rng(tiny.seed)

    def make(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale / np.sqrt(shape[0])).astype(np.float32)

    made = {"embed": rng.standard_normal((tiny.vocab, tiny.hidden)).astype(np.float32)}
    for i, d in enumerate(tiny.head_dims):
        made[f"q{i}"] = make(tiny.hidden, tiny.heads * d, scale=3)
        made[f"k{i}"] = make(tiny.hidden, tiny.kv_heads * d, scale=3)
        made[f"v{i}"] = make(tiny.hidden, tiny.kv_heads * d)
        made[f"o{i}"] = make(tiny.heads * d, tiny.hidden)
    made["head"] = make(tiny.hidden, tiny.vocab)
    for name, index, value in tiny.poison:
        made[name].reshape(-1)[index] = value
    return made


def rope_tables(tiny: Tiny, d: int) -> tuple[np.ndarray, np.ndarray]:
    angle = np.arange(tiny.max_seq_len)[:, None] / 100.0 ** (np.arange(d // 2) / (d // 2))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def reference_logits(tiny: Tiny, tokens: list[int]) -> np.ndarray:
    """Logits of every position, ``[len(tokens), vocab]``, from the history alone."""
    w = {k: v.astype(np.float64) for k, v in weights(tiny).items()}
    x = w["embed"][tokens]
    n = len(tokens)
    for i, d in enumerate(tiny.head_dims):
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        cos, sin = (t.astype(np.float64)[:n, None, :] for t in rope_tables(tiny, d))

        def rotate(a: np.ndarray, d: int = d, cos: np.ndarray = cos, sin: np.ndarray = sin) -> np.ndarray:
            first, second = a[..., : d // 2], a[..., d // 2 :]
            return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

        q = rotate((normed @ w[f"q{i}"]).reshape(n, tiny.heads, d))
        k = rotate((normed @ w[f"k{i}"]).reshape(n, tiny.kv_heads, d))
        v = (normed @ w[f"v{i}"]).reshape(n, tiny.kv_heads, d)
        group = tiny.heads // tiny.kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
        x = x + out.reshape(n, -1) @ w[f"o{i}"]
    return x @ w["head"]


def _value(name: str, kind: int, shape: list[int | str]):
    return helper.make_tensor_value_info(name, kind, shape)


def _argument(a: Argument):
    return _value(a.name, helper.np_dtype_to_tensor_dtype(np.dtype(a.dtype)), list(a.shape))


class _Stage:
    """Nodes and arguments of one program."""

    def __init__(self, tiny: Tiny, name: str, device: str) -> None:
        self.tiny, self.name, self.device = tiny, name, device
        self.nodes: list = []
        self.initializers: dict[str, np.ndarray] = {}
        self.inputs: list[Argument] = []
        self.outputs: list[Argument] = []

    def op(
        self, kind: str, inputs: list[str], output: str | list[str], domain: str = "", **attributes
    ) -> str:
        outputs = [output] if isinstance(output, str) else output
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def const(self, name: str, array: np.ndarray) -> str:
        self.initializers[name] = array
        return name

    def lengths(self) -> None:
        self.inputs.append(Argument("write_offset", ArgumentRole.WRITE_OFFSET, "int64", ("batch",)))
        self.const("one", np.array(1, np.int64))
        on_cuda = self.device.startswith("cuda") and self.inputs[0].role is ArgumentRole.TOKEN_IDS
        if on_cuda:  # a shape is on the host there: the tokens are counted on the device instead
            self.op("Equal", ["input_ids", "input_ids"], "same")
            self.op("Cast", ["same"], "ones", to=I64)
            self.op(
                "ReduceSum", ["ones", self.const("rows", np.array([1], np.int64))], "seq_here", keepdims=0
            )
        self.op("Add", ["write_offset", "seq_here" if on_cuda else "seq_len"], "total")
        self.op("Sub", ["total", "one"], "total_less_one")
        self.op("Cast", ["total_less_one"], "seqlens", to=I32)
        if on_cuda:
            self.op("Shape", ["past.0.key"], "capacity_1", start=2, end=3)
            self.op("Squeeze", ["capacity_1"], "capacity")
            self.op("Cast", ["capacity"], "max_total_i32", to=I32)
            return
        self.op("ReduceMax", ["total"], "max_total", keepdims=0)
        self.op("Cast", ["max_total"], "max_total_i32", to=I32)

    def layer(self, i: int, x: str) -> str:
        tiny = self.tiny
        d, kv = tiny.head_dims[i], tiny.kv_dtype
        w = weights(tiny)
        self.op("Mul", [x, x], f"sq{i}")
        self.op("ReduceMean", [f"sq{i}", self.const("last", np.array([-1], np.int64))], f"ms{i}")
        self.op("Add", [f"ms{i}", self.const("eps", np.array(1e-5, np.float32))], f"mse{i}")
        self.op("Sqrt", [f"mse{i}"], f"rms{i}")
        normed = self.op("Div", [x, f"rms{i}"], f"normed{i}")
        for p in "qkv":
            out = self.op("MatMul", [normed, self.const(f"{p}{i}", w[f"{p}{i}"])], f"{p}_out{i}")
            if kv != "float32":
                self.op("Cast", [out], f"{p}_cast{i}", to=DTYPE[kv])
        pre = "out" if kv == "float32" else "cast"
        cos, sin = rope_tables(tiny, d)
        self.const(f"cos{i}", cos.astype(kv))
        self.const(f"sin{i}", sin.astype(kv))
        for which in ("key", "value"):
            shape = ("batch", tiny.kv_heads, "capacity", d)
            self.inputs.append(Argument(f"past.{i}.{which}", ArgumentRole.KV, kv, shape))
            self.outputs.append(Argument(f"present.{i}.{which}", ArgumentRole.KV, kv, shape))
        operands = [f"q_{pre}{i}", f"k_{pre}{i}", f"v_{pre}{i}", f"past.{i}.key", f"past.{i}.value"]
        operands += ["seqlens", "max_total_i32", f"cos{i}", f"sin{i}"]
        outputs = [f"attn{i}", f"present.{i}.key", f"present.{i}.value"]
        self.op(
            "GroupQueryAttention", operands, outputs, domain="com.microsoft",
            num_heads=tiny.heads, kv_num_heads=tiny.kv_heads, do_rotary=1,
        )  # fmt: skip
        attn = f"attn{i}"
        if kv != "float32":
            attn = self.op("Cast", [attn], f"attn_f32_{i}", to=TensorProto.FLOAT)
        self.op("MatMul", [attn, self.const(f"o{i}", w[f"o{i}"])], f"o_out{i}")
        return self.op("Add", [x, f"o_out{i}"], f"x{i + 1}")

    def head(self, picked: str) -> None:
        tiny, rows = self.tiny, ("batch", "num_logits")
        kind, half = tiny.logits_dtype, tiny.logits_dtype != "float32"
        head = self.const("head", weights(tiny)["head"])
        made = self.op("MatMul", [picked, head], "logits_f32" if half else "logits")
        if half:
            self.op("Cast", [made], "logits", to=DTYPE[kind])
        self.outputs.insert(0, Argument("logits", ArgumentRole.LOGITS, kind, (*rows, tiny.vocab)))
        if not tiny.greedy_head:
            return
        self.op("ArgMax", ["logits"], "largest", axis=-1, keepdims=0)
        self.op("ReduceSum", ["logits", self.const("axis", np.array([-1], np.int64))], "sum", keepdims=0)
        self.op("IsNaN", ["sum"], "unclear")
        self.op("Where", ["unclear", self.const("host", np.array(-1, np.int64)), "largest"], "next_tokens")
        self.outputs.append(Argument("next_tokens", ArgumentRole.NEXT_TOKENS, "int64", rows))

    def save(self, directory: Path, external: dict[str, StoredTensor]) -> Stage:
        graph = helper.make_graph(
            self.nodes, "step",
            [_argument(a) for a in self.inputs],
            [_argument(a) for a in self.outputs],
            [_external(external[n]) if n in external else numpy_helper.from_array(a, n)
             for n, a in self.initializers.items()],
        )  # fmt: skip
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
            ir_version=10,
        )
        (directory / f"{self.name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
        return Stage(f"{self.name}.onnx", self.device, tuple(self.inputs), tuple(self.outputs))


def _external(at: StoredTensor) -> TensorProto:
    """An initializer without data: it lies in a file of the plan, or the runtime hands it over by name."""
    tensor = TensorProto(name=at.name, dims=at.shape, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", at.file), ("offset", str(at.offset)), ("length", str(at.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _record(directory: Path, name: str) -> FileRecord:
    path = directory / name
    return FileRecord(name, path.stat().st_size, file_digest(path), sample_digest(path))


def build(directory: Path, tiny: Tiny | None = None) -> Path:
    """Write the plan directory and return it."""
    tiny = tiny or Tiny()
    directory.mkdir(parents=True, exist_ok=True)
    names = ["program"] if tiny.split is None else ["stage-0", "stage-1"]
    devices = [tiny.first_device] if tiny.split is None else [tiny.first_device, tiny.second_device]
    w = weights(tiny)
    external: dict[str, StoredTensor] = {}
    checkpoint = CheckpointReference("embedded", None, ())
    if tiny.reference_weights:
        root = directory.parent / f"{directory.name}-checkpoint"
        external = _write_weights(root, w)
        checkpoint = _checkpoint(root, external, tiny)
    elif tiny.external_weights:
        external = _write_weights(directory, w)

    stages = [_Stage(tiny, n, d) for n, d in zip(names, devices, strict=True)]
    first, last = stages[0], stages[-1]
    first.inputs.append(Argument("input_ids", ArgumentRole.TOKEN_IDS, "int64", ("batch", "sequence")))
    first.op("Shape", ["input_ids"], "seq_len_1", start=1, end=2)
    first.op("Squeeze", ["seq_len_1"], "seq_len")
    x = first.op("Gather", [first.const("embed", w["embed"]), "input_ids"], "x0")
    first.lengths()
    copies = []
    for i in range(tiny.n_layers):
        stage = first if tiny.split is None or i < tiny.split else last
        if stage is not first and i == tiny.split:
            shape = ("batch", "sequence", tiny.hidden)
            first.outputs.append(Argument(x, ArgumentRole.STAGE_VALUE, "float32", shape))
            last.inputs.append(Argument(x, ArgumentRole.STAGE_VALUE, "float32", shape))
            copies.append(CopyEdge(0, x, 1, x))
            last.op("Shape", [x], "seq_len_1", start=1, end=2)
            last.op("Squeeze", ["seq_len_1"], "seq_len")
            last.lengths()
        x = stage.layer(i, x)
    last.inputs.append(Argument("logit_positions", ArgumentRole.LOGIT_POSITIONS, "int64", ("num_logits",)))
    last.op("Gather", [x, "logit_positions"], "picked", axis=1)
    last.head("picked")
    for name in ("logits", *(["next_tokens"] if tiny.greedy_head else [])):
        copies.append(CopyEdge(len(stages) - 1, name, None, name))

    saved = tuple(s.save(directory, external) for s in stages)
    slots = []
    for i, d in enumerate(tiny.head_dims):
        device = devices[0] if tiny.split is None or i < tiny.split else devices[1]
        for which in ("key", "value"):
            names_ = (f"past.{i}.{which}", f"present.{i}.{which}")
            slots.append(KvSlotSpec(i, which, tiny.kv_heads, d, tiny.kv_dtype, device, *names_))
    for name, data in tiny.files.items():
        (directory / name).write_bytes(data)
    stored = tuple(external.values()) if tiny.external_weights else ()
    key = hashlib.sha256(repr((tiny.seed, tiny.head_dims, tiny.kv_dtype, tiny.vocab)).encode()).hexdigest()
    manifest = Manifest(
        model=ModelFacts(
            "tiny",
            "TinyForCausalLM",
            tiny.n_layers,
            tiny.vocab,
            tiny.hidden,
            tiny.max_seq_len,
            "float32",
            1,
            (2,),
        ),
        shape_key=key,
        kv_slots=tuple(slots),
        stages=saved,
        copies=tuple(copies),
        attention=tuple(AttentionChoice(i, "fused", "made by hand") for i in range(tiny.n_layers)),
        pipeline="by-hand",
        tool_versions={"onnx": "any"},
        minimum_onnxruntime="1.31.0",
        files=tuple(_record(directory, s.program) for s in saved)
        + tuple(_record(directory, n) for n in (*tiny.files, *(["weights.bin"] if stored else []))),
        tensors=stored,
        checkpoint=checkpoint,
    )
    (directory / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return directory


def _write_weights(directory: Path, arrays: dict[str, np.ndarray]) -> dict[str, StoredTensor]:
    directory.mkdir(parents=True, exist_ok=True)
    places: dict[str, StoredTensor] = {}
    data = bytearray(b"header")  # unaligned on purpose, as safetensors files can be
    for name, array in arrays.items():
        at = StoredTensor(name, "weights.bin", len(data), array.nbytes, "float32", tuple(array.shape))
        places[name] = at
        data += array.tobytes()
    (directory / "weights.bin").write_bytes(bytes(data))
    return places


def _checkpoint(root: Path, places: dict[str, StoredTensor], tiny: Tiny) -> CheckpointReference:
    references = []
    for name, at in places.items():
        layer = tiny.n_layers if name == "head" else 0 if name == "embed" else int(name[1:])
        stage = 0 if tiny.split is None or layer < tiny.split else 1
        references.append(WeightReference(name, at.file, at.offset, at.nbytes, at.dtype, at.shape, stage))
    return CheckpointReference("reference", str(root), (_record(root, "weights.bin"),), tuple(references))
