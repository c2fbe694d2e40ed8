// Simulates a liquid and draws it: particles PROGRAM POSITIONS FRAMES PICTURE.ppm
//
// The program is that of samples/mpm88.py (--program). POSITIONS holds the particles' first places,
// two float32 each (--positions), and gets the last ones. Says how many frames a second it made.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "device.hpp"

namespace {

constexpr int size = 512;

void draw(const std::vector<float>& positions, const char* path) {
  std::vector<unsigned char> pixels(std::size_t(size) * size * 3);
  for (std::size_t i = 0; i < pixels.size(); i += 3)
    pixels[i] = 14, pixels[i + 1] = 22, pixels[i + 2] = 38;
  for (std::size_t i = 0; i + 1 < positions.size(); i += 2) {
    const int x = int(positions[i] * size), y = size - 1 - int(positions[i + 1] * size);
    for (int down = -1; down <= 1; ++down)
      for (int right = -1; right <= 1; ++right) {
        const int column = x + right, row = y + down;
        if (column < 0 || row < 0 || column >= size || row >= size) continue;
        unsigned char* pixel = &pixels[(std::size_t(row) * size + std::size_t(column)) * 3];
        pixel[0] = 80, pixel[1] = 170, pixel[2] = 235;
      }
  }
  std::ofstream file(path, std::ios::binary);
  file << "P6\n" << size << " " << size << "\n255\n";
  file.write(reinterpret_cast<const char*>(pixels.data()), std::streamsize(pixels.size()));
}

int simulate(char** words) {
  std::ifstream file(words[2], std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.empty()) throw std::runtime_error(std::string(words[2]) + ": no positions there");
  std::vector<float> positions(bytes.size() / sizeof(float));
  std::memcpy(positions.data(), bytes.data(), positions.size() * sizeof(float));
  const int frames = std::stoi(words[3]);
  const example::Gpu gpu;
  webnn::Program program = webnn::Program::load(gpu.device, words[1], {gpu.adapter, {}});
  const auto begin = std::chrono::steady_clock::now();
  for (int frame = 0; frame < frames; ++frame)
    program.run({{"position", webnn::host(positions)}});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::ofstream(words[2], std::ios::binary)
      .write(reinterpret_cast<const char*>(positions.data()), std::streamsize(bytes.size()));
  draw(positions, words[4]);
  std::printf("%d frames, %.2f a second, on %s\n", frames, frames / seconds.count(),
              gpu.name.c_str());
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count != 5) throw std::runtime_error("particles PROGRAM POSITIONS FRAMES PICTURE.ppm");
    return simulate(words);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
