"""The site of the documentation: `zensical.toml` has its pages, `make docs` builds it."""
