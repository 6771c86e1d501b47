// The format has no magic number and no checksum, so every field is compared with a limit before it is used.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/file_kind.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {

static_assert(std::endian::native == std::endian::little, "the files are little-endian, and so is the code here");

namespace {

constexpr uint32_t kMaxTensors = 65536;
constexpr uint32_t kZip = 0x04034b50;  // the beginning of a ZIP archive, which torch.save writes
constexpr uint32_t kMaxNameBytes = 256;
constexpr uint32_t kMaxRank = 4;
constexpr std::string_view kLeftOut = "model.";
constexpr std::string_view kHead = "lm_head.";  // has no leading "model." in Hugging Face's names either

// Reads the table from front to back, in pieces of the file.
class TableCursor {
 public:
  explicit TableCursor(const CheckedFile& file) : file_(file) {}
  uint64_t position() const { return position_; }
  template <class T>
  T number() {
    T value{};
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  std::string text(size_t length) {
    std::string value(length, '\0');
    take(std::as_writable_bytes(std::span(value)));
    return value;
  }

 private:
  static constexpr uint64_t kPieceBytes = 1 << 16;

  void take(std::span<std::byte> into) {
    if (position_ < piece_first_ || position_ + into.size() > piece_first_ + piece_.size()) {
      if (into.size() > file_.size() - position_)
        file_.refuse(fmt::format("the table of tensors ends at byte {}, past the end of the file", file_.size()));
      piece_first_ = position_;
      piece_.resize(std::min(kPieceBytes, file_.size() - position_));
      file_.read(piece_first_, piece_);
    }
    std::memcpy(into.data(), piece_.data() + (position_ - piece_first_), into.size());
    position_ += into.size();
  }

  const CheckedFile& file_;
  uint64_t position_ = 0, piece_first_ = 0;
  std::vector<std::byte> piece_;
};

std::string read_name(TableCursor& cursor, const CheckedFile& file, uint32_t index) {
  const auto length = cursor.number<uint32_t>();
  if (length == 0 || length > kMaxNameBytes)
    file.refuse(fmt::format("name of tensor {} has {} bytes, expected 1 to {}", index, length, kMaxNameBytes));
  std::string text = cursor.text(length);
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
  });
  if (!plain) file.refuse(fmt::format("name of tensor {} holds other characters than letters, digits, . and _", index));
  return text.starts_with(kHead) ? text : std::string(kLeftOut) + text;
}

RawTensor read_place(TableCursor& cursor, const CheckedFile& file, const std::string& tensor) {
  RawTensor raw;
  const auto rank = cursor.number<uint32_t>();
  if (rank > kMaxRank) file.refuse(fmt::format("tensor {} has rank {}, expected at most {}", tensor, rank, kMaxRank));
  uint64_t needed = sizeof(float);
  for (uint32_t axis = 0; axis < rank; ++axis) {
    raw.dims.push_back(cursor.number<uint32_t>());
    needed = checked_multiply(needed, raw.dims.back(), fmt::format("{}: tensor {}", file.path().string(), tensor));
  }
  raw.offset = cursor.number<uint64_t>();
  raw.bytes = cursor.number<uint64_t>();
  if (raw.bytes != needed)
    file.refuse(fmt::format("tensor {} has {} bytes, but fp32 of shape {} needs {}", tensor, raw.bytes,
                            dims_text(raw.dims), needed));
  if (raw.offset > file.size() || raw.bytes > file.size() - raw.offset)
    file.refuse(fmt::format("tensor {} has {} bytes at offset {}, but the file has {}", tensor, raw.bytes, raw.offset,
                            file.size()));
  return raw;
}

void check_places(const RawTensors& tensors, uint64_t data_first, const CheckedFile& file) {
  std::vector<std::pair<const std::string*, const RawTensor*>> order;
  for (const auto& [tensor, raw] : tensors) order.emplace_back(&tensor, &raw);
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second->offset < b.second->offset; });
  uint64_t end = data_first;
  for (const auto& [tensor, raw] : order) {
    if (raw->offset < end)
      file.refuse(fmt::format("tensor {} begins at offset {}, inside what ends at {}", *tensor, raw->offset, end));
    end = raw->offset + raw->bytes;
  }
}

template <class T>
void put(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

RawTensors read_model_bin_header(const CheckedFile& file) {
  TableCursor cursor(file);
  const auto count = cursor.number<uint32_t>();
  if (count == 0 || count > kMaxTensors) {
    if (count == kZip) file.refuse("is a PyTorch checkpoint, expected model.bin or safetensors");
    refuse_other_kind(file);
    file.refuse(fmt::format("counts {} tensors, expected 1 to {}: is this a model.bin?", count, kMaxTensors));
  }
  RawTensors tensors;
  for (uint32_t index = 0; index < count; ++index) {
    const std::string tensor = read_name(cursor, file, index);
    if (!tensors.emplace(tensor, read_place(cursor, file, tensor)).second)
      file.refuse(fmt::format("tensor {} stands twice in the table", tensor));
  }
  check_places(tensors, cursor.position(), file);
  return tensors;
}

FileLayout model_bin_layout(const ModelSource& source) {
  FileLayout layout;
  std::vector<std::string> names;
  uint64_t offset = sizeof(uint32_t);
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const TensorSpec& spec = source.tensors()[i].spec;
    layout.tensors.push_back({i, DType::kF32, checked_multiply(numel(spec.dims), sizeof(float), spec.name)});
    names.push_back(spec.name.starts_with(kLeftOut) ? spec.name.substr(kLeftOut.size()) : spec.name);
    offset += 2 * sizeof(uint32_t) + names.back().size() + spec.dims.size() * sizeof(uint32_t) + 2 * sizeof(uint64_t);
  }
  put(layout.header, static_cast<uint32_t>(names.size()));
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<uint64_t>& dims = source.tensors()[i].spec.dims;
    put(layout.header, static_cast<uint32_t>(names[i].size()));
    layout.header += names[i];
    put(layout.header, static_cast<uint32_t>(dims.size()));
    // The limits of the configuration keep extents within 32 bits.
    for (uint64_t extent : dims) put(layout.header, static_cast<uint32_t>(extent));
    put(layout.header, offset);
    put(layout.header, layout.tensors[i].bytes);
    offset += layout.tensors[i].bytes;
  }
  layout.place_tensors();
  return layout;
}

}  // namespace lfm2
