"""Callbacks, one a file; usable in any config as `class_path: callbacks.NAME`."""

from callbacks.final_validation import FinalValidation
from callbacks.routing_sharpness import RoutingSharpness
from callbacks.run_summary import RunSummary
from callbacks.sample_text import SampleText
from callbacks.throughput import Throughput

__all__ = ["FinalValidation", "RoutingSharpness", "RunSummary", "SampleText", "Throughput"]
