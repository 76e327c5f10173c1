"""The command line: one module per verb, each with its help as docstring, its `arguments` and its `main`."""
