// Classifies a handwritten digit: digits PROGRAM [IMAGE]
//
// The program is that of docs/how-to/cpp.md: samples/digits.py, saved with batch 1. IMAGE is a text of 64 numbers from 0
// to 16, the ink of 8x8 pixels, as scikit-learn has them; without it, a three is drawn.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "device.hpp"

namespace {

constexpr const char* three =
    "0 0 7 15 13 1 0 0  0 8 13 6 15 4 0 0  0 2 1 13 13 0 0 0  0 0 2 15 11 1 0 0 "
    "0 0 0 1 12 12 1 0  0 0 0 0 1 10 8 0  0 0 8 4 5 14 9 0  0 0 7 13 13 9 0 0";

int classify(const char* path, std::istream& stream) {
  float image[64], probabilities[10];
  for (float& pixel : image) {
    if (!(stream >> pixel)) throw std::runtime_error("the image has fewer than 64 numbers");
    pixel /= 16;
  }
  const example::Gpu gpu;
  webnn::Program program = webnn::Program::load(gpu.device, path, {gpu.adapter, {}});
  program.run({{"image", webnn::host(image)}, {"probabilities", webnn::host(probabilities)}});
  for (int row = 0; row < 8; ++row, std::puts(""))
    for (int column = 0; column < 8; ++column)
      std::fputs(image[row * 8 + column] > 0.5f ? "##" : image[row * 8 + column] > 0.1f ? "::" : "  ",
                 stdout);
  const float* best = std::max_element(probabilities, probabilities + 10);
  std::printf("%d, with probability %.3f, on %s\n", int(best - probabilities), double(*best),
              gpu.name.c_str());
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count < 2) throw std::runtime_error("digits PROGRAM [IMAGE]");
    if (count > 2) {
      std::ifstream file(words[2]);
      if (!file) throw std::runtime_error(std::string(words[2]) + ": it cannot be opened");
      return classify(words[1], file);
    }
    std::istringstream text(three);
    return classify(words[1], text);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
