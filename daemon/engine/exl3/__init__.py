"""The exllamav3 adapter: the only package of the project that imports exllamav3."""
