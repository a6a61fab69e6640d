"""Pages in the browser that need no network: the report of an estimate, and a live one.

- ``rendering``: templates, escaping, style and script that all pages share;
- ``embedding``: figures within a page, compressed;
- ``estimate_report``: the page of an estimate, ``estimate/index.html``;
- ``live_server`` and ``live_page``: a page on a running estimate, on 127.0.0.1.
"""
