// Checkpoints written by hand, independently of the code under test, and the form that every refusal must have. Used by
// the tests of weights-tools and of the files below it.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json/json.h"
#include "support/golden.h"
#include "support/shards.h"
#include "weights-tools/model/model_source.h"

namespace lfm2::test {

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The values of a text with one of JSON a line.
inline std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> values;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) values.push_back(parse_json(line, "line"));
  return values;
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  ASSERT_TRUE(file.good()) << path;
}

template <class T>
void write_values(const std::filesystem::path& path, const std::vector<T>& values) {
  write_bytes(path, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

// `call` must throw an Error with this code, and a message of one line that contains all `parts`.
template <class F>
void expect_error(F&& call, ExitCode code, const std::vector<std::string>& parts) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    return;
  }
  ADD_FAILURE() << "nothing was refused, expected: " << (parts.empty() ? "" : parts.back());
}

inline std::string little_endian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

// One tensor as it stands in a file.
struct HandTensor {
  std::string name, dtype;  // "F32", "BF16", "F16"
  std::vector<uint64_t> dims;
  std::string bytes;
};

inline std::string safetensors_text(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

// The text of a safetensors file with the tensors in this order, without padding or metadata.
inline std::string safetensors_text(const std::vector<HandTensor>& tensors) {
  std::string header = "{", data;
  for (const HandTensor& tensor : tensors) {
    if (header.size() > 1) header += ',';
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" +
              fmt::format("{}", fmt::join(tensor.dims, ",")) + "],\"data_offsets\":[" + std::to_string(data.size()) +
              "," + std::to_string(data.size() + tensor.bytes.size()) + "]}";
    data += tensor.bytes;
  }
  return safetensors_text(header + "}", data);
}

// The text of a model.bin: fp32 only, with the names that stand in the file.
inline std::string model_bin_text(const std::vector<HandTensor>& tensors) {
  uint64_t offset = 4;
  for (const HandTensor& tensor : tensors) offset += 4 + tensor.name.size() + 4 + 4 * tensor.dims.size() + 16;
  std::string table = little_endian(tensors.size(), 4), data;
  for (const HandTensor& tensor : tensors) {
    table += little_endian(tensor.name.size(), 4) + tensor.name + little_endian(tensor.dims.size(), 4);
    for (uint64_t extent : tensor.dims) table += little_endian(extent, 4);
    table += little_endian(offset + data.size(), 8) + little_endian(tensor.bytes.size(), 8);
    data += tensor.bytes;
  }
  return table + data;
}

inline std::string tensor_bytes(const ModelSource& model, size_t tensor) {
  std::string bytes(model.tensors()[tensor].bytes, '\0');
  model.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

inline std::string safetensors_name(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBf16 ? "BF16" : dtype == DType::kF16 ? "F16" : "F8_E4M3";
}

// Loads all tensors of a model, in the order of model_tensors().
inline std::vector<HandTensor> load_tensors(const ModelSource& model) {
  std::vector<HandTensor> tensors;
  for (size_t i = 0; i < model.tensors().size(); ++i)
    tensors.push_back({model.tensors()[i].spec.name, safetensors_name(model.tensors()[i].dtype),
                       model.tensors()[i].spec.dims, tensor_bytes(model, i)});
  return tensors;
}

inline std::vector<HandTensor> golden_tensors(const std::string& golden_case) {
  return load_tensors(*open_model(golden_dir() / golden_case));
}

inline HandTensor& find_tensor(std::vector<HandTensor>& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const HandTensor& t) { return t.name == name; });
  if (at == tensors.end()) throw std::runtime_error("no tensor " + name);
  return *at;
}

// Writes a folder in Hugging Face's form with the configuration of the golden case.
inline void write_folder(const std::filesystem::path& folder, const std::string& golden_case,
                         const std::vector<HandTensor>& tensors) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(golden_dir() / golden_case / "config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  write_bytes(folder / "model.safetensors", safetensors_text(tensors));
}

// Expects both models to have the same tensors, with the same types and bytes.
inline void expect_same_model(const ModelSource& a, const ModelSource& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  EXPECT_EQ(a.config_text(), b.config_text());
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    EXPECT_EQ(a.tensors()[i].spec.name, b.tensors()[i].spec.name);
    EXPECT_EQ(a.tensors()[i].spec.dims, b.tensors()[i].spec.dims);
    EXPECT_EQ(a.tensors()[i].dtype, b.tensors()[i].dtype) << a.tensors()[i].spec.name;
    EXPECT_EQ(tensor_bytes(a, i), tensor_bytes(b, i)) << a.tensors()[i].spec.name;
  }
}

inline std::set<std::string> file_names(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace lfm2::test
