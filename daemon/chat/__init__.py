"""Prompts in, messages out: chat templates, prompt building and the incremental parsers. No I/O, no event loop."""
