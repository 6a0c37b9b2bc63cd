"""Figures and names as people read them, for every page, report and terminal that the service writes."""

MINUS = "\N{MINUS SIGN}"
"""The minus sign, which is as wide as a plus sign; a hyphen is narrower."""


def counted(count: int, noun: str) -> str:
    """Return `1 rollout`, `2 rollouts` or `1,200 rollouts`. The plural of the noun ends in `s`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def counted_scenarios(count: int, split: str | None) -> str:
    """Return `12 scenarios`, or `12 training scenarios` for those of the split `train`."""
    return counted(count, "training scenario" if split == "train" else "scenario")


def signed(value: float, digits: int = 0) -> str:
    """Return a figure with its sign, such as `+12`. One that is rounded to 0 has no sign."""
    figure = f"{value:+,.{digits}f}"
    return figure.replace("-", MINUS) if figure.strip("+-0.") else figure[1:]


def in_words(name: str) -> str:
    """Return a name of the API as words: `gave up` for `gave_up`."""
    return name.replace("_", " ")
