"""What stands behind the public objects, for tests of the rooms within."""

from __future__ import annotations

from typing import Any

from webnn_py import MLContext, MLGraph, MLTensor
from webnn_py.api.compiled import CompiledGraph
from webnn_py.api.session import Session
from webnn_py.ir import Graph


def session_of(context: MLContext) -> Session:
    return context._session


def engine_of(context: MLContext) -> Any:
    return context._session.engine


def recipe_of(graph: MLGraph) -> Graph:
    return graph._compiled.recipe


def executable_of(graph: MLGraph) -> Any:
    return graph._compiled.executable(graph._compiled.session)


def built_from(context: MLContext, recipe: Graph) -> MLGraph:
    return MLGraph(CompiledGraph(context._session, recipe))


def storage_of(tensor: MLTensor) -> Any:
    return tensor._memory.storage


def context_of(graph: MLGraph) -> MLContext:
    return MLContext(graph._compiled.session)
