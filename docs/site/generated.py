"""What is made from the code when the site is built, and the list of results (a hook of mkdocs).

A page of docs/reference has its introduction, and a mark where the generated part stands.
"""

import re
from pathlib import Path
from typing import Any

import cli_page
import messages
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
_DATED = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)-(?P<what>\w+)\.md")


def on_config(config: Any) -> Any:
    """Puts every file of docs/results into the navigation, by benchmark and date."""
    (results,) = (entry["Results"] for entry in config.nav if "Results" in entry)
    found = [_DATED.fullmatch(path.name) for path in (Path(config.docs_dir) / "results").iterdir()]
    for each in sorted(filter(None, found), key=lambda match: (match["what"], match["date"])):
        results.append({f"{each['what'].replace('_', ' ')}, {each['date']}": f"results/{each[0]}"})
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Puts the generated parts in their places."""
    if page.file.src_uri == TROUBLESHOOTING:
        return _MESSAGES.sub(lambda mark: messages.section(mark["group"]), markdown)
    made = PAGES.get(page.file.src_uri)
    if made is None:
        return markdown
    before, mark, after = markdown.partition(MARK)
    if not mark:
        raise ValueError(f"{page.file.src_uri} has no line {MARK}")
    return before + made() + after
