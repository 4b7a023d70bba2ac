"""The aiohttp application: one file an API family, auth, SSE, error mapping, metrics. Reaches engines through core.ports."""
