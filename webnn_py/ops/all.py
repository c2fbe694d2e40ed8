"""The class of all builder methods, which joins the families of operators."""

from __future__ import annotations

from abc import abstractmethod

from webnn_py.ops.activation import Activation
from webnn_py.ops.attention import Attention
from webnn_py.ops.convolution import Convolution
from webnn_py.ops.docstrings import complete_docstrings
from webnn_py.ops.elementwise import Elementwise
from webnn_py.ops.indexing import Indexing
from webnn_py.ops.linalg import Linalg
from webnn_py.ops.movement import Movement
from webnn_py.ops.normalization import Normalization
from webnn_py.ops.operand import NodeBuilder
from webnn_py.ops.pooling import Pooling
from webnn_py.ops.quantization import Quantization
from webnn_py.ops.quantized_products import QuantizedProducts
from webnn_py.ops.recurrent import Recurrent
from webnn_py.ops.reduction import Reduction
from webnn_py.ops.resampling import Resampling
from webnn_py.ops.scan import Scan


class Operators(
    Elementwise,
    Activation,
    Linalg,
    Convolution,
    Pooling,
    Reduction,
    Scan,
    Normalization,
    Movement,
    Indexing,
    Resampling,
    Quantization,
    QuantizedProducts,
    Attention,
    Recurrent,
):
    """The builder methods of all operators.

    Options:
        label: Name of the operator in error messages and listings.
        axis: The dimension, counted from 0.
        axes: The dimensions, counted from 0, each once.
        keep_dimensions: Keep the reduced dimensions, with size 1.
        epsilon: Number added to the variance to avoid division by 0.
        input_layout: Order of the input's and output's dimensions.
        layout: Order of the input's and output's dimensions.
    """

    @property
    @abstractmethod
    def _node_builder(self) -> NodeBuilder:
        """The node builder that receives the operators' nodes."""


complete_docstrings(Operators)
