"""Callbacks, one a file; usable in any config as `class_path: callbacks.NAME`."""

from lightning_dar.callbacks.branch_strength import BranchStrength
from lightning_dar.callbacks.downstream import Downstream
from lightning_dar.callbacks.final_validation import FinalValidation
from lightning_dar.callbacks.interruption import Interruption
from lightning_dar.callbacks.routing_collapse import RoutingCollapse
from lightning_dar.callbacks.routing_sharpness import RoutingSharpness
from lightning_dar.callbacks.run_summary import RunSummary
from lightning_dar.callbacks.sample_text import SampleText
from lightning_dar.callbacks.source_redundancy import SourceRedundancy
from lightning_dar.callbacks.throughput import Throughput

__all__ = [
    "BranchStrength",
    "Downstream",
    "FinalValidation",
    "Interruption",
    "RoutingCollapse",
    "RoutingSharpness",
    "RunSummary",
    "SampleText",
    "SourceRedundancy",
    "Throughput",
]
