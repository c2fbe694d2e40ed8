"""What of wgpu's private names `native` uses, and what becomes of each use where it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(eq=False)
class Capability:
    """One use of what is private in wgpu.

    Attributes:
        name: A word for it.
        without: What is done without it, and what is then lost.
        interface: C functions with their types, callbacks likewise, structs with their members,
            constants with "int".
        attributes: The Python attributes that are used, and the methods that prove them by using
            them themselves: "Class.method" in wgpu's classes.
        missing: Why it is not there; None if it is.
    """

    name: str
    without: str
    interface: Mapping[str, str]
    attributes: Mapping[str, str]
    missing: str | None = None

    @property
    def there(self) -> bool:
        """Whether it can be used."""
        return self.missing is None

    @property
    def by_handle(self) -> bool:
        """Whether it hands wgpu-native's own handles to C functions."""
        return bool(self.interface)


_HANDLE = {"_internal": "GPUObjectBase.__init__"}
_PASS = "struct WGPUComputePassEncoderImpl *"
_BUFFER = "struct WGPUBufferImpl *"
_ENCODER = "struct WGPUCommandEncoderImpl *"
_COMMANDS = "struct WGPUCommandBufferImpl *"
_GROUP = "struct WGPUBindGroupImpl *"
_QUEUE = "struct WGPUQueueImpl *"
_LABELLED = "nextInChain, label"

RECORDING = Capability(
    "recording",
    "our own commands are recorded by wgpu's methods, each of which looks for errors",
    {
        "wgpuDeviceCreateBindGroup": (
            f"{_GROUP}(*)(struct WGPUDeviceImpl *, WGPUBindGroupDescriptor *)"
        ),
        "WGPUBindGroupDescriptor": f"{_LABELLED}, layout, entryCount, entries",
        "WGPUBindGroupEntry": "nextInChain, binding, buffer, offset, size, sampler, textureView",
        "wgpuBindGroupRelease": f"void(*)({_GROUP})",
        "wgpuDeviceCreateCommandEncoder": (
            f"{_ENCODER}(*)(struct WGPUDeviceImpl *, WGPUCommandEncoderDescriptor *)"
        ),
        "WGPUCommandEncoderDescriptor": _LABELLED,
        "wgpuCommandEncoderCopyBufferToBuffer": (
            f"void(*)({_ENCODER}, {_BUFFER}, uint64_t, {_BUFFER}, uint64_t, uint64_t)"
        ),
        "wgpuCommandEncoderClearBuffer": f"void(*)({_ENCODER}, {_BUFFER}, uint64_t, uint64_t)",
        "wgpuCommandEncoderBeginComputePass": (
            f"{_PASS}(*)({_ENCODER}, WGPUComputePassDescriptor *)"
        ),
        "WGPUComputePassDescriptor": "nextInChain, label, timestampWrites",
        "wgpuCommandEncoderFinish": f"{_COMMANDS}(*)({_ENCODER}, WGPUCommandBufferDescriptor *)",
        "WGPUCommandBufferDescriptor": _LABELLED,
        "wgpuCommandEncoderRelease": f"void(*)({_ENCODER})",
        "wgpuComputePassEncoderEnd": f"void(*)({_PASS})",
        "wgpuComputePassEncoderRelease": f"void(*)({_PASS})",
        "wgpuCommandBufferRelease": f"void(*)({_COMMANDS})",
        "wgpuQueueWriteBuffer": f"void(*)({_QUEUE}, {_BUFFER}, uint64_t, void *, size_t)",
        "wgpuQueueSubmit": f"void(*)({_QUEUE}, size_t, {_COMMANDS} *)",
        "wgpuComputePassEncoderSetPipeline": f"void(*)({_PASS}, struct WGPUComputePipelineImpl *)",
        "wgpuComputePassEncoderSetBindGroup": (
            f"void(*)({_PASS}, uint32_t, {_GROUP}, size_t, uint32_t *)"
        ),
        "wgpuComputePassEncoderDispatchWorkgroups": (
            f"void(*)({_PASS}, uint32_t, uint32_t, uint32_t)"
        ),
    },
    _HANDLE,
)
WAITING = Capability(
    "waiting",
    "a thread of wgpu's waits for the device, and keeps others from submitting meanwhile; where the"
    " driver loses the device, wgpu-native ends the process",
    {
        "wgpuBufferMapAsync": (
            f"WGPUFuture(*)({_BUFFER}, uint64_t, size_t, size_t, WGPUBufferMapCallbackInfo)"
        ),
        "WGPUBufferMapCallback": "void(*)(WGPUMapAsyncStatus, WGPUStringView, void *, void *)",
        "WGPUBufferMapCallbackInfo": "nextInChain, mode, callback, userdata1, userdata2",
        "WGPUCallbackMode_AllowProcessEvents": "int",
        "WGPUMapAsyncStatus_Success": "int",
        "WGPUMapMode_Read": "int",
        "WGPUMapMode_Write": "int",
        "wgpuInstanceProcessEvents": "void(*)(struct WGPUInstanceImpl *)",
        "wgpuBufferGetMappedRange": f"void *(*)({_BUFFER}, size_t, size_t)",
        "wgpuBufferUnmap": f"void(*)({_BUFFER})",
    },
    {**_HANDLE, "_the_instance": "get_wgpu_instance"},
)
CHECKING = Capability(
    "checking",
    "only buffers that can be storage are looked at before a submission; over one of the others"
    " that is destroyed, wgpu-native ends the process",
    {
        "wgpuBufferUnmap": f"void(*)({_BUFFER})",
        "wgpuQueueWriteBuffer": f"void(*)({_QUEUE}, {_BUFFER}, uint64_t, void *, size_t)",
    },
    {**_HANDLE, "_device": "GPUObjectBase.__init__"},
)
OBSERVING = Capability(
    "observing",
    "what the user's commands use is not known, and not refused; an initialization takes effect"
    " when it is recorded, whether it is submitted or not",
    {},
    {},
)
FORKING = Capability(
    "forking",
    "a child process looks through all Python objects for wgpu's",
    {},
    {"_the_instance": "get_wgpu_instance", "_release": "GPUObjectBase.__del__"},
)
TIMING = Capability(
    "timing",
    "timestamps are taken for nanoseconds, which they are not on every device",
    {"wgpuQueueGetTimestampPeriod": f"float(*)({_QUEUE})"},
    _HANDLE,
)
CALLING = Capability(
    "calling",
    "C functions are called by way of wgpu's, which takes six Python calls more for each",
    {},
    {},
)
TRUSTING = Capability(
    "trusting",
    "loops of kernels count their rounds, though they are known to end: on an H100 up to 6 % of a"
    " graph's time",
    {
        "wgpuDeviceCreateShaderModuleTrusted": (
            "struct WGPUShaderModuleImpl *(*)"
            "(struct WGPUDeviceImpl *, WGPUShaderModuleDescriptor *, uint64_t)"
        ),
        "WGPUShaderModuleDescriptor": _LABELLED,
        "WGPUShaderSourceWGSL": "chain, code",
        "WGPUStringView": "data, length",
        "WGPUShaderRuntimeChecks_BoundsChecks": "int",
        "WGPUSType_ShaderSourceWGSL": "int",
    },
    {
        **_HANDLE,
        "wgpuDeviceCreateShaderModule": "GPUDevice.create_shader_module",
        "GPUShaderModule": "GPUDevice.create_shader_module",
    },
)
FREEING = Capability(
    "freeing",
    "command buffers that are never submitted stay in memory, and with them the device and all that"
    " they use",
    {
        "wgpuCommandEncoderFinish": f"{_COMMANDS}(*)({_ENCODER}, WGPUCommandBufferDescriptor *)",
        "wgpuCommandBufferRelease": f"void(*)({_COMMANDS})",
    },
    _HANDLE,
)
ALL = (RECORDING, WAITING, CHECKING, OBSERVING, FORKING, TIMING, CALLING, TRUSTING, FREEING)
