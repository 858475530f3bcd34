"""A loaded plan: immutable, thread-safe, one ONNX Runtime session a stage, one copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from . import ort
from .decode_session import DecodeSession
from .device import DeviceLocation
from .errors import CapacityExceeded, PlanIntegrityError
from .kv_cache import KvCache
from .kv_geometry import KvGeometry
from .laps import Laps
from .manifest import Manifest, ModelFacts, Stage
from .manifest_checks import version_tuple
from .ort import OrtProgram, ProgramOptions
from .packed import open_packed
from .plan_files import Verify, verify_files
from .step_program import StageProgram, StepProgram
from .threads import default_threads
from .topology import Topology, check_on_device
from .weights_map import map_weights

__all__ = ["DEFAULT_CAPACITY", "Plan"]

DEFAULT_CAPACITY = 2048  # a model's own maximum can be 131072 positions: gigabytes nobody asked for


class Plan:
    """A plan directory, ready to open sessions. Every attribute is fixed at load."""

    __slots__ = ("_step", "directory", "geometry", "load_parts", "manifest", "portable_because", "threads")

    def __init__(
        self,
        manifest: Manifest,
        directory: Path,
        step: StepProgram,
        threads: int,
        portable_because: str = "",
        load_parts: Mapping[str, float] | None = None,
    ) -> None:
        """Use :meth:`load`. ``portable_because``: why the plan's packed program is not the one that runs.
        ``load_parts``: seconds of the load, by part."""
        self.manifest = manifest
        self.directory = directory
        self.threads = threads
        self.portable_because = portable_because
        self.load_parts = load_parts or {}
        self.geometry = KvGeometry.of_specs(manifest.kv_slots)
        self._step = step

    @staticmethod
    def load(
        path: Path | str,
        *,
        threads: int | None = None,
        verify: Verify | str = Verify.STANDARD,
        devices: Sequence[DeviceLocation] | None = None,
        capture: bool = False,
        packed: bool = True,
    ) -> Plan:
        """Load a plan directory.

        threads: of each stage; by default what the affinity mask and the cgroup allow.
        verify: by default every file's size, the sha256 of files up to 16 MiB and a sampled digest of larger
        ones; "full" reads and hashes everything, "size" only looks at sizes (:class:`Verify`).
        devices: the topology to accept; by default this machine's (:func:`local_devices`).
        capture: prepare CUDA programs for :class:`planonce.runtime.CapturedDecodeSession`.
        packed: run the program that was made for a machine like this one, where the plan has one and it
        proves itself (docs/plan-format.md); else the portable one, as :attr:`program` then says.
        Raises PlanFormatError, PlanIntegrityError, TopologyChanged (before any weight is read), PlanError.
        """
        return Plan._load(path, threads, verify, devices, capture, packed, lambda _: None)

    @staticmethod
    def load_and_open(
        path: Path | str,
        *,
        capacity: int | None = None,
        threads: int | None = None,
        verify: Verify | str = Verify.STANDARD,
        devices: Sequence[DeviceLocation] | None = None,
        packed: bool = True,
    ) -> tuple[Plan, DecodeSession]:
        """As :meth:`load`, then :meth:`open` with a new cache of ``capacity`` positions, in less time.

        Another thread makes the cache while ONNX Runtime prepares the weights. Raises as both do; nothing
        stays allocated.
        """
        with ThreadPoolExecutor(1, "planonce-kv-cache") as executor:
            pending: list[Future[KvCache]] = []
            plan = Plan._load(
                path, threads, verify, devices, False, packed,
                lambda manifest: pending.append(executor.submit(_new_cache, manifest, capacity)),
            )  # fmt: skip
            return plan, plan.open(pending[0].result())

    @staticmethod
    def _load(
        path: Path | str,
        threads: int | None,
        verify: Verify | str,
        devices: Sequence[DeviceLocation] | None,
        capture: bool,
        packed: bool,
        checked: Callable[[Manifest], object],
    ) -> Plan:
        """``checked`` is called with the manifest once it and the files are what they should be."""
        laps = Laps()
        directory = Path(path)
        level = verify if isinstance(verify, Verify) else Verify(verify)
        manifest = Manifest.load(directory)
        _check_version(manifest)
        topology = Topology.of(manifest, devices)
        laps.lap("manifest")
        verify_files(manifest, directory, level)
        checked(manifest)
        laps.lap("files")
        threads = default_threads() if threads is None else max(1, threads)
        initializers = map_weights(manifest.checkpoint)
        stages: list[StageProgram] = []
        portable_because = "" if packed or manifest.packed is None else "asked for"
        for i, stage in enumerate(manifest.stages):
            options = ProgramOptions(
                DeviceLocation.parse(stage.device),
                threads,
                stop_spinning=len(manifest.stages) > 1,
                capture=capture,
            )
            program = None
            if packed:
                program, portable_because = open_packed(manifest, directory, options)
            if program is None:
                program = OrtProgram(directory / stage.program, options, initializers.get(i))
            _check_program(stage, program)
            check_on_device(stage, program.host_nodes)
            stages.append(StageProgram(stage, program))
        step = StepProgram(manifest, tuple(stages), topology)
        laps.lap("programs")
        return Plan(manifest, directory, step, threads, portable_because, laps.seconds)

    @property
    def model(self) -> ModelFacts:
        return self.manifest.model

    @property
    def program(self) -> str:
        """Which of its programs runs: "packed", or "portable" and why not the packed one if there is one."""
        if self.manifest.packed is None:
            return "portable"
        return f"portable: {self.portable_because}" if self.portable_because else "packed"

    @property
    def shape_key(self) -> str:
        """Names the computation: family, structure, weights."""
        return self.manifest.shape_key

    @property
    def default_capacity(self) -> int:
        return _default_capacity(self.model)

    @property
    def ort_sessions(self) -> int:
        """ONNX Runtime sessions this plan holds: one a stage, whatever is opened."""
        return len(self.manifest.stages)

    def kv_bytes(self, capacity: int | None = None) -> int:
        """Bytes a cache of ``capacity`` positions takes; nothing is allocated."""
        return self.geometry.nbytes(self.default_capacity if capacity is None else capacity)

    def new_cache(self, capacity: int | None = None) -> KvCache:
        """A zero-filled cache for this plan. Raises CapacityExceeded, LayoutError, KvMemoryError."""
        return _new_cache(self.manifest, capacity)

    def open(self, cache: KvCache | None = None, *, capacity: int | None = None) -> DecodeSession:
        """A decode session over ``cache``, or over a new one of ``capacity``.

        Raises LayoutError when the cache does not fit the plan or was filled by another model.
        """
        if cache is None:
            cache = self.new_cache(capacity)
        elif capacity is not None and capacity != cache.capacity:
            raise CapacityExceeded(
                "A cache and another capacity were given.", found=str(capacity), expected=str(cache.capacity)
            )
        return DecodeSession(self._step, cache)

    def opened(self, session: DecodeSession) -> bool:
        """Whether ``session`` was opened from this very plan: another load may differ in arms or threads."""
        return session.program is self._step

    def __repr__(self) -> str:
        model = self.model
        return f"Plan({model.architecture}, {model.n_layers} layers, {model.dtype}, {self.threads} threads)"


def _default_capacity(model: ModelFacts) -> int:
    return min(model.max_seq_len, DEFAULT_CAPACITY)


def _new_cache(manifest: Manifest, capacity: int | None) -> KvCache:
    model = manifest.model
    wanted = _default_capacity(model) if capacity is None else capacity
    if wanted > model.max_seq_len:
        raise CapacityExceeded(
            "The plan cannot use a cache of this capacity.",
            found=str(wanted),
            expected=f"<= {model.max_seq_len}",
            todo="Ask for less, or compile with a larger --max-seq-len.",
        )
    cache = KvCache.for_slots(manifest.kv_slots, wanted)
    cache.state.shape_key = manifest.shape_key
    return cache


def _check_version(manifest: Manifest) -> None:
    found = ort.version()
    if version_tuple(found) < version_tuple(manifest.minimum_onnxruntime):
        raise PlanIntegrityError(
            "This plan needs a newer ONNX Runtime: an older one computes some of its operators differently.",
            found=found,
            expected=f">= {manifest.minimum_onnxruntime}",
            todo=f"pip install 'onnxruntime-gpu>={manifest.minimum_onnxruntime}'",
        )


def _check_program(stage: Stage, program: OrtProgram) -> None:
    """The program's own names, dtypes and ranks are what the manifest says. Raises PlanIntegrityError."""
    for side, arguments, values in (
        ("input", stage.inputs, program.inputs),
        ("output", stage.outputs, program.outputs),
    ):
        actual = {v.name: v for v in values}
        listed = {a.name for a in arguments}
        for name in sorted(actual.keys() ^ listed):
            known = "the program" if name in actual else "the manifest"
            raise PlanIntegrityError(
                f"Program and manifest disagree on an {side}.",
                found=f"{name} only in {known}",
                where=stage.program,
                todo="Compile the plan again.",
            )
        for argument in arguments:
            value = actual[argument.name]
            same = value.dtype == argument.dtype and len(value.shape) == len(argument.shape)
            fixed = all(
                not (isinstance(a, int) and isinstance(v, int)) or a == v
                for a, v in zip(argument.shape, value.shape, strict=False)
            )
            if not (same and fixed):
                raise PlanIntegrityError(
                    f"Program and manifest disagree on an {side}'s type.",
                    found=f"{argument.name}: {value.dtype} {list(value.shape)}",
                    expected=f"{argument.dtype} {list(argument.shape)}",
                    where=stage.program,
                    todo="Compile the plan again.",
                )
