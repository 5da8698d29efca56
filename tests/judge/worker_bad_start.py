"""Handlers' modules that do not start, on all devices or on one."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

MODE = os.environ.get("START_MODE", "")

if MODE == "raise":
    raise ImportError("no such\nlibrary")
if MODE == "exit":
    print("loader's last words", file=sys.stderr, flush=True)
    os._exit(9)
if MODE == "hang":
    time.sleep(600)
if MODE == "slow":
    time.sleep(1.0)
if MODE == "device-1" and "--device=1" in sys.argv:
    raise ImportError("device 1 is broken")


def handle(job: dict[str, Any], device: int, progress: Any) -> Any:
    time.sleep(job.get("seconds", 0))
    return device
