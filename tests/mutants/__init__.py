"""The product changed in every way that must be noticed: one change at a time, in a copy, and the tests that see it.

`named.toml` has one change for each rule of write order and durability, and the tests that are to notice it.
`generated.py` makes the small ones: a comparison turned round, a constant changed, a statement left out. What became of
all of them is in docs/mutants.md. Run by `make mutants`.
"""
