"""A bench's result as a picture: decode speed by live length, and prefill."""

# pyright: basic
from __future__ import annotations

from pathlib import Path

from ..errors import OutputError, PlanonceError
from .report import heading
from .results import BenchResult

__all__ = ["PlotUnavailable", "check_plotting", "write_plot"]


class PlotUnavailable(PlanonceError):
    """matplotlib is not installed."""

    code = "missing-extra"


def check_plotting(path: Path) -> None:
    """Before minutes are spent measuring. Raises PlotUnavailable, OutputError."""
    try:
        import matplotlib  # noqa: F401  # pyright: ignore
    except ImportError:
        raise PlotUnavailable(
            "--plot needs matplotlib, which is not installed.", todo="pip install 'planonce[bench]'"
        ) from None
    if not path.parent.is_dir():
        raise OutputError("The plot's directory does not exist.", found=str(path.parent))


def write_plot(result: BenchResult, path: Path) -> None:
    """Write a picture in the format that ``path`` ends in. Raises PlotUnavailable, OutputError."""
    check_plotting(path)
    import matplotlib  # pyright: ignore

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # pyright: ignore

    lives = list(result.engines[0].decode)
    prompts = list(result.engines[0].prefill)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4), width_ratios=(len(lives) + 1, len(prompts) + 0.6), layout="constrained"
    )
    width = 0.8 / len(result.engines)
    for i, engine in enumerate(result.engines):
        label = f"{engine.name} {engine.weights}"
        offset = (i - (len(result.engines) - 1) / 2) * width
        for axes, keys, table in ((left, lives, engine.decode), (right, prompts, engine.prefill)):
            found = [(x, key, table[key]) for x, key in enumerate(keys) if key in table]
            amount = [key if axes is right else 1 for _, key, _ in found]
            rates = [n / s.median for n, (_, _, s) in zip(amount, found, strict=True)]
            # Quartiles of times turn over when they become rates; the median can fall on one of them.
            below = [max(0.0, r - n / s.high) for r, n, (_, _, s) in zip(rates, amount, found, strict=True)]
            above = [max(0.0, n / s.low - r) for r, n, (_, _, s) in zip(rates, amount, found, strict=True)]
            axes.bar(
                [x + offset for x, _, _ in found],
                rates,
                width,
                label=label,
                yerr=(below, above),
                error_kw={"linewidth": 0.8},
            )
    for axes, keys, title, name in (
        (left, lives, "Decode", "positions in the cache"),
        (right, prompts, "Prefill", "tokens in the prompt"),
    ):
        axes.set_title(title)
        axes.set_xticks(range(len(keys)), [str(key) for key in keys])
        axes.set_xlabel(name)
        axes.set_ylabel("tokens a second")
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize="small")
    figure.suptitle(heading(result).replace("; medians", ";\nmedians"), fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise OutputError("The plot cannot be written.", found=str(error), where=str(path)) from None
    finally:
        plt.close(figure)
