"""Literal types of the options that choose a context's device.

Source: WebNN 2026, "MLContextOptions"; "cpu" and "gpu" as in its text of 2022.
"""

from __future__ import annotations

from typing import Literal

MLDeviceType = Literal["cpu", "gpu", "default"]
"""Device that runs graphs; "default" is the CPU."""

MLPowerPreference = Literal["default", "high-performance", "low-power"]
"""Preferred GPU where there are several."""

Float32Precision = Literal["highest", "high", "medium"]
"""How a GPU multiplies float32: exactly, as three products of float16, or as one."""
