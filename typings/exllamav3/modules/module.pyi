from exllamav3.model import Module as Module
