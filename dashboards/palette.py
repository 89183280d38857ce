"""One colour and one marker for every rule, in figures, in interactive charts and in MLflow's UI."""

from typing import NamedTuple

GREY = "#6B6B6B"
"""The color of axes, notes and reference lines."""

RUN_COLOR = "mlflow.runColor"
"""The tag from which MLflow's UI takes a run's colour."""


class RuleStyle(NamedTuple):
    """The colour and the marker of a rule in every figure."""

    color: str
    marker: str


# Okabe and Ito's colours for the rules that are compared most, darker shades of them for the rest.
RULES: dict[str, RuleStyle] = {
    "none": RuleStyle("#000000", "o"),
    "wgt": RuleStyle("#0072B2", "o"),
    "bgt": RuleStyle("#D55E00", "s"),
    "qgt": RuleStyle("#009E73", "^"),
    "strom": RuleStyle("#CC79A7", "D"),
    "topk": RuleStyle("#E69F00", "v"),
    "chunked_topk": RuleStyle("#8C6100", "<"),
    "linear": RuleStyle("#56B4E9", "P"),
    "quantile": RuleStyle("#004B76", "X"),
    "powersgd": RuleStyle("#7A3E62", "p"),
    "entropy": RuleStyle("#8F3F00", "h"),
    "fp16": RuleStyle("#595959", "d"),
    "bf16": RuleStyle("#8C8C8C", "H"),
    "fp8": RuleStyle("#A89A00", ">"),
    "random_k": RuleStyle("#B8860B", "v"),
    "sign": RuleStyle("#B35900", "s"),
    "qsgd": RuleStyle("#005C3D", "^"),
    "terngrad": RuleStyle("#6A4C93", "v"),
    "natural": RuleStyle("#3C6E71", "D"),
    "visible": RuleStyle("#2F4B7C", "o"),
    "visible_strom": RuleStyle("#A05195", "D"),
}
UNKNOWN_RULE = RuleStyle("#B0006D", "*")


def rule_style(rule: str) -> RuleStyle:
    """The colour and marker of a compressor's kind; one for all that this table does not know."""
    return RULES.get(rule, UNKNOWN_RULE)


OTHER_BASELINE = "#B3B3B3"
"""For runs without compression that are not the baseline of a comparison."""
STOPPED = "#DADADA"
"""For a search's trials that did not train to their end."""


def pale(color: str) -> str:
    """A colour mixed with white, for dominated points."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(0.35 * part + 0.65 * 255):02X}" for part in parts)
