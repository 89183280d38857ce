"""What is made from the code when the site is built, and the list of results (a hook of mkdocs).

A page of docs/reference has its introduction, and a mark where the generated part stands.
"""

import re
from pathlib import Path
from typing import Any

import cli_page
import error_texts
import metrics_page
import spec_page

MARK = "<!-- generated -->"
PAGES = {
    "reference/spec.md": spec_page.page,
    "reference/cli.md": cli_page.page,
    "reference/metrics.md": metrics_page.page,
}
TROUBLESHOOTING = "troubleshooting.md"
_MESSAGES = re.compile(r"<!-- messages: (?P<group>[\w-]+) -->")
RESULTS = "results/README.md"
RESULTS_FOLDER = Path(__file__).resolve().parents[1] / "results"
_OF_ANY_DATE = re.compile(r"`DATE-(?P<what>\w+)\.md`")
_DATED = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)-(?P<what>\w+)\.md")


def on_config(config: Any) -> Any:
    """Puts every file of docs/results into the navigation, by benchmark and date."""
    (results,) = (entry["Results"] for entry in config.nav if "Results" in entry)
    found = [_DATED.fullmatch(path.name) for path in RESULTS_FOLDER.iterdir()]
    for each in sorted(filter(None, found), key=lambda match: (match["what"], match["date"])):
        results.append({f"{each['what'].replace('_', ' ')}, {each['date']}": f"results/{each[0]}"})
    return config


def _links(mark: re.Match[str]) -> str:
    """A benchmark's name, with its results by date; the name alone where there are none yet."""
    files = sorted(path.name for path in RESULTS_FOLDER.glob(f"2*-{mark['what']}.md"))
    dated = [_DATED.fullmatch(name) for name in files]
    links = [f"[{each['date']}]({each[0]})" for each in dated if each and each["what"] == mark["what"]]
    return f"{mark['what'].replace('_', ' ')}<br>{'<br>'.join(links) or 'not measured yet'}"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Puts the generated parts in their places."""
    # Results are wide tables: they get the room of the table of contents.
    if page.file.src_uri.startswith("results/"):
        page.meta["hide"] = ["toc"]
    if page.file.src_uri == TROUBLESHOOTING:
        return _MESSAGES.sub(lambda mark: error_texts.section(mark["group"]), markdown)
    if page.file.src_uri == RESULTS:
        return _OF_ANY_DATE.sub(_links, markdown)
    made = PAGES.get(page.file.src_uri)
    if made is None:
        return markdown
    before, mark, after = markdown.partition(MARK)
    if not mark:
        raise ValueError(f"{page.file.src_uri} has no line {MARK}")
    return before + made() + after
