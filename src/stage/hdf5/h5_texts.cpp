// Strings of variable length lie in the collections of the global heap (HDF5 File Format Specification 3.0, section
// III.E); an element holds the length, the collection's address and the object's index.
#include "stage/hdf5/h5_texts.h"

#include <algorithm>

#include "stage/hdf5/h5.h"

namespace lfm2::h5 {

namespace {

constexpr uint64_t kMaxStringBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxCollection = uint64_t{1} << 28;
constexpr size_t kReferenceBytes = 4 + 8 + 4;
constexpr const char* kHeap = "the global heap";

// The text without its padding of NULs or spaces, according to the type.
std::string without_padding(std::string text, ScannedType::Padding padding) {
  if (padding == ScannedType::Padding::kNulAtEnd) {
    text.resize(std::min(text.find('\0'), text.size()));
  } else {
    const size_t last = text.find_last_not_of(padding == ScannedType::Padding::kSpaces ? ' ' : '\0');
    text.resize(last == std::string::npos ? 0 : last + 1);
  }
  return text;
}

}  // namespace

TextReader::TextReader(const CheckedFile& file, std::string name, const ScannedDataset& dataset)
    : file_(file), name_(std::move(name)), dataset_(dataset), blocks_(file) {
  const bool variable = dataset.type.kind == ScannedType::Class::kVariableText;
  if (dataset.type.bytes > kMaxStringBytes || dataset.type.bytes == 0 ||
      (variable && dataset.type.bytes != kReferenceBytes))
    throw Error(ExitCode::kData, fmt::format("{}: dataset {}: strings of {} bytes, expected 1 to {}",
                                             file.path().string(), name_, dataset.type.bytes, kMaxStringBytes));
}

std::vector<std::string> TextReader::read(uint64_t first, uint64_t count) {
  const bool variable = dataset_.type.kind == ScannedType::Class::kVariableText;
  const uint64_t width = dataset_.type.bytes;
  std::vector<std::string> texts;
  if (dataset_.storage != ScannedDataset::Storage::kContiguous) {
    texts = File::open(file_).read_texts(name_, first, count);
  } else {
    Block block(count * width);
    file_.read(dataset_.offset + first * width, block);  // the scan has seen that all of it is in the file
    Cursor cursor(block, fmt::format("{}: dataset {}", file_.path().string(), name_));
    for (uint64_t i = 0; i < count; ++i) texts.push_back(variable ? variable_text(cursor) : cursor.text(width));
  }
  // The library's strings of variable length end at their first NUL, too.
  for (std::string& text : texts)
    text = without_padding(std::move(text), variable ? ScannedType::Padding::kNulAtEnd : dataset_.type.padding);
  return texts;
}

std::string TextReader::variable_text(Cursor& element) {
  const uint64_t length = element.u32(), address = element.u64(), index = element.u32();
  if (length == 0) return {};
  const Object& object = object_at(address, index);
  if (length > object.bytes || length > kMaxStringBytes)
    blocks_.refuse(
        object.first, kHeap,
        fmt::format("a string of {} bytes, expected at most {}", length, std::min(object.bytes, kMaxStringBytes)));
  // The library stores each string in a separate object. If many strings shared one, their total could exceed any file.
  variable_bytes_ += length;
  if (variable_bytes_ > file_.size()) blocks_.refuse(object.first, kHeap, "strings share their bytes");
  Block text(length);
  file_.read(object.first, text);
  return Cursor(text, element.where()).text(length);
}

const TextReader::Object& TextReader::object_at(uint64_t address, uint64_t index) {
  const auto [found, is_new] = collections_.try_emplace(address);
  if (is_new) read_collection(address, found->second);
  const auto object = std::lower_bound(found->second.begin(), found->second.end(), index,
                                       [](const Object& one, uint64_t wanted) { return one.index < wanted; });
  if (object == found->second.end() || object->index != index)
    blocks_.refuse(address, kHeap, fmt::format("has no object {}", index));
  return *object;
}

void TextReader::read_collection(uint64_t address, std::vector<Object>& objects) {
  constexpr uint64_t kHeadBytes = 16;  // of the collection, and of each object
  const Block start = blocks_.peek(address, kHeadBytes, kHeap);
  Cursor head(start, blocks_.where(address, kHeap));
  head.expect_signature("GCOL", 1);
  head.skip(3);
  const uint64_t bytes = head.u64();
  if (bytes < kHeadBytes || bytes > kMaxCollection)
    head.refuse(fmt::format("{} bytes, expected {} to {}", bytes, kHeadBytes, kMaxCollection));
  blocks_.claim(address, bytes, kHeap);
  Block block(bytes);
  file_.read(address, block);
  Cursor cursor(block, head.where());
  cursor.skip(kHeadBytes);
  while (cursor.left() >= kHeadBytes) {
    const uint64_t index = cursor.u16();
    cursor.skip(6);
    const uint64_t size = cursor.u64();
    if (index == 0) break;  // the rest is free
    if (size > cursor.left())
      cursor.refuse(fmt::format("object {} of {} bytes, {} are left", index, size, cursor.left()));
    objects.push_back({index, address + cursor.position(), size});
    cursor.skip(std::min((size + 7) / 8 * 8, uint64_t{cursor.left()}));
  }
  std::sort(objects.begin(), objects.end(), [](const Object& a, const Object& b) { return a.index < b.index; });
}

}  // namespace lfm2::h5
