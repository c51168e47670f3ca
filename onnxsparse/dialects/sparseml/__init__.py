"""SparseML's interface: recipes around a training loop in torch, and its export, by the names that its users know."""

from __future__ import annotations

from onnxsparse.dialects.sparseml.exporter import ModuleExporter
from onnxsparse.dialects.sparseml.loggers import LambdaLogger, LoggerManager, PythonLogger, TensorBoardLogger
from onnxsparse.dialects.sparseml.qat_export import export_qat, quantize_qat_export, quantize_torch_qat_export
from onnxsparse.dialects.sparseml.recipe_manager import ScheduledModifierManager
from onnxsparse.dialects.sparseml.scheduled_optimizer import ScheduledOptimizer
from onnxsparse.dialects.sparseml.wrapper import RecipeManagerStepWrapper

__all__ = [
    "LambdaLogger",
    "LoggerManager",
    "ModuleExporter",
    "PythonLogger",
    "RecipeManagerStepWrapper",
    "ScheduledModifierManager",
    "ScheduledOptimizer",
    "TensorBoardLogger",
    "export_qat",
    "quantize_qat_export",
    "quantize_torch_qat_export",
]
