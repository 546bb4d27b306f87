"""Letters and signs as LaTeX writes them."""

from __future__ import annotations

from vitssl.report.table import DASH, MINUS

# the small letters of Greek in Unicode's order; \omicron does not exist, and of the capitals those that look Latin do not
GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi", "", "pi", "rho",
    "varsigma", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
)  # fmt: skip
CAPITALS = ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "upsilon", "phi", "psi", "omega")
MATH = {
    "±": r"\pm", MINUS: "-", "<": "<", ">": ">", "|": "|", "≥": r"\geq", "≤": r"\leq", "≈": r"\approx", "≠": r"\neq",
    "\N{MULTIPLICATION SIGN}": r"\times", "·": r"\cdot", "→": r"\rightarrow", "←": r"\leftarrow", "↑": r"\uparrow", "↓": r"\downarrow",
    "∞": r"\infty", "°": r"^\circ", "µ": r"\mu", "²": "^2", "³": "^3",
    **{chr(0x3B1 + i): f"\\{name}" for i, name in enumerate(GREEK) if name},
    **{chr(0x391 + i): f"\\{name.capitalize()}" for i, name in enumerate(GREEK) if name in CAPITALS},
}  # fmt: skip
TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", DASH: "--", "—": "---", "…": r"\dots{}",
    "†": r"\dag{}",
    "“": "``", "”": "''", "\N{LEFT SINGLE QUOTATION MARK}": "`", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    **{c: f"\\{c}" for c in "&%_#${}"},
    **{c: f"${command}$" for c, command in MATH.items()},
}  # fmt: skip
LAST_OF_LATIN = "\u017f"  # what LaTeX knows without further packages


def tex(text: str) -> str:
    """The text with LaTeX's own characters escaped, those that it cannot set by their number; CO2e with its index."""
    return "".join(TEX.get(c, c if c <= LAST_OF_LATIN else f"(U+{ord(c):04X})") for c in text).replace("CO2", r"CO\textsubscript{2}")
