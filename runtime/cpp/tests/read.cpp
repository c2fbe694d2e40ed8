// Reads files as programs, with no device: read FOLDER. Says how many were refused; anything else
// than an error of webnn's ends the process.

#include <filesystem>
#include <iostream>

#include "../webnn_program.hpp"

int main(int, char** words) {
  int read = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(words[1])) {
    try {
      webnn::ProgramFile::open(entry.path().string());
      ++read;
    } catch (const webnn::DataError&) {
      ++refused;
    } catch (const webnn::NotSupportedError&) {
      ++refused;
    }
  }
  std::cout << read << " " << refused << "\n";
}
