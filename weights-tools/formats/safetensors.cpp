// The format is a u64 header length, a JSON header, and the data. The checks are those of the reference implementation
// in Rust.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json/json.h"
#include "stage/shards/fp8_tensors.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

namespace {

constexpr uint64_t kLengthBytes = 8;
// The format allows 100 MB, which would need gigabytes as parsed JSON. 10,000 tensors need 2 MB.
constexpr uint64_t kMaxHeader = uint64_t{16} << 20;
constexpr uint64_t kHeaderAlignment = 8;
constexpr size_t kMaxDimensions = 8;

struct DTypeName {
  DType dtype;
  std::string_view text;
};
constexpr std::array<DTypeName, 4> kDTypeNames = {
    // In the order in which Hugging Face's library writes types into a file.
    {{DType::kF32, "F32"}, {DType::kBf16, "BF16"}, {DType::kF16, "F16"}, {DType::kF8, "F8_E4M3"}}};

std::string read_header_text(const CheckedFile& file) {
  std::array<unsigned char, kLengthBytes> raw{};
  if (file.size() < kLengthBytes)
    file.refuse(fmt::format("{} bytes, expected a safetensors file: 8 bytes of header length first", file.size()));
  file.read(0, std::as_writable_bytes(std::span(raw)));
  uint64_t length = 0;
  for (size_t i = raw.size(); i-- > 0;) length = length << 8 | raw[i];
  if (length > kMaxHeader || length > file.size() - kLengthBytes) refuse_other_kind(file);
  if (length > kMaxHeader) file.refuse(fmt::format("header length is {}, expected at most {}", length, kMaxHeader));
  if (length > file.size() - kLengthBytes)
    file.refuse(fmt::format("header length is {}, but the file has {} bytes", length, file.size()));
  std::string text(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  if (!text.starts_with('{')) file.refuse("the header does not start with '{', expected JSON");
  return text;
}

// Expects a list of unsigned integers.
std::vector<uint64_t> read_integers(const Json& json, const CheckedFile& file, const std::string& what) {
  if (!json.is_array() || json.size() > kMaxDimensions)
    file.refuse(fmt::format("{} is no list of at most {} integers", what, kMaxDimensions));
  std::vector<uint64_t> values;
  for (const Json& entry : json) {
    if (!entry.is_number_unsigned()) file.refuse(what + " holds something else than unsigned integers");
    values.push_back(entry.get<uint64_t>());
  }
  return values;
}

RawTensor read_entry(const std::string& tensor, const Json& json, const CheckedFile& file) {
  const std::string what = fmt::format("tensor {}", tensor);
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets"))
    file.refuse(what + " is not described by exactly dtype, shape and data_offsets");
  RawTensor raw;
  const Json& dtype = json["dtype"];
  const auto known =
      std::find_if(kDTypeNames.begin(), kDTypeNames.end(), [&](const DTypeName& name) { return dtype == name.text; });
  if (known == kDTypeNames.end())
    file.refuse(
        fmt::format("{} has dtype {}, expected F32, BF16, F16 or F8_E4M3", what, json_text(dtype).substr(0, 80)));
  raw.dtype = known->dtype;
  raw.dims = read_integers(json["shape"], file, what + ": shape");
  const std::vector<uint64_t> offsets = read_integers(json["data_offsets"], file, what + ": data_offsets");
  if (offsets.size() != 2 || offsets[1] < offsets[0])
    file.refuse(fmt::format("{}: data_offsets are [{}], expected begin and end", what, fmt::join(offsets, ", ")));
  raw.offset = offsets[0];
  raw.bytes = offsets[1] - offsets[0];
  uint64_t needed = size_bytes(raw.dtype);
  for (uint64_t extent : raw.dims)
    needed = checked_multiply(needed, extent, fmt::format("{}: {}: shape", file.path().string(), what));
  if (raw.bytes != needed)
    file.refuse(fmt::format("{} has {} bytes, but {} of shape {} needs {}", what, raw.bytes, known->text,
                            dims_text(raw.dims), needed));
  return raw;
}

void check_metadata(const Json& metadata, const CheckedFile& file) {
  const bool texts = metadata.is_object() &&
                     std::all_of(metadata.begin(), metadata.end(), [](const Json& value) { return value.is_string(); });
  if (!texts) file.refuse("__metadata__ is no object of texts");
}

// Checks that every byte after the header belongs to exactly one tensor, and makes offsets count from the start of the
// file.
void place(RawTensors& tensors, uint64_t data_first, const CheckedFile& file) {
  std::vector<std::pair<const std::string*, RawTensor*>> order;
  for (auto& [tensor, raw] : tensors) order.emplace_back(&tensor, &raw);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset, a.second->bytes) < std::pair(b.second->offset, b.second->bytes);
  });
  uint64_t end = 0;
  for (const auto& [tensor, raw] : order) {
    if (raw->offset != end)
      file.refuse(fmt::format("tensor {} begins at byte {} of the data, expected {}: {}", *tensor, raw->offset, end,
                              raw->offset < end ? "tensors overlap" : "a hole lies before it"));
    end = checked_add(end, raw->bytes, file.path().string());
    raw->offset += data_first;
  }
  if (end != file.size() - data_first)
    file.refuse(fmt::format("the tensors need {} bytes of data, but the file has {}", end, file.size() - data_first));
}

}  // namespace

RawTensors read_safetensors_header(const CheckedFile& file, size_t file_index) {
  const std::string text = read_header_text(file);
  const Json json = parse_json(text, file.path().string() + ": header");
  RawTensors tensors;
  for (const auto& [key, value] : json.items()) {
    if (key == "__metadata__") {
      check_metadata(value, file);
      continue;
    }
    RawTensor raw = read_entry(key, value, file);
    raw.file = file_index;
    tensors.emplace(key, std::move(raw));
  }
  place(tensors, kLengthBytes + text.size(), file);
  return tensors;
}

namespace {

size_t order_of(DType dtype) {
  const auto at =
      std::find_if(kDTypeNames.begin(), kDTypeNames.end(), [&](const DTypeName& name) { return name.dtype == dtype; });
  expect(at != kDTypeNames.end(), "safetensors: a weight of an integer type");
  return static_cast<size_t>(at - kDTypeNames.begin());
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
                          kDTypeNames[order_of(tensor.dtype)].text, fmt::join(tensor.dims, ","), begin, end);
  }
  header += '}';
  header.append((kHeaderAlignment - header.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  for (size_t i = 0; i < kLengthBytes; ++i) layout.header += static_cast<char>(header.size() >> (8 * i) & 0xff);
  layout.header += header;
  layout.place_tensors();
  return layout;
}

}  // namespace lfm2
