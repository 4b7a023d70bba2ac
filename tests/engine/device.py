"""Where the tests of the engine compute: on the CPU, unless `make test-gpu` says otherwise. Imports nothing of exllamav3."""

import os

from daemon.core.settings import BackendKind

VARIABLE, CUDA = "EXL3D_ENGINE_TESTS", BackendKind.CUDA.value
BACKEND = BackendKind.CUDA if os.environ.get(VARIABLE) == CUDA else BackendKind.CPU
