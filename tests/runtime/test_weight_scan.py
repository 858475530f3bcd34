"""Every value that is not a finite number is found, whatever its dtype and place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from handmade_plan import build
from text_files import text_tiny

from planonce.runtime import weight_scan
from planonce.runtime.errors import PlanIntegrityError
from planonce.runtime.manifest import FileRecord, Manifest, StoredTensor
from planonce.runtime.weight_scan import scan_weights

NUMPY = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return Manifest.load(build(tmp_path_factory.mktemp("plan") / "plan", text_tiny()))


def stored(
    manifest: Manifest, directory: Path, arrays: dict[str, np.ndarray], constant: bool = False
) -> Manifest:
    """A manifest over ``w.bin`` holding ``arrays``, at odd offsets."""
    tensors, data = [], b"x"
    for name, array in arrays.items():
        dtype = array.dtype.name
        tensors.append(StoredTensor(name, "w.bin", len(data), array.nbytes, dtype, array.shape, constant))
        data += array.tobytes()
    (directory / "w.bin").write_bytes(data)
    files = (*manifest.files, FileRecord("w.bin", len(data), "0" * 64))
    return dataclasses.replace(manifest, files=files, tensors=tuple(tensors))


@pytest.mark.parametrize("dtype", NUMPY)
def test_each_kind_is_counted_and_the_first_is_placed(manifest: Manifest, tmp_path: Path, dtype: str) -> None:
    kind = NUMPY[dtype]
    limits = ml_dtypes.finfo(kind)
    fine = np.array([0, -0.0, 1, limits.max, limits.min, limits.tiny, limits.smallest_subnormal], kind)
    bad = np.ones((3, 5), kind)
    bad[1, 2], bad[2, 0], bad[2, 4] = np.inf, -np.nan, -np.inf
    made = stored(manifest, tmp_path, {"fine": fine, "bad": bad})
    made.to_json()  # what is scanned is what a manifest may say
    scan = scan_weights(made, tmp_path)
    assert (scan.tensors, scan.nbytes) == (2, fine.nbytes + bad.nbytes)
    (found,) = scan.non_finite
    assert (found.name, found.n_nan, found.n_inf, found.first) == ("bad", 1, 2, (1, 2))
    assert found.bad


@pytest.mark.parametrize("place", [0, 262_143, 262_144, 262_145, 999_999])
def test_blocks_meet_without_a_gap(manifest: Manifest, tmp_path: Path, place: int) -> None:
    assert weight_scan._BLOCK == 4 * 262_144
    array = np.ones(1_000_000, np.float32)
    assert scan_weights(stored(manifest, tmp_path, {"w": array}), tmp_path).non_finite == ()
    array[place] = np.nan
    (found,) = scan_weights(stored(manifest, tmp_path, {"w": array}), tmp_path).non_finite
    assert (found.first, found.n_nan) == ((place,), 1)


def test_scalars_empty_tensors_and_integers_are_no_trouble(manifest: Manifest, tmp_path: Path) -> None:
    arrays = {
        "scalar": np.array(np.nan, np.float32),
        "empty": np.empty((0, 4), np.float32),
        "integers": np.full(8, -1, np.int32),  # all bits set, as a NaN's are
    }
    (found,) = scan_weights(stored(manifest, tmp_path, arrays), tmp_path).non_finite
    assert (found.name, found.first) == ("scalar", ())


def test_mask_of_the_program_may_hold_infinity_but_not_nan(manifest: Manifest, tmp_path: Path) -> None:
    mask = np.array([0, -np.inf], np.float32)
    (found,) = scan_weights(stored(manifest, tmp_path, {"mask": mask}, constant=True), tmp_path).non_finite
    assert not found.bad
    mask[0] = np.nan
    (found,) = scan_weights(stored(manifest, tmp_path, {"mask": mask}, constant=True), tmp_path).non_finite
    assert found.bad


def test_file_that_ends_early_is_an_integrity_error(manifest: Manifest, tmp_path: Path) -> None:
    made = stored(manifest, tmp_path, {"w": np.ones(9, np.float32)})
    (tmp_path / "w.bin").write_bytes(b"x" * 20)
    with pytest.raises(PlanIntegrityError, match="ends early"):
        scan_weights(made, tmp_path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(PlanIntegrityError, match="cannot be read"):
        scan_weights(made, tmp_path)


def test_weight_of_two_stages_is_read_once(tmp_path: Path) -> None:
    directory = build(tmp_path / "plan", text_tiny(reference_weights=True))
    made = Manifest.load(directory)
    checkpoint = made.checkpoint
    twice = dataclasses.replace(checkpoint, weights=(*checkpoint.weights, *checkpoint.weights))
    again = dataclasses.replace(made, checkpoint=twice)
    assert scan_weights(again, directory).tensors == scan_weights(made, directory).tensors == 10
