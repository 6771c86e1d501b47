// The layout of a model as one safetensors file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "stage/shards/fp8_tensors.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

namespace {

constexpr uint64_t kLengthBytes = 8, kHeaderAlignment = 8;

size_t order_of(DType dtype) {
  const auto at = std::find_if(kSafetensorsDTypes.begin(), kSafetensorsDTypes.end(),
                               [&](const SafetensorsDType& name) { return name.dtype == dtype; });
  expect(at != kSafetensorsDTypes.end(), "safetensors: a weight of an integer type");
  return static_cast<size_t>(at - kSafetensorsDTypes.begin());
}

// A tensor of the file: one of the model, or the experts of a layer as parts of one, in their order.
struct FileTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> dims;
  std::vector<size_t> parts;  // indices into ModelSource::tensors()
};

// The parts of one tensor must be those of all experts, of one type and shape. Untrusted shards may lack some.
void fuse_dims(FileTensor& tensor, const ModelSource& source) {
  const auto experts = static_cast<size_t>(source.config().experts);
  const size_t matrices = tensor.name.find("gate_up_proj") == std::string::npos ? 1 : 2;
  const bool alike = std::all_of(tensor.parts.begin(), tensor.parts.end(), [&](size_t part) {
    return source.tensors()[part].dtype == tensor.dtype && source.tensors()[part].spec.dims == tensor.dims;
  });
  if (tensor.parts.size() != experts * matrices || !alike)
    throw Error(ExitCode::kData, fmt::format("{}: {} parts of tensor {}, expected {} of one type and shape",
                                             source.file_of(tensor.parts.front()), tensor.parts.size(), tensor.name,
                                             experts * matrices));
  tensor.dims = {experts, matrices * tensor.dims[0], tensor.dims[1]};
}

std::vector<FileTensor> file_tensors(const ModelSource& source) {
  std::map<std::string, FileTensor> by_name;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const SourceTensor& tensor = source.tensors()[i];
    const std::string& name = tensor.checkpoint_name.empty() ? tensor.spec.name : tensor.checkpoint_name;
    const auto [at, added] = by_name.try_emplace(name, FileTensor{name, tensor.dtype, tensor.spec.dims, {}});
    if (!added && !holds_all_experts(name))
      throw Error(ExitCode::kData, fmt::format("{}: two tensors are called {}", source.file_of(i), name));
    at->second.parts.push_back(i);
  }
  std::vector<FileTensor> tensors;
  for (auto& [name, tensor] : by_name) {
    if (holds_all_experts(name)) fuse_dims(tensor, source);
    tensors.push_back(std::move(tensor));
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const FileTensor& a, const FileTensor& b) { return order_of(a.dtype) < order_of(b.dtype); });
  return tensors;
}

}  // namespace

FileLayout safetensors_layout(const ModelSource& source) {
  FileLayout layout;
  std::string header = R"({"__metadata__":{"format":"pt"})";
  uint64_t end = 0;
  for (const FileTensor& tensor : file_tensors(source)) {
    const uint64_t begin = end;
    for (const size_t part : tensor.parts) {
      layout.tensors.push_back({part, tensor.dtype, source.tensors()[part].bytes});
      end += source.tensors()[part].bytes;
    }
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                          kSafetensorsDTypes[order_of(tensor.dtype)].text, fmt::join(tensor.dims, ","), begin, end);
  }
  header += '}';
  header.append((kHeaderAlignment - header.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  for (size_t i = 0; i < kLengthBytes; ++i) layout.header += static_cast<char>(header.size() >> (8 * i) & 0xff);
  layout.header += header;
  layout.place_tensors();
  return layout;
}

}  // namespace lfm2
