"""docs/passes.md from the passes themselves: ``python -m planonce.passes.docs > docs/passes.md``."""

from __future__ import annotations

import inspect
import sys

from .pipeline import DEFAULT_PIPELINE
from .registry import PASSES, load_pass_class, pass_names, pass_options, pass_summary

__all__ = ["passes_page"]

_LISTING = DEFAULT_PIPELINE.replace(",", ",\n")

_HEAD = f"""<!-- Made by `python -m planonce.passes.docs > docs/passes.md`; edit the docstrings, not this. -->

# Passes

A pipeline is a string of passes, each with its options: `a,b{{x=1 y=2,3}},canonicalize`. Lists are separated
by commas; a value with spaces, braces, quotes or `=` is written as a JSON string. Try one on a file:

```
planonce opt in.mlir --pass-pipeline='select-attention{{arm=portable}},canonicalize,cse'
```

`planonce compile` runs:

```
{_LISTING}
```

Running it twice changes nothing more. After each pass the module is verified; an error names the pass, the
operation and the Python line of the model that it came from.

| pass | what it does |
|---|---|
"""


def passes_page() -> str:
    """The whole page as Markdown."""
    shown = {name: f"[{name}](#{name})" if name in PASSES else name for name in pass_names()}
    rows = "\n".join(f"| {link} | {pass_summary(name)} |" for name, link in shown.items())
    return "\n".join([_HEAD + rows, *(_section(name) for name in PASSES)]).rstrip() + "\n"


def _section(name: str) -> str:
    text = inspect.getdoc(load_pass_class(name)) or ""
    summary = pass_summary(name)
    lines = ["", f"## {name}", "", f"{summary[:1].upper()}{summary[1:]}.", "", text, ""]
    options = pass_options(name)
    if options:
        lines += ["| option | type | default | |", "|---|---|---|---|"]
        for o in options:
            default = f"`{o.default}`" if o.default else "empty"
            lines.append(f"| `{o.name}` | {o.type.replace('|', 'or')} | {default} | {o.help} |")
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    sys.stdout.write(passes_page())
