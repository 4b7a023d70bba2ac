"""exl3d's daemon: the front process (core, chat, host, api) and the engine process (core, engine)."""
