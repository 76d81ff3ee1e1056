"""Tiny random models for every test of `infeng bench`."""

from bench_parts import attempt, cache, moe_config, schema, tiny_config, undisturbed, wide_config

__all__ = ["attempt", "cache", "moe_config", "schema", "tiny_config", "undisturbed", "wide_config"]
