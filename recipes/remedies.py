"""When every trajectory fails: each remedy on the same task, beside the plain method, in one figure and one table.

    python -m recipes.remedies --config recipes/crafting_remedies.yaml

The YAML holds one `recipes.drgrpo` run and, under `remedies`, what each run changes in it: a name and any keys. Every
run is a `python -m recipes.drgrpo` of its own in OUTPUT/NAME; started again, only the missing ones are made. The table
gives the share of groups with signal (whose returns are not all equal) in the first and in the last quarter of the
generations, and sampled success on the held-out tasks before and after, with its standard error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from recipes.common import one_line_errors
from trl_plugins.report import read_metrics


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="The YAML: a run, and `remedies`.")
    parser.add_argument("--output_dir", type=Path, help="In place of the YAML's.")
    parser.add_argument("--only", nargs="+", help="Names of the remedies to run; all if unset.")
    parser.add_argument("--max_steps", type=int, help="In place of the YAML's.")
    given = parser.parse_args(argv)
    base = yaml.safe_load(given.config.read_text())
    remedies: dict[str, dict[str, Any]] = base.pop("remedies", None) or {}
    if not remedies:
        raise ValueError(f"{given.config} names no remedies; give a map of names to changed keys")
    unknown = sorted(set(given.only or []) - set(remedies))
    if unknown:
        raise ValueError(f"--only {unknown[0]}: no such remedy; known: {', '.join(remedies)}")
    base["max_steps"] = given.max_steps or base["max_steps"]
    folder = given.output_dir or Path(base["output_dir"])
    chosen = given.only or list(remedies)
    for name in chosen:
        run(base | (remedies[name] or {}), folder / name)
    text = table({name: (folder / name) for name in chosen})
    print(text)
    (folder / "table.md").write_text(text + "\n")
    draw({name: read_metrics(folder / name / "metrics.jsonl") for name in chosen}, folder / "remedies.png")
    print(f"see {folder}/remedies.png")


def run(keys: dict[str, Any], folder: Path) -> None:
    """One `recipes.drgrpo` run, unless it is there."""
    if (folder / "summary.json").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = folder.parent / f"{folder.name}.yaml"
    config.write_text(yaml.safe_dump(keys | {"output_dir": str(folder)}))
    print(f"{folder.name}: recipes.drgrpo --config {config}", flush=True)
    subprocess.run([sys.executable, "-m", "recipes.drgrpo", "--config", str(config)], check=True)


def signal(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """(step, share of groups whose returns are not all equal), for each step that generated."""
    return [(row["step"], 1 - row["zero_variance_share"]) for row in rows if "zero_variance_share" in row]


def quarters(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Means over the first and over the last quarter of the points."""
    values = [value for _, value in points]
    some = max(1, len(values) // 4)
    return statistics.fmean(values[:some]), statistics.fmean(values[-some:])


def table(folders: dict[str, Path]) -> str:
    lines = [
        "| remedy | groups with signal: first quarter | last quarter | success before | after | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, folder in folders.items():
        summary = json.loads((folder / "summary.json").read_text())
        first, last = quarters(signal(read_metrics(folder / "metrics.jsonl")))
        before, after = (
            f"{summary[when]['eval_success_sampled']:.3f} ± {summary[when]['eval_success_sampled_stderr']:.3f}"
            for when in ("before", "after")
        )
        seconds = f"{summary['train_seconds']:.0f}"
        lines.append(f"| {name} | {first:.3f} | {last:.3f} | {before} | {after} | {seconds} |")
    return "\n".join(lines)


def draw(runs: dict[str, list[dict[str, Any]]], png: Path) -> None:
    """A panel a remedy: groups with signal, and success on the held-out tasks, against updates."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(runs))
    rows = -(-len(runs) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3 * columns, 2.6 * rows), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for panel, (name, metrics) in zip(axes.flat, runs.items(), strict=False):
        panel.plot(*zip(*signal(metrics), strict=True), color="tab:orange", lw=1, label="groups with signal")
        points = [(row["step"], row["eval_success_sampled"]) for row in metrics if "eval_success_sampled" in row]
        panel.plot(*zip(*points, strict=True), "o-", color="tab:blue", ms=3, label="success, held-out tasks")
        panel.set(title=name, ylim=(-0.03, 1.03))
        panel.grid(alpha=0.25)
    for panel in axes.flat[len(runs) :]:
        panel.axis("off")
    axes.flat[0].legend(fontsize=7, loc="upper left")
    figure.supxlabel("updates")
    figure.savefig(png, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    one_line_errors(main)
