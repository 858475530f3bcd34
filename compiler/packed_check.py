"""Does a packed program compute what the portable one does? Asked in a process of its own, as self_check.

Also asked: would it be noticed if it did not? Without its packed weights the same program leaves out all
offsets, and the logits that are noted must tell the two apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from planonce.runtime.manifest import Manifest, PackedProgram, Probe

__all__ = ["check_packed"]

_IDS = 64
# Of the largest logit. How far the packed program may be from the portable one, which rounds differently; how
# far it may be from itself with other threads; how far from it a program without offsets must be.
_FROM_PORTABLE, _FROM_ITSELF, _NOTICED = 0.05, 1e-3, 0.02
_UNPACKED = ".unpacked.onnx"


def check_packed(directory: Path, program: str, manifest: Manifest) -> tuple[PackedProgram | None, str]:
    """What the manifest is to say of ``program``, or None and why it is not to be used.

    ``directory`` holds the plan's files but the manifest, which is ``manifest`` without a packed program.
    """
    command = [sys.executable, "-P", "-m", "planonce.compiler.packed_check", str(directory), program]
    done = subprocess.run(command, input=manifest.to_json(), capture_output=True, text=True, check=False)
    if done.returncode:
        return None, ([*done.stderr.strip().splitlines(), f"its process ended with {done.returncode}"])[-1]
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["why_not"]:
        return None, answer["why_not"]
    probe = answer["probe"]
    return PackedProgram(
        program,
        answer["onnxruntime"],
        answer["processor"],
        Probe(probe["token"], tuple(probe["ids"]), tuple(probe["logits"]), probe["tolerance"]),
    ), ""


def _check(directory: Path, program: str, manifest: Manifest) -> dict[str, object]:
    import numpy as np

    from planonce.runtime import probe_program, processor_key

    token = manifest.model.bos_token_id or 0
    processor = processor_key()
    if not processor:
        return {"why_not": "this machine's instruction sets are not known"}
    portable, version = probe_program(directory / manifest.stages[0].program, manifest, token)
    packed, _ = probe_program(directory / program, manifest, token)
    scale = float(np.abs(portable).max())
    far = float(np.abs(packed - portable).max())
    if not far <= _FROM_PORTABLE * scale:
        return {"why_not": f"its logits are {far:.3g} from the portable program's, the largest {scale:.3g}"}
    bare = directory / _UNPACKED
    try:
        _without_packed_weights(directory / program, bare)
        without, _ = probe_program(bare, manifest, token)
    finally:
        bare.unlink(missing_ok=True)
    # Where leaving the offsets out moves the logits most, and evenly over the rest.
    most = np.argsort(-np.abs(without - packed))[: _IDS // 2]
    even = np.linspace(0, len(packed) - 1, _IDS // 2).astype(int)
    ids = sorted({int(one) for one in (*most, *even)})
    noticed = float(np.abs(without - packed)[ids].max())
    if not noticed >= _NOTICED * scale:
        return {
            "why_not": f"without its packed weights its logits move by {noticed:.3g}: too little to notice"
        }
    logits = [round(float(one), 6) for one in packed[ids]]
    return {
        "why_not": "",
        "onnxruntime": version,
        "processor": processor,
        "probe": {"token": token, "ids": ids, "logits": logits, "tolerance": round(_FROM_ITSELF * scale, 6)},
    }


def _without_packed_weights(source: Path, target: Path) -> None:
    import onnx

    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        kept = [entry for entry in tensor.external_data if not entry.key.startswith("prepacked")]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    target.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    from planonce.runtime.errors import PlanonceError

    try:
        document = _check(Path(sys.argv[1]), sys.argv[2], Manifest.from_json(sys.stdin.read()))
        print(json.dumps(document))
    except PlanonceError as error:
        sys.exit(str(error))
