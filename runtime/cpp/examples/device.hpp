// A WebGPU device with all that programs can use, of wgpu-native's first adapter.

#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "../webnn_program.hpp"

namespace example {

// The device, and what it came from.
struct Gpu {
  WGPUInstance instance = nullptr;
  WGPUAdapter adapter = nullptr;
  WGPUDevice device = nullptr;
  std::string name;

  Gpu() {
    WGPUInstanceDescriptor descriptor{};
    instance = wgpuCreateInstance(&descriptor);
    WGPURequestAdapterOptions options{};
    WGPURequestAdapterCallbackInfo arrived{};
    arrived.mode = WGPUCallbackMode_AllowProcessEvents;
    arrived.userdata1 = &adapter;
    arrived.callback = [](WGPURequestAdapterStatus, WGPUAdapter found, WGPUStringView, void* user,
                          void*) { *static_cast<WGPUAdapter*>(user) = found; };
    wgpuInstanceRequestAdapter(instance, &options, arrived);
    wgpuInstanceProcessEvents(instance);
    if (!adapter) throw std::runtime_error("there is no GPU adapter");
    open();
  }
  Gpu(const Gpu&) = delete;
  ~Gpu() {
    if (device) wgpuDeviceRelease(device);
    if (adapter) wgpuAdapterRelease(adapter);
    wgpuInstanceRelease(instance);
  }

 private:
  void open() {
    std::vector<WGPUFeatureName> features;
    for (const WGPUFeatureName wanted :
         {WGPUFeatureName_ShaderF16, static_cast<WGPUFeatureName>(WGPUNativeFeature_ShaderInt64),
          static_cast<WGPUFeatureName>(WGPUNativeFeature_Subgroup)})
      if (wgpuAdapterHasFeature(adapter, wanted)) features.push_back(wanted);
    WGPULimits limits{};
    wgpuAdapterGetLimits(adapter, &limits);
    limits.nextInChain = nullptr;
    WGPUDeviceDescriptor descriptor{};
    descriptor.requiredFeatureCount = features.size();
    descriptor.requiredFeatures = features.data();
    descriptor.requiredLimits = &limits;
    descriptor.uncapturedErrorCallbackInfo.callback =
        [](WGPUDevice const*, WGPUErrorType, WGPUStringView message, void*, void*) {
          std::fprintf(stderr, "%s\n", webnn::detail::text_of(message).c_str());
        };
    WGPURequestDeviceCallbackInfo arrived{};
    arrived.mode = WGPUCallbackMode_AllowProcessEvents;
    arrived.userdata1 = &device;
    arrived.callback = [](WGPURequestDeviceStatus, WGPUDevice found, WGPUStringView message,
                          void* user, void*) {
      if (!found) std::fprintf(stderr, "%s\n", webnn::detail::text_of(message).c_str());
      *static_cast<WGPUDevice*>(user) = found;
    };
    wgpuAdapterRequestDevice(adapter, &descriptor, arrived);
    wgpuInstanceProcessEvents(instance);
    if (!device) throw std::runtime_error("the adapter gives no device");
    WGPUAdapterInfo info{};
    wgpuAdapterGetInfo(adapter, &info);
    name = webnn::detail::text_of(info.device);
    wgpuAdapterInfoFreeMembers(info);
  }
};

}  // namespace example
