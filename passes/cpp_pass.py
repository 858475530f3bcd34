"""MLIR's own passes as passes of ours, so that a pipeline mixes both freely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from planonce.runtime.errors import PassError

from .ir.context import print_module
from .ir.locations import describe_diagnostics
from .remarks import Remarks

__all__ = ["CPP_PASSES", "CppPass"]

# Only these: others of MLIR's hundreds know nothing of our dialects and can break a plan.
CPP_PASSES: Mapping[str, str] = {
    "canonicalize": "MLIR: fold and simplify operations, drop unused ones",
    "cse": "MLIR: merge operations that compute the same value",
    "symbol-dce": "MLIR: drop private functions that nothing calls",
}


@dataclass(frozen=True, slots=True)
class CppPass:
    """One of MLIR's passes; its options are MLIR's to check."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def create(name: str, options: Mapping[str, str]) -> CppPass:
        """Raises PassError when MLIR does not take the options."""
        made = CppPass(name, tuple(options.items()))
        with ir.Context():
            made.manager()
        return made

    @property
    def summary(self) -> str:
        """One line for the listing."""
        return CPP_PASSES[self.name]

    def manager(self) -> PassManager:
        """MLIR's pass manager for this pass alone, in the current context."""
        options = " ".join(f"{key}={value}" for key, value in self.options)
        text = f"builtin.module({self.name}{{{options}}})" if options else f"builtin.module({self.name})"
        try:
            return PassManager.parse(text)
        except (ir.MLIRError, ValueError) as error:
            raise PassError(
                f"MLIR does not accept {self.name}{{{options}}}", found=" ".join(str(error).split())
            ) from None

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """MLIR does not say whether a pass changed anything, so the text before and after is compared."""
        del remarks
        before = print_module(module, verified=True)
        with module.context:
            manager = self.manager()
            manager.enable_verifier(False)  # the driver verifies after every pass
            try:
                manager.run(module.operation)
            except ir.MLIRError as error:
                message, where = describe_diagnostics(error)
                raise PassError(message, where=where) from None
        return print_module(module, verified=True) != before
