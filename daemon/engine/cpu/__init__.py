"""exllamav3's compiled operations in torch, so that its real scheduler, caches, samplers and models run on a CPU.

Nothing here decides anything; `install.py` puts the pieces in place and lists every change made to exllamav3.
"""
