"""Callbacks, one a file; usable in any config as `class_path: callbacks.NAME`."""

from callbacks.branch_strength import BranchStrength
from callbacks.downstream import Downstream
from callbacks.final_validation import FinalValidation
from callbacks.interruption import Interruption
from callbacks.routing_collapse import RoutingCollapse
from callbacks.routing_sharpness import RoutingSharpness
from callbacks.run_summary import RunSummary
from callbacks.sample_text import SampleText
from callbacks.source_redundancy import SourceRedundancy
from callbacks.throughput import Throughput

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
