"""Capabilities: uses of wgpu-py's private names, and the consequence where a name is missing."""

from __future__ import annotations

from webnn_py.engines.webgpu.runtime.webgpu_api import Capability

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
    "our own commands are recorded by wgpu-py's methods, each of which checks for errors",
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
    "a thread of wgpu-py waits for the device and blocks submissions meanwhile; if the driver loses"
    " the device, wgpu-native ends the process",
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
    "only storage buffers are checked before a submission; if another buffer was destroyed,"
    " wgpu-native ends the process",
    {
        "wgpuBufferUnmap": f"void(*)({_BUFFER})",
        "wgpuQueueWriteBuffer": f"void(*)({_QUEUE}, {_BUFFER}, uint64_t, void *, size_t)",
    },
    {**_HANDLE, "_device": "GPUObjectBase.__init__"},
)
OBSERVING = Capability(
    "observing",
    "the resources of the user's commands are unknown and not checked; an initialization takes"
    " effect when it is recorded, even if it is never submitted",
    {},
    {},
)
FORKING = Capability(
    "forking",
    "a child process searches all Python objects for those of wgpu-py",
    {},
    {"_the_instance": "get_wgpu_instance", "_release": "GPUObjectBase.__del__"},
)
TIMING = Capability(
    "timing",
    "timestamps count as nanoseconds, which is wrong on some devices",
    {"wgpuQueueGetTimestampPeriod": f"float(*)({_QUEUE})"},
    _HANDLE,
)
CALLING = Capability(
    "calling",
    "C functions are called through wgpu-py, with six more Python calls each",
    {},
    {},
)
TRUSTING = Capability(
    "trusting",
    "wgpu-native counts the iterations of every loop in a kernel: up to 6 % of a graph's time on an"
    " H100",
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
    "command buffers that are never submitted leak, with the device and every resource they use",
    {
        "wgpuCommandEncoderFinish": f"{_COMMANDS}(*)({_ENCODER}, WGPUCommandBufferDescriptor *)",
        "wgpuCommandBufferRelease": f"void(*)({_COMMANDS})",
    },
    _HANDLE,
)
ALL = (RECORDING, WAITING, CHECKING, OBSERVING, FORKING, TIMING, CALLING, TRUSTING, FREEING)
