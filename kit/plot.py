#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plot.py FIGURE.json TARGET.svg|png: draws what rail-kit has written down.

The figure: {"title": text, "panels": [{"xlabel", "ylabel", "xscale" and "yscale" ("linear", "log", "symlog"),
"kind" ("line" or "bar"), "xticks": [[x, text], ...], "series": [{"name", "x": [...], "y": [...],
"low" and "high": [...], "color" and "dash": numbers, "points": true}]}]}. Panels lie below each other; all but
"panels", "series", "name", "x" and "y" may be absent.
"""
import json
import sys


def draw(plt, figure, target):
    panels = figure["panels"]
    fig, axes = plt.subplots(len(panels), 1, figsize=(10, 3.2 * len(panels)), squeeze=False)
    for ax, panel in zip(axes[:, 0], panels):
        for series in panel["series"]:
            if panel.get("kind", "line") == "bar":
                ax.bar(series["x"], series["y"], label=series["name"])
            else:
                color = f"C{series['color'] % 10}" if "color" in series else None
                line, = ax.plot(series["x"], series["y"], label=series["name"], linewidth=1.2, color=color,
                                linestyle=["-", "--", ":", "-."][series.get("dash", 0) % 4],
                                marker="o" if series.get("points") else None, markersize=3)
                if "low" in series:
                    ax.fill_between(series["x"], series["low"], series["high"], color=line.get_color(), alpha=0.15)
        ax.set_xlabel(panel.get("xlabel", ""))
        ax.set_ylabel(panel.get("ylabel", ""))
        ax.set_xscale(panel.get("xscale", "linear"))
        ax.set_yscale(panel.get("yscale", "linear"))
        if panel.get("xticks"):
            ax.set_xticks([x for x, _ in panel["xticks"]], [text for _, text in panel["xticks"]])
            ax.minorticks_off()
        ax.grid(True, linewidth=0.3)
        ax.legend(fontsize="small")
    fig.suptitle(figure.get("title", ""))
    fig.tight_layout(rect=(0, 0, 1, 1 - 0.25 / (3.2 * len(panels))))
    fig.savefig(target)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        import matplotlib
    except ImportError:
        sys.exit("rail-kit: a picture needs python3 with matplotlib (Debian: python3-matplotlib)")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    with open(sys.argv[1], encoding="utf-8") as file:
        figure = json.load(file)
    try:
        draw(plt, figure, sys.argv[2])
    except (OSError, ValueError) as problem:
        sys.exit(f"rail-kit: {sys.argv[2]}: {problem}")


if __name__ == "__main__":
    main()
