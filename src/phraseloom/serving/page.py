"""The live page: type, translate, keep the first words, look inside. Its script is `report/assets/serve.js`."""

from __future__ import annotations

from phraseloom.report.explain_page import SCRIPTS, STYLES
from phraseloom.report.page import asset, page


def live_page() -> str:
    """The page as one HTML document; it asks this server and nobody else."""
    return page("phraseloom", asset("serve.html"), styles=(*STYLES, "serve.css"), scripts=(*SCRIPTS, "serve.js"))
