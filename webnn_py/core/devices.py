"""How a context's device is chosen: the names that may be given.

Source: WebNN 2026, "MLContextOptions"; "cpu" and "gpu" as in its text of 2022.
"""

from __future__ import annotations

from typing import Literal

MLDeviceType = Literal["cpu", "gpu", "default"]
"""Where graphs run; "default" is the CPU."""

MLPowerPreference = Literal["default", "high-performance", "low-power"]
"""Which GPU, where there are several."""
