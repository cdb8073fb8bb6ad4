# SPDX-License-Identifier: Apache-2.0
"""A strict reader of HTML pages, and texts that are hard to show in one."""

import html.parser

VOID = ("br", "hr", "img", "input", "link", "meta")


class Reader(html.parser.HTMLParser):
    """Parses a page; every element must be closed where it was opened."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.shown = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.shown.append(data)

    @property
    def text(self):
        """All text of the page."""
        return "".join(self.shown)

    def all(self, tag):
        """The attributes of every element with this tag."""
        return [attributes for name, attributes in self.elements if name == tag]


AWKWARD = [
    "</script><script>alert(1)</script>",
    "\"double\" and 'single' & <b>bold</b> &amp; <!-- no comment -->",
    "שלום עולם 123 (abc)",
    "👩‍👩‍👧 naïve ẞ 你好",
    "\u202ereversed",
    "]]> --> ${x} {{y}} %s \\n",
]
