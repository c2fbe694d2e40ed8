// Runs a program on arguments in files: run PROGRAM RUNS NAME=FILE...
//
// A file is read, and what the program writes is written into it. RUNS runs follow each other; with
// a RUNS of "encode", one is recorded into an encoder of our own, over buffers of the device; with one
// of "destroyed", the first argument lies in a buffer that is destroyed.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "../examples/device.hpp"

namespace {

using Memory = std::map<std::string, std::vector<char>>;

void encode(const example::Gpu& gpu, webnn::Program& program, Memory& memory) {
  webnn::Arguments buffers;
  const WGPUQueue queue = wgpuDeviceGetQueue(gpu.device);
  const WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(gpu.device, nullptr);
  std::vector<std::pair<WGPUBuffer, WGPUBuffer>> made;
  const auto buffer_of = [&gpu](std::uint64_t size, WGPUBufferUsage usage) {
    WGPUBufferDescriptor descriptor{};
    descriptor.size = size, descriptor.usage = usage;
    return wgpuDeviceCreateBuffer(gpu.device, &descriptor);
  };
  for (const webnn::Argument& argument : program.arguments()) {
    std::vector<char>& bytes = memory[argument.name];
    bytes.resize(argument.size);
    made.emplace_back(
        buffer_of(256 + argument.size, WGPUBufferUsage_Storage | WGPUBufferUsage_CopyDst |
                                           WGPUBufferUsage_CopySrc),
        buffer_of(argument.size, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst));
    wgpuQueueWriteBuffer(queue, made.back().first, 256, bytes.data(), bytes.size());
    buffers[argument.name] = webnn::on_device(made.back().first, 256);
  }
  program.encode(encoder, buffers);
  for (std::size_t i = 0; i < made.size(); ++i)
    wgpuCommandEncoderCopyBufferToBuffer(encoder, made[i].first, 256, made[i].second, 0,
                                         program.arguments()[i].size);
  const WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, nullptr);
  wgpuQueueSubmit(queue, 1, &commands);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const webnn::Argument& argument = program.arguments()[i];
    WGPUBufferMapCallbackInfo info{};
    info.mode = WGPUCallbackMode_AllowProcessEvents;
    info.callback = [](WGPUMapAsyncStatus, WGPUStringView, void*, void*) {};
    wgpuBufferMapAsync(made[i].second, WGPUMapMode_Read, 0, argument.size, info);
    wgpuDevicePoll(gpu.device, 1, nullptr);
    const void* mapped = wgpuBufferGetConstMappedRange(made[i].second, 0, argument.size);
    std::memcpy(memory[argument.name].data(), mapped, argument.size);
    memory[argument.name].resize(argument.bytes);
    wgpuBufferRelease(made[i].first), wgpuBufferRelease(made[i].second);
  }
  wgpuCommandBufferRelease(commands);
  wgpuCommandEncoderRelease(encoder);
  wgpuQueueRelease(queue);
}

void run_destroyed(const example::Gpu& gpu, webnn::Program& program, Memory& memory) {
  webnn::Arguments arguments;
  for (auto& [name, bytes] : memory) arguments[name] = webnn::host(bytes);
  const webnn::Argument& first = program.arguments().front();
  WGPUBufferDescriptor descriptor{};
  descriptor.size = first.size, descriptor.usage = WGPUBufferUsage_Storage;
  const WGPUBuffer buffer = wgpuDeviceCreateBuffer(gpu.device, &descriptor);
  arguments[first.name] = webnn::on_device(buffer);
  wgpuBufferDestroy(buffer);
  const std::unique_ptr<WGPUBufferImpl, void (*)(WGPUBuffer)> keep(buffer, wgpuBufferRelease);
  program.run(arguments);
}

int run(int count, char** words) {
  const std::string runs = words[2];
  std::map<std::string, std::string> files;
  Memory memory;
  for (int i = 3; i < count; ++i) {
    const std::string word = words[i];
    const std::string name = word.substr(0, word.find('='));
    files[name] = word.substr(name.size() + 1);
    std::ifstream stream(files[name], std::ios::binary);
    memory[name].assign(std::istreambuf_iterator<char>(stream), {});
  }
  const example::Gpu gpu;
  webnn::Program program = webnn::Program::load(gpu.device, words[1], {gpu.adapter, {}});
  if (runs == "encode") {
    encode(gpu, program, memory);
  } else if (runs == "destroyed") {
    run_destroyed(gpu, program, memory);
  } else {
    for (int i = 0; i < std::stoi(runs); ++i) {
      webnn::Arguments arguments;
      for (auto& [name, bytes] : memory) arguments[name] = webnn::host(bytes);
      program.run(arguments);
    }
  }
  for (const webnn::Argument& argument : program.arguments())
    if (argument.written() && files.count(argument.name))
      std::ofstream(files[argument.name], std::ios::binary)
          .write(memory[argument.name].data(), std::streamsize(argument.bytes));
  std::cout << gpu.name << "\n";
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const webnn::DataError& error) {
    std::cerr << "DataError: " << error.what() << "\n";
  } catch (const webnn::NotSupportedError& error) {
    std::cerr << "NotSupportedError: " << error.what() << "\n";
  } catch (const webnn::OperationError& error) {
    std::cerr << "OperationError: " << error.what() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "Error: " << error.what() << "\n";
  }
  return 2;
}
