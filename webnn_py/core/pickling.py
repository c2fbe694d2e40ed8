"""Base class of objects that cannot be copied or pickled."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from webnn_py.core.errors import NotSupportedError
from webnn_py.core.messages import type_name


class Unpicklable:
    """Base of objects with threads, locks or a device; `copy` and `pickle` raise a clear error."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise NotSupportedError(
            f"{type_name(self)} can be neither copied nor pickled, as it belongs to this process;"
            " make one where it is needed (an MLGraph can be copied, pickled and saved)"
        )
