"""Charts, as SVG inside pages and as files by matplotlib."""
