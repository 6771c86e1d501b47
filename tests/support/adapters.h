// LoRA adapters written by hand, and the sums that they stand for. Used by the tests of adapters.
#pragma once

#include <cmath>
#include <memory>

#include "base/split_mix.h"
#include "support/fp8_checkpoints.h"
#include "support/weights_support.h"
#include "weights-tools/model/adapted_source.h"

namespace lfm2::test {

struct HandAdapter {
  Json config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 3}, {"peft_version", "0.21.2"}};
  std::vector<HandTensor> tensors;

  // Adds a tensor of fp32 with numbers that its name decides. Its name is base_model.model.NAME.
  void add(const std::string& name, std::vector<uint64_t> dims) {
    HandTensor tensor{"base_model.model." + name, "F32", std::move(dims), ""};
    std::vector<float> values(numel(tensor.dims));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(split_mix(std::hash<std::string>{}(tensor.name), i) >> 40) * 0x1p-24f - 0.5f;
    tensor.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    tensors.push_back(std::move(tensor));
  }
  // Adds the factors of a module.
  void add_pair(const std::string& module, std::vector<uint64_t> a, std::vector<uint64_t> b) {
    add(module + ".lora_A.weight", std::move(a));
    add(module + ".lora_B.weight", std::move(b));
  }
  std::vector<float> values(const std::string& name) const {
    const HandTensor& tensor = find_tensor(const_cast<std::vector<HandTensor>&>(tensors), "base_model.model." + name);
    std::vector<float> values(numel(tensor.dims));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  std::string write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    write_bytes(folder / "adapter_config.json", config.dump());
    write_bytes(folder / "adapter_model.safetensors", safetensors_text(tensors));
    return folder.string();
  }
};

// The values of a tensor, as fp32.
inline std::vector<float> float_values(const ModelSource& model, const std::string& name) {
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    const SourceTensor& tensor = model.tensors()[i];
    if (tensor.spec.name != name) continue;
    const std::string bytes = tensor_bytes(model, i);
    std::vector<float> values(bytes.size() / size_bytes(tensor.dtype));
    convert(tensor.dtype, bytes.data(), DType::kF32, values.data(), values.size());
    return values;
  }
  throw std::runtime_error("no tensor " + name);
}

// An element of a factor: of b by row and rank, of a by rank and column.
using Element = std::function<float(size_t, size_t)>;

// Adds scale · B A to a weight [rows, columns] in fp32, a rank after the other.
inline void add_product(std::vector<float>& weight, size_t columns, size_t rank, float scale, const Element& b,
                        const Element& a) {
  for (size_t i = 0; i < weight.size(); ++i) {
    float sum = 0;
    for (size_t k = 0; k < rank; ++k) sum = std::fma(b(i / columns, k), a(k, i % columns), sum);
    const float scaled = sum * scale;
    weight[i] += scaled;
  }
}

// The same with the factors of a linear module.
inline void add_linear_product(std::vector<float>& weight, size_t columns, size_t rank, float scale,
                               const HandAdapter& adapter, const std::string& module) {
  const std::vector<float> a = adapter.values(module + ".lora_A.weight"), b = adapter.values(module + ".lora_B.weight");
  add_product(
      weight, columns, rank, scale, [&](size_t row, size_t k) { return b[row * rank + k]; },
      [&](size_t k, size_t column) { return a[k * columns + column]; });
}

inline std::unique_ptr<ModelSource> adapted(const std::string& golden_case, const std::vector<std::string>& adapters,
                                            int threads = 2) {
  return adapt(open_model(golden_dir() / golden_case), adapters, threads);
}

}  // namespace lfm2::test
