"""Write docs/papers.md from leaderboards/papers/index.yaml.

Usage: `python docs/papers.py`; a test compares the page with the file.
"""

from pathlib import Path

from fedbench.leaderboards.papers.figures import index

PAGE = Path(__file__).with_name("papers.md")
_INTRODUCTION = """# The three papers, line by line

<!-- Written by docs/papers.py from leaderboards/papers/index.yaml; do not edit. -->

Every algorithm, baseline, loss, evaluation, partition, search, table and figure of the papers,
and the command that gives it here; most need `fedbench data prepare cifar10`, tables CIFAR-100 as
well, and `--dry-run` shows the cost. *As printed*: configured with the values of the paper or its
release, which does not say that it has been run ([what has](claims.md)); *ours*: something is left
open, and had to be decided; *deviates*: it is measured otherwise. Partition, search and evaluation
are said once, in their own rows; other deviations of a method are in its file. `python
leaderboards/papers/figures.py O:5` draws a figure from the runs of a store, or says which are
lacking and which command makes them; `--preset laptop` takes runs at another scale. Which number a
figure has is inferred from the order of the text for O 5 to 7, M 3a and 3b, A 4.2, 4.3 and 4.5 to
4.9. Formulas were compared with transcriptions of the papers' equations, those of Orchestra also
with [its release](https://github.com/akhilmathurs/orchestra) at 228d7a6; no code of the other two
was found.
"""


def page() -> str:
    """Return the text of the page: a table for each paper."""
    found = index()
    parts = [_INTRODUCTION]
    for letter, paper in found.papers.items():
        lines = [
            f"\n## {paper}\n",
            "| of the paper | what | command | status |",
            "|---|---|---|---|",
        ]
        for item in found.items:
            of, _, name = item.item.partition(":")
            if of == letter:
                name = f"figure {name}" if name[0].isdigit() else name
                status = f"{item.status}: {item.why}" if item.why else item.status
                command = item.command.removeprefix("fedbench ") or f"figures.py {item.item}"
                lines.append(f"| {name} | {item.what} | `{command}` | {status} |")
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
