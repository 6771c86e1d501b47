// The header of a safetensors file: a u64 length, then JSON; the data follows. The checks are those of the reference
// implementation in Rust.
#include "stage/shards/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json/json.h"
#include "stage/model/tensor_table.h"

namespace lfm2 {

namespace {

constexpr uint64_t kLengthBytes = 8;
// The format allows 100 MB, which would need gigabytes as parsed JSON. 10,000 tensors need 2 MB.
constexpr uint64_t kMaxHeader = uint64_t{16} << 20;
constexpr size_t kMaxDimensions = 8;

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
  const auto known = std::find_if(kSafetensorsDTypes.begin(), kSafetensorsDTypes.end(),
                                  [&](const SafetensorsDType& name) { return dtype == name.text; });
  if (known == kSafetensorsDTypes.end())
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

}  // namespace lfm2
