"""The runtime: a wgpu device, its queue, tensors and recordings."""

import wgpu

from webnn_py.core.requirements import check_version

check_version(wgpu)
