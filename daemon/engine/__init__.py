"""The engine process. The only room that may import torch and exllamav3; it never decides anything about people."""
