"""Results as one page: what was run, curves, tables, representations, films, health.

`records` reads run folders and tables of evaluations, `gather` turns them into `PageData`, which is
plain data, and `html` puts that into a file that needs nothing else. `kstep watch` serves the same
page and the same data again and again.
"""
