"""The pages of `docs/` that are made from perfkit's objects: findings, figures, tables, formats, speed."""
