"""Describes a run, or a comparison of runs, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.report.console import duration
from fedssl.report.html.clients import client_sizes
from fedssl.report.html.compare import Group, cell, measures, pairs, total_bytes
from fedssl.report.html.files import RunFiles
from fedssl.rundir import how_to_continue

COLLAPSED = 0.1  # spread of features below which images can hardly be distinguished

HETEROGENEITY = (
    (0.05, "practically no heterogeneity"),
    (0.25, "mild heterogeneity"),
    (0.5, "moderate heterogeneity"),
    (0.75, "strong heterogeneity"),
    (1.01, "very strong heterogeneity"),
)

PARTITIONS = {
    "iid": "Images are assigned to clients at random",
    "classes": "Every client has images of {classes} classes",
    "one-class": "Every client has images of one class",
    "dirichlet": "Shares of classes are drawn from a Dirichlet distribution with α = {alpha}",
    "dirichlet-bounded": "Shares of classes are drawn from a Dirichlet distribution with α = {alpha}",
    "dirichlet-equal": "Shares of classes are drawn from a Dirichlet distribution with β = {beta}",
    "skew": "A share of {beta} of the images is assigned at random, the rest by class",
    "domain": "Clients differ in the style (domain) of their images",
}


def summary(run: RunFiles) -> list[str]:
    """Describe model, data, heterogeneity, results, failures and cost."""
    sentences = [_what(run), _heterogeneity(run), _outcome(run), _failed(run), _cost(run), *warnings(run)]
    return [sentence for sentence in sentences if sentence]


def _what(run: RunFiles) -> str:
    method, objective = run.value("method.name"), run.value("objective.name")
    draws = run.config is not None and hasattr(run.config.objective, "generate")
    model = "generative model" if draws else f"{run.value('model.encoder')} encoder"
    trained = f"A {model} {'was' if run.result else 'is being'} trained"
    sizes = client_sizes(run)
    holders = _count(len(sizes), "site" if run.sites else "client")
    held = f": {_count(sum(sizes), 'image')} at {holders}" if sizes else ""
    share = run.value("participation.per_round", 1.0)
    part = ""
    if sizes and share != 1.0 and share != len(sizes):
        part = (
            f", {share} of which take part in a round"
            if isinstance(share, int)
            else f", {100 * share:g} % of which take part in a round"
        )
    if run.config is not None and not run.config.engine.has_server:
        method = f"{method}, without a server ({run.config.engine.name}),"
    done = _count(run.rounds, "round")
    if not run.result:
        done = f"{run.done} of {done} so far"
    return f"{trained} by {objective} with {method} on {run.data()}{held}{part}; {done}."


def _heterogeneity(run: RunFiles) -> str:
    values = {key.split(".")[1]: value for key, value in run.values.items() if key.startswith("partition.")}
    scheme = "one-class" if values.get("classes") == 1 else str(run.value("partition.scheme"))
    if len(client_sizes(run)) < 2 or run.sites:
        return ""
    try:
        described = PARTITIONS.get(scheme, "Images are assigned by the scheme {scheme}").format(**values)
    except KeyError:
        described = f"Images are assigned by the scheme {scheme}"
    distance = run.partition.get("earth_movers_distance")
    if distance is not None:
        word = next(word for most, word in HETEROGENEITY if distance < most)
        described += (
            f": clients' class distributions differ from the overall one by {distance:.2f} on average, on "
            f"a scale from 0 (identical) to 1, which is {word}"
        )
    shift = run.value("shift.name", "none")
    looks = f" The images of each client are also changed in appearance ({shift})." if shift != "none" else ""
    return f"{described}.{looks}"


def _outcome(run: RunFiles) -> str:
    if not run.result:
        for name, where in (("knn", ""), ("site_knn", " on the sites' own images, averaged over sites,")):
            monitor = [line["probe"][name] for line in run.metrics if name in line.get("probe", {})]
            if monitor:
                return f"The kNN monitor{where} currently shows {_percent(monitor[-1])}."
        return "There are no measurements yet." if not run.metrics else ""
    if not run.probes:
        why = run.result.get("why_no_probes")
        reason = f"There are no probes: {why}. " if why else "No probes were configured. "
        if run.sites:
            return reason + "With probe.at_sites=true, sites that have labels evaluate the encoder."
        return (
            reason + "Nearest neighbors and the feature map show which images the encoder considers similar."
        )
    probe = run.probes[0]
    gain = 100 * (probe["accuracy"] - probe["untrained"])
    asked = {
        "linear": "A linear classifier",
        "knn": "A nearest-neighbor classifier",
        "linear at sites": "A linear classifier of each site",
        "knn at sites": "A nearest-neighbor classifier of each site",
    }.get(probe["protocol"], f"The probe {probe['protocol']}")
    compared = (
        f"{abs(gain):.1f} points {'above' if gain > 0 else 'below'}" if round(gain, 1) else "the same as"
    )
    whose = "" if probe["model"] == "global" else f" ({probe['model']})"
    spread = spread_over_sites(probe)
    return (
        f"{asked} on the trained encoder{whose} classifies {_percent(probe['accuracy'])} of test images "
        f"correctly{spread}, {compared} the same probe on the untrained encoder "
        f"({_percent(probe['untrained'])})."
    )


def spread_over_sites(probe: Mapping[str, Any]) -> str:
    """Describe the spread of accuracies over sites; empty for other probes."""
    if "sites" not in probe:
        return ""
    count = len(probe["sites"])
    spread = "" if probe["spread"] is None else f" ± {100 * probe['spread']:.1f}"
    return f" (mean{spread} over {count} {'site' if count == 1 else 'sites'})"


def _failed(run: RunFiles) -> str:
    if not run.metrics:
        return ""
    failed = sum(len(line.get("failed", [])) for line in run.metrics)
    turns = failed + sum(len(line["clients"]) for line in run.metrics)
    if not failed:
        return "No client failed."
    reasons = [str(failure["reason"]) for line in run.metrics for failure in line.get("failed", [])]
    common = max(dict.fromkeys(reasons), key=reasons.count)
    return f"Clients failed in {failed:,} of {turns:,} turns and were left out; most often: {common}."


def _cost(run: RunFiles) -> str:
    seconds = sum(line["seconds"] for line in run.metrics)
    if not seconds:
        return ""
    views = sum(line.get("views", 0) for line in run.metrics)
    sent = total_bytes(run)
    traveled = f"; {in_bytes(sent)} were sent between server and clients" if sent else ""
    return f"Training took {duration(seconds)}, at {views / seconds:,.0f} views per second{traveled}."


def warnings(run: RunFiles) -> list[str]:
    """Return warnings that a reader should not miss."""
    sentences = []
    if run.problem:
        sentences.append(f"This version of fedssl cannot read the config: {run.problem}")
    probe = run.probes[0] if run.probes else None
    if probe is not None and probe["accuracy"] <= probe["untrained"]:
        sentences.append("Training has not helped: the untrained encoder is at least as good.")
    spread = [line["probe"]["feature_std"] for line in run.metrics if "feature_std" in line.get("probe", {})]
    if spread and not spread[-1] >= COLLAPSED:
        sentences.append(
            f"Features have (nearly) collapsed: their spread is {spread[-1]:.3f} (healthy features: about 1)."
        )
    losses = [line["loss"] for line in run.metrics if "loss" in line]
    if losses and not abs(losses[-1]) < float("inf"):
        sentences.append("The loss is NaN or infinite: training has diverged; try a smaller train.lr.")
    if not run.result and run.metrics:
        sentences.append(
            "The run has not finished: "
            + (
                "all rounds are done, but the last step (probes, encoder) is not."
                if run.done >= run.rounds
                else f"{how_to_continue(run.path, bool(run.sites))} continues it."
            )
        )
    return sentences


# --- several runs ---------------------------------------------------------------------------------


def compared(found: Sequence[Group]) -> list[str]:
    """Describe the settings, the best one, and whether its lead is significant."""
    if len(found) == 1:
        seeds = ", ".join(str(run.seed) for run in found[0].runs)
        return [f"One setting with {_count(len(found[0].runs), 'seed')} ({seeds}).", *_best(found)]
    counts = sorted({len(group.runs) for group in found})
    seeds = _count(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    return [f"{len(found)} settings with {seeds} each.", *_best(found)]


def _best(found: Sequence[Group]) -> list[str]:
    tested = [each for each in measures([run for group in found for run in group.runs]) if each.tested]
    if not tested:
        return ["They have no number to compare."]
    measure = tested[0]
    cells = [(group, known) for group in found if (known := cell(group, measure)) is not None]
    cells.sort(key=lambda each: -each[1]["mean"])
    best, number = cells[0]
    leads = "is best: " if len(cells) > 1 else "reaches "
    lead = f"By {measure.label}, {best.name} {leads}{_spread_of(number)}"
    if len(cells) == 1:
        return [f"{lead}."]
    second, other = cells[1]
    lead += f"; next is {second.name} with {_spread_of(other)}."
    order = [best.id, second.id]
    tests = pairs(found, measure)
    test = next(each for each in tests if sorted(order) == sorted([each["first"], each["second"]]))
    return [lead, _tested(best, second, test)]


def _tested(best: Group, second: Group, test: dict[str, Any]) -> str:
    shared = len(test["seeds"])
    if shared < 2:
        return "Significance cannot be tested: they share fewer than two seeds."
    turned = test["first"] != best.id  # the test is first − second
    by = f"{(-100 if turned else 100) * test['mean']:+.1f} points on average over {shared} seeds"
    p = test["p_corrected"]
    how = "" if p is None else f" (paired t-test: p = {p:.2g})"
    ahead = "lower" if turned else "higher"
    sentences = {
        ahead: f"{best.name} is significantly ahead of {second.name}: {by}{how}.",
        "undecided": f"The difference between them is not significant: {by}{how}.",
        "the same": f"On shared seeds they are the same: {by}.",
    }
    return sentences.get(test["word"], f"On shared seeds the order is reversed: {by}{how}.")


def _spread_of(number: dict[str, Any]) -> str:
    spread = "" if number["spread"] is None else f" ± {100 * number['spread']:.1f}"
    return f"{100 * number['mean']:.1f}{spread} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_bytes(number: float) -> str:
    """Format 1500000 as 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"
