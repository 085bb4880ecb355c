# SPDX-License-Identifier: Apache-2.0
"""The curves of demo/training: loss and accuracy over steps, accuracy over time, a line for each seed."""
import os

from ranks import NAMES
import netbed  # bench/, whose path ranks has added
import plots

rate_of = netbed.parse_rate
PANELS = (("step", "loss", "steps", "training loss"), ("step", "accuracy", "steps", "test accuracy"),
          ("seconds", "accuracy", "seconds of training", "test accuracy"))


def _figure(plt, model, pieces):
    figure, axes = plt.subplots(1, len(PANELS), figsize=(4.2 * len(PANELS), 3.2))
    for each, (x, y, x_label, y_label) in zip(axes, PANELS):
        for backend, name in NAMES.items():
            chosen = [piece["curve"] for piece in pieces if piece["settings"]["backend"] == backend]
            for number, curve in enumerate(chosen):
                each.plot([point[x] for point in curve], [point[y] for point in curve], linewidth=1.2, alpha=0.8,
                          color=plots.COLOURS[backend][0], linestyle="-" if backend == "switchml" else "--",
                          label=name if number == 0 else None)
        each.set_xlabel(x_label)
        each.set_ylabel(y_label)
        each.set_xlim(left=0)
    axes[0].legend()
    settings = pieces[0]["settings"]
    figure.suptitle(f"{model}, {settings['link']}, {settings['workers']} ranks: one line for each seed")
    return figure


def draw(pieces, folder):
    """Writes an SVG and a PNG for each model; their paths. Raises ImportError without matplotlib."""
    plt, paths = plots.pyplot(), []
    for model in dict.fromkeys(piece["settings"]["model"] for piece in pieces):
        chosen = [piece for piece in pieces if piece["settings"]["model"] == model]
        figure = _figure(plt, model, chosen)
        for kind in ("svg", "png"):
            paths.append(os.path.join(folder, f"{model}-{chosen[0]['settings']['link']}.{kind}"))
            figure.savefig(paths[-1], dpi=120, metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)
    return paths
