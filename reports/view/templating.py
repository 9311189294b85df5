"""Render the templates of the review application, with the templates of the cards.

Every template extends ``base.html``. In the application, this is the one of its own folder: its
style and script are files, so that the browser can refuse all others.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jinja2

from hallmark.reports.page.rendering import get_template_environment

VIEW_FOLDER = Path(__file__).parent

#: The static files of the application by name, with their media types.
STATIC_FILES = {
    "icon.svg": "image/svg+xml",
    "style.css": "text/css",
    "view.js": "text/javascript",
}


@functools.cache
def get_view_environment() -> jinja2.Environment:
    """Return the Jinja2 environment of the application, with autoescaping."""
    page_environment = get_template_environment()
    assert page_environment.loader is not None
    view_loader = jinja2.FileSystemLoader(VIEW_FOLDER / "templates")
    return page_environment.overlay(
        loader=jinja2.ChoiceLoader([view_loader, page_environment.loader])
    )


def render_view_page(template_name: str, **values: Any) -> str:
    """Render a page of the application."""
    return get_view_environment().get_template(template_name).render(**values)


@functools.cache
def read_static_file(name: str) -> str:
    """Return a static file; the style sheet is that of the cards, with additions."""
    text = (VIEW_FOLDER / "static" / name).read_text(encoding="utf-8")
    if name.endswith(".css"):
        environment = get_template_environment()
        card_styles = [
            environment.get_template(sheet).render() for sheet in ("style.css", "cases.css")
        ]
        return "\n".join([*card_styles, text])
    return text
