"""Trace one step of a transformers model: tokens and KV buffers in, logits and the same buffers out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from transformers import PretrainedConfig, PreTrainedModel

from planonce.runtime.errors import PlanonceError, UnsupportedModel

from .trace_attention import StepState, tracing
from .trace_cache import KvSlot, LayerProbe, ProbeLayer, StepLayer, Which, make_cache
from .trace_model import MetaModel, build_meta_model, quiet

__all__ = ["STEP_INPUTS", "KvSlot", "TracedModel", "trace"]

# Name, dimension names of the per-token inputs, in argument order; the KV slots follow.
STEP_INPUTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input_ids", ("batch", "sequence")),
    ("write_offset", ("batch",)),
    ("logit_positions", ("logits",)),
)


@dataclass(frozen=True, slots=True)
class TracedModel:
    """exported_program: forward(input_ids i64 [B, S], write_offset i64 [B], logit_positions i64 [L],
    kv [B, heads, C, head_dim]...) -> (logits f32 [B, L, V], the kv in the same order, updated). The kv is in
    the dtype that the model was traced in.

    buffers: real values of non-persistent buffers by name; tied: parameter name -> canonical name;
    family: transformers' model_type.
    """

    exported_program: ExportedProgram
    kv_slots: tuple[KvSlot, ...]
    buffers: dict[str, Tensor]
    tied: dict[str, str]
    family: str
    vocab_size: int

    def canonical_name(self, target: str) -> str:
        """State-dict name of a parameter of the exported program, ties resolved."""
        name = target.removeprefix("model.")
        return self.tied.get(name, name)


class _Step(nn.Module):
    """The signature of a program. The one attribute is named `model`: canonical_name strips it."""

    def __init__(self, model: PreTrainedModel, slots: Sequence[KvSlot]) -> None:
        super().__init__()
        self.model = model
        self.slots = tuple(slots)

    def forward(
        self, input_ids: Tensor, write_offset: Tensor, logit_positions: Tensor, kv: list[Tensor]
    ) -> tuple[Tensor, ...]:
        buffers = {(slot.layer, slot.which): value for slot, value in zip(self.slots, kv, strict=True)}
        layers = {
            layer: StepLayer(layer, buffers[layer, Which.KEY], buffers[layer, Which.VALUE], write_offset)
            for layer in dict.fromkeys(slot.layer for slot in self.slots)
        }
        with tracing(StepState(write_offset)):
            logits = _forward(self.model, input_ids, write_offset, logit_positions, make_cache(layers))
        updated = [
            layers[slot.layer].keys if slot.which is Which.KEY else layers[slot.layer].values
            for slot in self.slots
        ]
        # The sampler wants float32, and numpy's way there from float16 costs 2 ns an element on the host:
        # 0.1 ms a token for 49,000 of them, which the device's own cast hides. Exact, and nothing in float32.
        return (logits.float(), *(value for value in updated if value is not None))


def _forward(
    model: PreTrainedModel, input_ids: Tensor, write_offset: Tensor, logit_positions: Tensor, cache: object
) -> Tensor:
    positions = write_offset[:, None] + torch.arange(input_ids.shape[1], device=input_ids.device)
    return model(
        input_ids=input_ids,
        position_ids=positions,
        cache=cache,
        use_cache=True,
        logits_to_keep=logit_positions,
    ).logits


def _find_slots(model: PreTrainedModel) -> tuple[KvSlot, ...]:
    """Shapes and windows of every KV slot, from a forward pass of one token on the meta device.

    A formula over the config cannot know them: layers may differ, share, or keep a latent instead.
    """
    config = model.config.get_text_config()
    probes = {layer: LayerProbe() for layer in range(config.num_hidden_layers)}
    cache = make_cache({layer: ProbeLayer(layer, probe) for layer, probe in probes.items()})
    one = torch.zeros(1, dtype=torch.int64, device="meta")
    with torch.no_grad(), tracing(StepState(one)) as state:
        _forward(model, one[None], one, one, cache)
    layer_types = getattr(config, "layer_types", None) or []
    slots: list[KvSlot] = []
    for layer, probe in probes.items():
        if probe.heads is None or probe.head_dims is None:
            continue
        window = state.windows.get(layer)
        sliding = layer < len(layer_types) and layer_types[layer] == "sliding_attention"
        if window is None or (sliding and window == 0):
            raise UnsupportedModel(
                "a layer's attention does not go through the attention interface as its config says",
                found=f"layer {layer}: "
                + ("no attention call" if window is None else "sliding attention called without its window"),
                expected="one attention call a layer, with its sliding window",
                todo="this architecture cannot be compiled yet",
            )
        for which, heads, head_dim in zip(Which, probe.heads, probe.head_dims, strict=True):
            slots.append(KvSlot(layer, which, heads, head_dim, window))
    if not slots:
        raise UnsupportedModel(
            "the model writes no keys and values",
            found=f"model_type {config.model_type!r} updated no cache layer",
            expected="a decoder with a KV cache",
            todo="this architecture cannot be compiled yet",
        )
    return tuple(slots)


def trace(
    config: PretrainedConfig,
    *,
    max_seq_len: int,
    dtype: torch.dtype = torch.float32,
    untied: Collection[str] = (),
    example_cached_len: int = 8,
) -> TracedModel:
    """Trace the model that transformers builds for `config` in `dtype`, without reading a weight. What
    transformers widens in a 16-bit model (norms, softmax) is wide in the program too.

    untied: names of parameters that the config ties but the checkpoint holds with values of their own.
    example_cached_len shapes the example inputs; nothing of it may reach the program.
    Raises UnsupportedModel, naming what in the model is not supported.
    """
    with quiet():
        meta = build_meta_model(config, max_seq_len, untied, dtype)
        try:
            slots = _find_slots(meta.model)
            program = _export(meta, slots, example_cached_len)
        except PlanonceError:
            raise
        except Exception as error:
            raise UnsupportedModel(
                "the model cannot be traced",
                found=f"{type(error).__name__}: {str(error).strip()[:400]}",
                expected="a forward pass without control flow over token values or lengths",
                todo="this architecture cannot be compiled yet",
                where=_model_frame(error),
            ) from error
    _check_constants(program)
    return TracedModel(
        exported_program=program,
        kv_slots=slots,
        buffers=meta.buffers,
        tied=meta.tied,
        family=str(config.model_type),
        vocab_size=int(meta.model.config.get_text_config().vocab_size),
    )


def _export(meta: MetaModel, slots: Sequence[KvSlot], example_cached_len: int) -> ExportedProgram:
    # Different sizes, none of them 0 or 1, so that the exporter can neither specialise on 0 and 1 nor take
    # one dimension for another.
    sequence = 5
    sizes = {"batch": 2, "sequence": sequence, "logits": 3, "capacity": example_cached_len + sequence + 2}
    dims = {name: Dim(name, min=1) for name in sizes}
    inputs = [
        torch.zeros([sizes[name] for name in names], dtype=torch.int64, device="meta")
        for _, names in STEP_INPUTS
    ]
    kv = [
        torch.empty(
            (sizes["batch"], s.heads, sizes["capacity"], s.head_dim), dtype=meta.model.dtype, device="meta"
        )
        for s in slots
    ]
    step_dims = tuple(dict(enumerate(dims[name] for name in names)) for _, names in STEP_INPUTS)
    kv_dims = [{0: dims["batch"], 2: dims["capacity"]} for _ in slots]
    with torch.no_grad():
        program = export(
            _Step(meta.model, slots), (*inputs, kv), dynamic_shapes=(*step_dims, kv_dims), strict=False
        )
        # A second trace, which costs twice the first: only for what it is needed for.
        return program if _is_functional(program) else program.run_decompositions({})


def _is_functional(program: ExportedProgram) -> bool:
    """Whether the program has neither in-place updates nor sub-programs, which decomposing removes."""
    for node in program.graph.nodes:
        if node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator):
            return False
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return False
    return True


def _check_constants(program: ExportedProgram) -> None:
    """A tensor made on the meta device inside forward has no value to put into the program."""
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants.values()
    constants = {name: program.constants[name] for name in lifted}
    lost = [name for name, value in constants.items() if isinstance(value, Tensor) and value.is_meta]
    if lost:
        raise UnsupportedModel(
            "the model makes constant tensors on its own device during the forward pass",
            found=", ".join(sorted(lost)),
            expected="constants registered as buffers",
            todo="this architecture cannot be compiled yet",
        )


def _model_frame(error: BaseException) -> str:
    """The innermost source line of a transformers model in the error's traceback."""
    where = ""
    tb = error.__traceback__
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        if "transformers/models/" in filename:
            where = f"{filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    return where
