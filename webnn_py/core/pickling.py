"""What lives in one process and is neither copied nor sent to another."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from webnn_py.core.errors import NotSupportedError
from webnn_py.core.messages import type_name


class Unpicklable:
    """An object with threads, locks or a device, which `copy` and `pickle` refuse clearly."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise NotSupportedError(
            f"{type_name(self)} can be neither copied nor pickled, as it belongs to this process;"
            " make one where it is needed (an MLGraph can be copied, pickled and saved)"
        )
