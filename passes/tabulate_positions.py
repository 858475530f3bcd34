"""tabulate-positions: what depends on the positions alone is looked up, not computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from .base import option
from .ir.builder import OnnxBuilder, dtype_of, shape_of, tensor_type
from .ir.devices import device_of_op
from .ir.matching import erase_if_dead, uses
from .ir.position_values import PositionValues
from .ir.positions import step_positions
from .ir.roles import body_of, function_of
from .remarks import Remarks

__all__ = ["TabulatePositions"]


@dataclass(frozen=True, slots=True)
class TabulatePositions:
    """Evaluates subgraphs that follow from a token's position and from constants, once for every position
    that a plan can hold, into a table; the step gathers its rows.

    All rotary embeddings but those that look at the length of the whole sequence are such subgraphs.
    Arithmetic is done in the element type and order of the program; sines, cosines and the like are
    rounded from their double-precision values, which is at least as exact as any kernel.
    """

    name: ClassVar[str] = "tabulate-positions"
    summary: ClassVar[str] = "turn what depends on positions alone into a table and a lookup"

    max_seq_len: int = option(0, "rows of a table: the positions that the plan can hold; 0: make no table")

    def run(self, module: ir.Module, remarks: Remarks) -> bool:
        """Raises PassError when the module is not one function of one block."""
        function = function_of(module)
        roots = step_positions(function)
        if not roots:
            remarks.add("no positions of the form write_offset + arange(sequence) were found")
            return False
        if self.max_seq_len < 1:
            remarks.add("no table is made: max-seq-len says how many positions it needs")
            return False
        made = 0
        for positions in roots:
            values = PositionValues(positions, np.arange(self.max_seq_len, dtype=np.int64))
            body = [view.operation for view in body_of(function).operations]
            for op in body:
                values.add(op)
            made += self._replace(positions, values, body, remarks)
        return made > 0

    def _replace(
        self, positions: ir.Value, values: PositionValues, body: list[ir.Operation], remarks: Remarks
    ) -> int:
        """Replace what other operations read of ``values``. The number of tables made."""
        wanted = [
            value
            for op in body
            for value in op.results
            if value in values and values.is_worth_a_table(value) and _read_outside(value, values)
        ]
        if not wanted:
            return 0
        for value in wanted:
            table = values.table(value)
            # Below the positions, above the first reader: where the value itself was.
            op = value.owner
            assert not isinstance(op, ir.Block)
            builder = OnnxBuilder(op.location, ir.InsertionPoint(op), device_of_op(op) or "")
            type_ = tensor_type([*shape_of(positions), *table.shape[1:]], dtype_of(value))
            looked_up = builder.one("Gather", [builder.constant(table), positions], type_, {"axis": 0})
            if values.is_spread(value):
                axis = builder.constant(np.array([1], dtype=np.int64))
                looked_up = builder.one("Unsqueeze", [looked_up, axis], value.type)
            value.replace_all_uses_with(looked_up)
            remarks.add(f"a table of {' x '.join(map(str, table.shape))} {dtype_of(value)}", at=op)
        for value in wanted:
            erase_if_dead(value)
        return len(wanted)


def _read_outside(value: ir.Value, values: PositionValues) -> bool:
    return any(
        not reader.results or not all(result in values for result in reader.results)
        for reader, _ in uses(value)
    )
