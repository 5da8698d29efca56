"""Relax in, Relax out: what matches, the pass, its code generator, pipelines and ONNX."""

from __future__ import annotations

from .offload import VibeGEMMOffload
from .recompose import recompose
from .report import SiteReport, read_report

__all__ = ["SiteReport", "VibeGEMMOffload", "read_report", "recompose"]
