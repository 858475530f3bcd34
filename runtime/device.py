"""Where bytes live: ``cpu:0``, ``cuda:1``. Standard library only.

Every ``cpu:N`` is the same physical memory; distinct indices are *logical* devices, so that placement,
copies, stages and residency can be exercised on a machine without an accelerator.
"""

from __future__ import annotations

import ctypes
import enum
import re
from dataclasses import dataclass

from .errors import LayoutError

__all__ = ["HOST", "DeviceKind", "DeviceLocation", "check_local", "local_devices"]

_LOGICAL_CPUS = 2
_PATTERN = re.compile(r"(cpu|cuda):(0|[1-9][0-9]{0,3})")


class DeviceKind(enum.Enum):
    """A kind of device and the ONNX Runtime provider that runs on it."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def provider(self) -> str:
        return {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[self.value]


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """One device. ``str(location)`` and :meth:`parse` are inverse."""

    kind: DeviceKind
    index: int

    @staticmethod
    def parse(text: str) -> DeviceLocation:
        """``"cpu:0"`` or ``"cuda:1"``. Raises LayoutError on anything else."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise LayoutError(
                "This is not a device that planonce knows.",
                found=repr(text),
                expected="cpu:N or cuda:N",
                todo="Name a device such as cpu:0 or cuda:0.",
            )
        return DeviceLocation(DeviceKind(match[1]), int(match[2]))

    @property
    def ort_device(self) -> tuple[str, int]:
        """Type and index for ONNX Runtime, which has one CPU whatever our logical index says."""
        return (self.kind.value, self.index if self.kind is not DeviceKind.CPU else 0)

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.index}"


HOST = DeviceLocation(DeviceKind.CPU, 0)


def _cuda_device_count() -> int:
    """Devices the CUDA driver reports; 0 without a driver. Asks the driver, because ONNX Runtime
    lists its CUDA provider on machines that have no GPU at all."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def local_devices() -> tuple[DeviceLocation, ...]:
    """The devices of this machine: two logical CPUs, then every CUDA device the driver reports."""
    cpus = [DeviceLocation(DeviceKind.CPU, i) for i in range(_LOGICAL_CPUS)]
    return (*cpus, *(DeviceLocation(DeviceKind.CUDA, i) for i in range(_cuda_device_count())))


def check_local(location: DeviceLocation) -> DeviceLocation:
    """``location`` when this machine has it. Raises LayoutError."""
    devices = local_devices()
    if location not in devices:
        raise LayoutError(
            "This machine has no such device.",
            found=str(location),
            expected=", ".join(map(str, devices)),
            todo="Use a device that planonce.runtime.local_devices() lists.",
        )
    return location
